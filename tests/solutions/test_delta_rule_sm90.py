"""The Hopper kernels of the gated delta rule on the CPU (their PTX replaced by cuda_on_host/), with mutants that must
fail; compiled by nvcc; on a GPU at hot workloads."""

import dataclasses
import functools
import math
import os
import shutil
import sys
import tempfile
from pathlib import Path

import nvcc
import pytest
import torch
from moe_cases import ROOT
from on_host import FAST, HEADERS, recalled_for, share_of, shared_library

from kernelderby.catalog import Catalog
from kernelderby.measure.judge.cases import small_cases
from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.judge.definition import load_definition_module
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.machine.probe import find_machine
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

CATALOG = Catalog.open(ROOT)
UPDATE, VARLEN, STATE, OUTPUT = OPERATORS = (
    "gated_delta_rule_update",
    "gated_delta_rule_varlen",
    "chunk_gated_delta_rule_state",
    "chunk_delta_rule_output",
)
REPLACED = ("ptx.cuh", "tma.cuh", "wgmma.cuh")
FULL = {"key_dim": 128, "value_dim": 128}


@functools.cache
def on_cpu(operator, *edits):
    """derby_<operator>_sm90's module with edited sources (old, new), its library one for CPU tensors."""
    solution = CATALOG.solution(f"derby_{operator}_sm90")
    sources = dict(solution.sources)
    for old, new in edits:
        (holder,) = (path for path, text in sources.items() if text.count(old) == 1)
        sources[holder] = sources[holder].replace(old, new)
    run = load_solution(CATALOG.definition(operator), dataclasses.replace(solution, sources=sources))
    module = sys.modules[run.__module__]
    with tempfile.TemporaryDirectory() as folder:
        names = [name for name in module.library.sources if name not in REPLACED]
        source, *headers = (Path(shutil.copy(module.library.folder / name, folder)) for name in names)
        beside = [*headers, *(HEADERS / name for name in REPLACED)]
        made = shared_library(source, *(FAST if edits else ("-O1",)), header="ptx.cuh", beside=beside)
        function = module.library.load(made)

    def call(device, *arguments):
        addresses = [value.data_ptr() if isinstance(value, torch.Tensor) else value for value in arguments]
        assert function(*addresses, None) == 0, "cudaErrorInvalidValue"

    module.library = call
    return module


def one_key(inputs):
    """All tokens have the same key, the corrections full strength, and nothing decays: the hardest system to solve."""
    inputs["k"][:] = inputs["k"][0]
    inputs["b"].fill_(20)
    inputs["a"].fill_(-40)


def called(operator, variant, *edits, in_place=False, change=None):
    """(definition, inputs, outputs) of one call at full head sizes; change(inputs)."""
    definition = CATALOG.definition(operator)
    reference = load_definition_module(definition)
    (case,) = small_cases(definition, {**reference.SMALL_AXES, **FULL}, [variant], 1)
    maker = InputMaker(definition, reference, case, torch.device("cpu"), ROOT)
    inputs = maker.make(0)
    if change:
        change(inputs)
    outputs = {
        name: torch.full(shape, float("nan"), dtype=dtype) for name, (shape, dtype) in maker.output_places().items()
    }
    given = {name: value.clone() for name, value in inputs.items()}
    if in_place:
        outputs["final_state"] = given["initial_state"]
    on_cpu(operator, *edits).run(*given.values(), *outputs.values())
    return definition, inputs, outputs


def solved(operator, variant, *edits, **how):
    """The verdict on it."""
    definition, inputs, outputs = called(operator, variant, *edits, **how)
    return judge(definition, load_definition_module(definition), inputs, outputs)


HEADS = {
    UPDATE: {"num_q_heads": 1, "num_v_heads": 2},
    VARLEN: {"num_q_heads": 1, "num_v_heads": 2},
    STATE: {"num_k_heads": 1, "num_v_heads": 2},
    OUTPUT: {"num_q_heads": 1, "num_v_heads": 2},
}
CHUNKS = {
    UPDATE: {"num_tokens": 274},  # more than the ring has stages, the last one not whole
    # Of 7, 92, 19, 13, 79 and 120 tokens: one goes token by token.
    VARLEN: {"num_tokens": 330, "num_seqs": 6, "len_cu_seqlens": 7, "state_count": 8},
    STATE: {"num_tokens": 338, "num_chunks": 6},
    OUTPUT: {"num_tokens": 150, "num_chunks": 3},
}


@pytest.mark.parametrize("order", ["", "reversed"])
@pytest.mark.parametrize("operator", OPERATORS)
@recalled_for("derby_{operator}_sm90")
def test_chunks(operator, order, monkeypatch):
    monkeypatch.setenv("EMULATED_ORDER", order)
    verdict = solved(operator, {**HEADS[operator], **CHUNKS[operator]})
    assert verdict.status is Status.PASSED, verdict.message


@pytest.mark.parametrize("operator, length", [(UPDATE, 2), (VARLEN, 1), (STATE, 1), (STATE, 2)])
@recalled_for("derby_{operator}_sm90")
def test_sequences_cut_into_segments(operator, length, monkeypatch):
    """After each chunk, and after two."""
    segments = sys.modules[f"{on_cpu(operator).__name__}.delta_rule_segments"]
    monkeypatch.setattr(segments, "chunks_of_segment", lambda *_: length)
    verdict = solved(operator, {**HEADS[operator], **CHUNKS[operator]})
    assert verdict.status is Status.PASSED, verdict.message


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("tokens", [0, 1, 8])
@recalled_for(*(f"derby_{each}_sm90" for each in OPERATORS))
def test_token_by_token(tokens, in_place):
    verdict = solved(UPDATE, {**HEADS[UPDATE], "num_tokens": tokens}, in_place=in_place)
    assert verdict.status is Status.PASSED, verdict.message


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("tokens", [3, 5])
@recalled_for(*(f"derby_{each}_sm90" for each in OPERATORS))
def test_several_sequences_token_by_token(tokens, in_place):
    few = {"num_tokens": tokens, "num_seqs": 3, "len_cu_seqlens": 4}
    verdict = solved(VARLEN, {**HEADS[VARLEN], **few}, in_place=in_place)
    assert verdict.status is Status.PASSED, verdict.message


def broken_sequence(inputs):
    """The second sequence has no numbers; the first one's last chunk is not whole."""
    first, end = inputs["cu_seqlens"][1:3].tolist()
    for name in ("q", "k", "v"):
        inputs[name][first:end] = float("nan")


@pytest.mark.parametrize("in_place", [False, True])
@recalled_for(*(f"derby_{each}_sm90" for each in OPERATORS))
def test_empty_sequences_keep_their_states(in_place):
    lengths = [0, 1, 63, 65, 0]
    several = {"num_tokens": sum(lengths), "num_seqs": 5, "len_cu_seqlens": 6, "state_count": 8}

    def change(inputs):
        inputs["cu_seqlens"][1:] = torch.tensor(lengths).cumsum(0)

    verdict = solved(VARLEN, {**HEADS[VARLEN], **several}, in_place=in_place, change=change)
    assert verdict.status is Status.PASSED, verdict.message


@recalled_for(*(f"derby_{each}_sm90" for each in OPERATORS))
def test_sequences_do_not_touch_each_other():
    few = {**HEADS[VARLEN], "num_tokens": 150, "num_seqs": 2, "len_cu_seqlens": 3}

    def first_of(*edits):
        _, inputs, outputs = called(VARLEN, few, *edits, change=broken_sequence)
        slot, length = inputs["initial_state_indices"][0], inputs["cu_seqlens"][1]
        assert length > 8 and length % 64
        return torch.cat([outputs["output"][:length].flatten().float(), outputs["final_state"][slot].flatten()])

    assert not first_of().isnan().any()
    assert first_of(("if (count < CHUNK) clear_rows", "if (count < 0) clear_rows")).isnan().any()


def no_correction(inputs):
    inputs["b"].fill_(-60)


def at_once_forgotten(inputs):
    inputs["a"].fill_(30)


def all_or_nothing(inputs):
    """Decays and corrections of 0 and 1, from infinite gates; between them others."""
    for name, at in (("a", 3), ("b", 4)):
        inputs[name][::at], inputs[name][1::at] = math.inf, -math.inf


@pytest.mark.parametrize("tokens", [5, 130])  # token by token, and chunks
@pytest.mark.parametrize("change", [one_key, no_correction, at_once_forgotten, all_or_nothing])
@recalled_for(*(f"derby_{each}_sm90" for each in OPERATORS))
def test_extreme_gates(change, tokens):
    verdict = solved(UPDATE, {**HEADS[UPDATE], "num_tokens": tokens}, change=change)
    assert verdict.status is Status.PASSED, verdict.message


@pytest.mark.parametrize("of_token", [0.0, -1e-4, -30.0])
@recalled_for(*(f"derby_{each}_sm90" for each in OPERATORS))
def test_extreme_decays_of_the_state_stage(of_token):
    def change(inputs):  # sums from a chunk's start on; where nothing decays, corrections of full size would run away
        inputs["w"] *= 0.25
        tokens, heads = inputs["g"].shape
        inputs["g"][:] = of_token * (torch.arange(tokens) % 64 + 1.0).unsqueeze(1)

    verdict = solved(STATE, {**HEADS[STATE], "num_tokens": 150, "num_chunks": 3}, change=change)
    assert verdict.status is Status.PASSED, verdict.message


def nothing_forgotten(inputs):
    inputs["a"].fill_(-40)


def error_of_the_state(tokens):
    """Root mean square of the last state's error, and of that state."""
    definition, inputs, outputs = called(
        UPDATE, {"num_q_heads": 1, "num_v_heads": 1, "num_tokens": tokens}, change=nothing_forgotten
    )
    with torch.no_grad():
        _, expected = load_definition_module(definition).run(*inputs.values())
    slot = inputs["initial_state_indices"].long()
    return [float(x[slot].square().mean().sqrt()) for x in (outputs["final_state"] - expected, expected)]


@pytest.mark.parametrize(
    "tokens",
    [
        512,
        pytest.param(
            8192,
            marks=pytest.mark.skipif("DERBY_TESTS_ALL" not in os.environ, reason="18 s: DERBY_TESTS_ALL=1"),
        ),
    ],
)
@recalled_for(*(f"derby_{each}_sm90" for each in OPERATORS))
def test_the_error_does_not_grow_with_the_sequence(tokens):
    early, _ = error_of_the_state(128)
    late, size = error_of_the_state(tokens)
    assert late < 1.5 * early and late < 0.006 * size


MUTANTS = [
    (OUTPUT, "scores[4 * j + i] = below >= 0", "scores[4 * j + i] = below > 0"),
    (OUTPUT, "total[i] *= kept[i / 2 % 2]", "total[i] *= kept[0]"),
    (OUTPUT, "wgmma_wait_group<1>();\n    pin<32>(scores);", "pin<32>(scores);"),
    (STATE, "state[i] *= over;", "state[i] *= 1;"),
    (STATE, "pack_bf16(low * to_end[j].x, high * to_end[j].y)", "pack_bf16(low, high)"),
    (STATE, "bulk_wait_group_read<1>();\n        if (chunk > first)", "if (chunk > first)"),
    (STATE, "min(chunk * CHUNK + i + lane, call.tokens - 1)", "chunk * CHUNK + i"),
    (UPDATE, "invert_quarters<32>(shared);", ""),
    (UPDATE, "state[i] *= of_state;", ""),
    (UPDATE, "p[i] = below >= 0", "p[i] = below > 0"),
    (UPDATE, "mma_m16n8k16(d[n], high, b_high[0], b_high[1]);", ""),
    (UPDATE, "result[i] *= of_q[i / 2 % 2];", "result[i] *= of_q[0];"),
    *(
        (UPDATE, f"wgmma_wait_group<0>();\n    pin<32>(result);\n    shared.{name}", f"shared.{name}")
        for name in ("states", "corrected")
    ),
    (VARLEN, "bounds(sequence).x / CHUNK + sequence;", "bounds(sequence).x / CHUNK;"),
]


OF_SEGMENTS = [
    (UPDATE, "state[i] -= diagonal(i) ? whole : 0.0f;", "state[i] -= 0;"),
    (STATE, "call.decays[part.segment * call.v_heads + part.head] = whole;", ""),
]


@pytest.mark.parametrize("operator, old, new", share_of(OF_SEGMENTS))
@recalled_for("derby_{operator}_sm90")
def test_mutants_of_segments_fail(operator, old, new, monkeypatch):
    segments = sys.modules[f"{on_cpu(operator, (old, new)).__name__}.delta_rule_segments"]
    monkeypatch.setattr(segments, "chunks_of_segment", lambda *_: 1)
    assert solved(operator, {**HEADS[operator], **CHUNKS[operator]}, (old, new)).status is not Status.PASSED


@pytest.mark.parametrize("operator, old, new", share_of(MUTANTS))
@recalled_for("derby_{operator}_sm90")
def test_mutants_fail(operator, old, new):
    assert solved(operator, {**HEADS[operator], **CHUNKS[operator]}, (old, new)).status is not Status.PASSED


@pytest.mark.parametrize("operator", OPERATORS)
def test_it_compiles_without_spills(operator):
    """Nor do its products run one by one (C7510, C7518)."""
    solution = CATALOG.solution(f"derby_{operator}_sm90")
    module = sys.modules[load_solution(CATALOG.definition(operator), solution).__module__]
    try:
        compiler = module.cuda_library.find_nvcc()
    except RuntimeError as error:
        pytest.skip(str(error))
    kernels = nvcc.kernels_of(compiler, Path(module.__file__).parent / "kernel.cu")
    assert kernels and [kernel for kernel in kernels if kernel.spilled] == []


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("language", ["sm90", "triton"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_right_at_hot_workloads(operator, language):
    from kernelderby.measure.run.checks import plan_checks, run_checks

    machine = find_machine(ROOT, "cuda")
    name = f"derby_{operator}_{language}"
    results = run_checks(CATALOG, machine, plan_checks(CATALOG, machine, solutions=[name]), 300, lambda result: None)
    assert results
    assert [f"{one.case}: {one.status} {one.message}" for one in results if one.status is not Status.PASSED] == []
