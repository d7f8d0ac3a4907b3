"""The kernel of derby_attention_forward_sm90 for sequences of few keys: right on the CPU (compiled by g++) at odd
sizes, where mutants fail; it compiles; on a GPU."""

import dataclasses
import functools
import itertools
import sys

import nvcc
import on_host
import pytest
import torch
from rowwise_cases import CATALOG, case_of, inputs_of, outputs_of, reference

from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

NAME = "attention_forward"


@functools.cache
def module(*edits):
    """The solution's module, its main.py and few_keys.cu edited (old, new)."""
    solution = CATALOG.solution("derby_attention_forward_sm90")
    sources = dict(solution.sources)
    for old, new in edits:
        (holder,) = (path for path, text in sources.items() if old in text)
        sources[holder] = sources[holder].replace(old, new)
    run = load_solution(CATALOG.definition(NAME), dataclasses.replace(solution, sources=sources))
    return sys.modules[run.__module__]


@functools.cache
def on_cpu(*edits):
    """The module with its kernel compiled by g++."""
    solution = module(("import importlib\n", "import importlib  # on the CPU\n"), *edits)
    source = solution.few_library.folder / "few_keys.cu"
    how = on_host.FAST if edits else on_host.SANITIZED
    function = solution.few_library.load(on_host.shared_library(source, *how))

    def call(device, *arguments):
        addresses = [value.data_ptr() if isinstance(value, torch.Tensor) else value for value in arguments]
        assert function(*addresses, None) == 0, "cudaErrorInvalidValue"

    solution.few_library, solution.FEW_KEYS = call, 1 << 20
    return solution


def case_with(lengths, heads, head_dim):
    count = len(lengths)
    return case_of(NAME, num_tokens=sum(lengths), num_heads=heads, head_dim=head_dim, len_cu_seqlens=count + 1,
                   max_seqlen=max(lengths), sm_scale=head_dim**-0.5)  # fmt: skip


def error_of(solution, lengths, heads, head_dim, device="cpu", boost=1.0):
    """Norm of the error over the result's. Sequences may be empty, which the definition's generator draws never."""
    drawn = [max(1, length) for length in lengths]
    case = case_with(drawn, heads, head_dim)
    inputs = inputs_of(NAME, case, device)
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to(device)
    for name in ("query", "key", "value"):
        inputs[name] = inputs[name][: sum(lengths)].contiguous()
    inputs["query"] *= boost
    inputs["cu_seqlens_q"], inputs["cu_seqlens_k"] = offsets, offsets.clone()
    output = torch.full_like(inputs["query"], float("nan"))
    solution.run(*inputs.values(), output)
    wanted = reference(NAME).run(*inputs.values()).double()
    return float((output.double() - wanted).norm() / wanted.norm())


# One token; one more than the lanes hold at a time; many sequences, more than a warp looks at at once; empty ones.
CASES = [
    ([1], 8, 128),
    ([5], 2, 72),
    ([17], 1, 8),
    ([3, 1, 16, 2], 3, 256),
    ([0, 2, 0, 0, 3, 0], 2, 40),
    ([1, 2] * 37, 1, 64),
]
MOST_ERROR = 0.0008  # two roundings to bfloat16 differ now and then


@pytest.mark.parametrize("boost", [1.0, 30.0])
def test_odd_sizes(boost):
    for case in CASES:
        assert error_of(on_cpu(), *case, boost=boost) <= MOST_ERROR, case


def test_every_small_variant():
    solution = on_cpu()
    small = reference(NAME)
    for changes in small.SMALL_VARIANTS:
        if changes.get("num_tokens", 41) > 100:
            continue
        case = case_of(NAME, **changes)
        inputs, outputs = inputs_of(NAME, case), outputs_of(NAME, case)
        solution.run(*inputs.values(), *outputs.values())
        assert judge(CATALOG.definition(NAME), small, inputs, outputs).status is Status.PASSED, changes


MUTANTS = [
    ("there ? score * call.scale_log2 : -INFINITY", "score * call.scale_log2"),
    ("weight = exp2f(score - against)", "weight = exp2f(score)"),
    ("* their_factor;\n#pragma", ";\n#pragma"),
    ("<= token;", "< token;"),
    ("cu_seqlens_k[sequence + 1];", "cu_seqlens_k[sequence];"),
    ("fmaxf(most, score), against = now == -INFINITY ? 0 : now", "fmaxf(most, score), against = now"),
]  # fmt: skip


@on_host.recalled_for(f"derby_{NAME}_sm90")
def test_mutants_fail():
    for edit in [None, *MUTANTS]:
        solution = on_cpu(*([edit] if edit else []))
        right = all(error_of(solution, *case, boost=3.0) <= MOST_ERROR for case in CASES[1:5])
        assert right == (edit is None), edit


def test_only_few_keys_come_here(monkeypatch):
    solution, called = module(), []
    monkeypatch.setattr(solution, "few_library", lambda device, *arguments: called.append(arguments))
    monkeypatch.setattr(solution, "library", lambda device, *arguments: called.append(None))
    monkeypatch.setattr(solution, "workspace", lambda device, made: (None, None))
    monkeypatch.setattr(solution.planning, "processors", lambda device: 132)
    for length, few in [(1, True), (solution.FEW_KEYS, True), (solution.FEW_KEYS + 1, False)]:
        case = case_with([length], 2, 72)
        solution.run(*inputs_of(NAME, case).values(), *outputs_of(NAME, case).values())
        assert (called.pop() is not None) == few and not called


def test_it_compiles():
    solution = module()
    kernels = nvcc.kernels_of(on_host.nvcc_of(solution), solution.few_library.folder / "few_keys.cu")
    assert kernels and not any(kernel.spilled for kernel in kernels)


@pytest.mark.gpu
def test_on_a_gpu(monkeypatch):
    monkeypatch.setattr(module(), "FEW_KEYS", 1 << 20)
    more = [([70], 4, 128), ([16] * 300, 16, 72), (list(itertools.islice(itertools.cycle([1, 9, 0, 4]), 1100)), 2, 80)]
    for case, boost in itertools.product([*CASES, *more], (1.0, 30.0)):
        assert error_of(module(), *case, device="cuda", boost=boost) <= MOST_ERROR, case
