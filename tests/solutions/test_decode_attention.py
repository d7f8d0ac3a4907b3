"""Decode attention, paged and latent: the Triton solutions in the interpreter and the CUDA ones on the CPU (their PTX
replaced by cuda_on_host/decode_mma.cuh), at odd sizes and with mutants; both compiled; on a GPU in every candidate."""

import dataclasses
import functools
import re
import shutil
import sys
import tempfile
from pathlib import Path

import nvcc
import pytest
import torch
import triton
from aot import compile_kernel
from interpreted import compiled
from on_host import FAST, interpreter, nvcc_of, recalled_for, share_of, shared_library
from rowwise_cases import CATALOG, case_of, inputs_of, meta_arguments, outputs_of, reference

from kernelderby.measure.judge.cases import case_of_workload, small_cases
from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

PAGED, LATENT = OPERATORS = ("paged_attention_decode", "mla_decode_attention")
BLOCKS = "mla_paged_decode_attention"  # the kernels of LATENT with a block table
ODD = {
    PAGED: [
        {"head_dim": 72},
        {"head_dim": 20, "num_query_heads": 17, "num_kv_heads": 1},
        {"head_dim": 192, "num_query_heads": 34, "num_kv_heads": 2},
        {"num_seqs": 1, "num_blocks": 10, "max_blocks_per_seq": 10, "max_context_len": 145},
    ],
    LATENT: [{"num_heads": 17}, {"batch_size": 1, "num_heads": 40, "cache_len": 90, "max_context_len": 77}],
}


@functools.cache
def module(operator, language, *edits):
    """derby_<operator>_<language>'s module, its sources edited (old, new)."""
    solution = CATALOG.solution(f"derby_{operator}_{language}")
    sources = dict(solution.sources)
    for old, new in edits:
        (holder,) = (path for path, text in sources.items() if old in text)
        sources[holder] = sources[holder].replace(old, new)
    run = load_solution(CATALOG.definition(operator), dataclasses.replace(solution, sources=sources))
    return sys.modules[run.__module__]


def owner_of(operator, solution):
    """The module with the libraries."""
    return solution.decode if operator == PAGED else solution


def cases_of(operator):
    small = reference(operator)
    found = small_cases(CATALOG.definition(operator), small.SMALL_AXES, small.SMALL_VARIANTS, 1)
    return found + [case_of(operator, **changes) for changes in ODD[operator]]


def spoil(operator, inputs):
    """Scores that differ much from token to token, and where a context ends, NaN: times a weight of 0 it shows too."""
    for name, value in inputs.items():
        if name.endswith("_cache") and len(value):
            value.mul_(torch.linspace(0.1, 2, len(value)).view(-1, *[1] * (value.dim() - 1)).to(value))
            if operator == LATENT:
                for sequence, length in enumerate(inputs["context_lens"].tolist()):
                    value[sequence, length:] = float("nan")
    if operator == BLOCKS:
        free = torch.ones(inputs["kv_cache"].shape[:2], dtype=torch.bool)
        size = free.shape[1]
        for sequence, length in enumerate(inputs["context_lens"].tolist()):
            places = torch.arange(length)
            free[inputs["block_table"][sequence].cpu().long()[places // size], places % size] = False
            inputs["block_table"][sequence, -(-length // size) :] = 1 << 30  # which no token needs
        inputs["kv_cache"][free.to(inputs["kv_cache"].device)] = float("nan")
    if operator == PAGED:
        for sequence, length in enumerate(inputs["context_lens"].tolist()):
            block, used = inputs["block_table"][sequence, (length - 1) // 16], (length - 1) % 16 + 1
            inputs["key_cache"][block, used:], inputs["value_cache"][block, used:] = 30, float("nan")
    return inputs


def found(operator, solution, config, inputs, case, device="cpu"):
    """(how a call ended, its outputs)."""
    outputs = outputs_of(operator, case, device)
    solution.run_with(config, *inputs.values(), *outputs.values())
    return judge(CATALOG.definition(operator), reference(operator), inputs, outputs).status, outputs


@pytest.mark.interpreted
@pytest.mark.parametrize("operator", OPERATORS)
@recalled_for("derby_{operator}_triton", compiler=interpreter())
def test_triton_at_odd_sizes(operator):
    solution = module(operator, "triton")
    for number, case in enumerate(cases_of(operator)):
        inputs = spoil(operator, inputs_of(operator, case))
        choices = solution.candidates(*inputs.values())
        for config in share_of(choices[::5]) if number == 0 else choices[:1]:
            assert found(operator, solution, config, inputs, case)[0] is Status.PASSED, (case.label, config)


MUTANTS = {
    PAGED: [
        ("valid = token < length", "valid = token <= length"),
        ("valid = token < length", "valid = token < length - 1"),
        ("sm_scale * split_context.LOG2E", "sm_scale"),
        ("rows, columns = unit % chunks * ROWS", "rows, columns = unit * 0 * ROWS"),
        ("token // PAGE", "token * 0"),
        ("cached = slot[:, None] * HEAD_DIM", "cached = slot[:, None] // kv_heads * kv_heads * HEAD_DIM"),
    ],
    LATENT: [
        ("valid = token < length", "valid = token <= length"),
        ("scores = split_context.product(rotary_query", "split_context.product(rotary_query"),
        ("slots + token", "slots * 0 + token"),
        ("rows, columns, rotary = unit % chunks * ROWS", "rows, columns, rotary = unit * 0 * ROWS"),
    ],
}


@pytest.mark.interpreted
@pytest.mark.parametrize("operator", OPERATORS)
@recalled_for("derby_{operator}_triton", compiler=triton.__version__)
def test_triton_mutants_fail(operator):
    common = [
        ("tl.where(their_most == float", "tl.where(their_most != float"),
        ("for other in range(SPLITS)", "for other in range(1, SPLITS)"),
        ("total * factor + tl.sum(weights, axis=1)", "total + tl.sum(weights, axis=1)"),
    ]
    changes = (
        {"num_seqs": 2, "num_blocks": 14, "max_blocks_per_seq": 9, "max_context_len": 140, "num_query_heads": 34}
        if operator == PAGED
        else {"batch_size": 2, "num_heads": 34, "cache_len": 150, "max_context_len": 140}
    )
    case = case_of(operator, **changes)
    inputs = spoil(operator, inputs_of(operator, case))
    for edit in [None, *MUTANTS[operator], *common]:
        solution = module(operator, "triton", *([edit] if edit else []))
        config = {"tokens": 16, "splits": 4, "warps": 4}
        status = found(operator, solution, config, inputs, case)[0]
        assert (status is Status.PASSED) == (edit is None), edit


TYPES = {torch.bfloat16: "*bf16", torch.int32: "*i32", torch.float32: "*fp32"}


@compiled
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@pytest.mark.parametrize("operator", OPERATORS)
@recalled_for("derby_{operator}_triton", compiler=triton.__version__)
def test_triton_compiles_without_spills(operator, target, monkeypatch):
    """The first choice of the smallest and the largest workload, as run_with() launches it."""
    solution, launches = module(operator, "triton"), []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *arguments, **options: launches.append((arguments, options))

    owner = solution if hasattr(solution, f"derby_{operator}") else solution.kernels
    kernel = getattr(owner, f"derby_{operator}")
    monkeypatch.setattr(owner, f"derby_{operator}", Kernel())
    workloads = sorted(CATALOG.workloads(operator), key=lambda one: one.cost.bytes_read)
    for workload in (workloads[0], workloads[-1]):
        arguments = meta_arguments(operator, workload)
        solution.run_with(solution.candidates(*arguments[:-1])[0], *arguments)
    monkeypatch.undo()
    assert len(launches) == 2
    for arguments, options in launches:
        signature = {
            name: TYPES[value.dtype] if isinstance(value, torch.Tensor) else {int: "i32", float: "fp32"}[type(value)]
            for name, value in zip(kernel.arg_names, arguments, strict=False)
        }
        how = {name: options.pop(name) for name in ("num_warps", "num_stages") if name in options}
        made = compile_kernel(kernel, signature, options, target, **how)
        assert "st.local" not in made.asm["ptx"] and made.metadata.shared <= 227 * 1024


SPILLED = {  # bytes: of 64 query heads of 512 sums each; of a page of 256 values ahead
    r"derby_latent_clustersILi8ELi32E": 120,
    r"paged_attention_decodeILi256ELi1ELb[01]ELb0E": 120,
}


@compiled
@pytest.mark.parametrize("operator, architecture", [(PAGED, "90a"), (LATENT, "90a"), (LATENT, "100a"), (BLOCKS, "90a")])
def test_cuda_compiles(operator, architecture):
    solution = module(operator, "sm90")
    library = owner_of(operator, solution).library
    kernels = nvcc.kernels_of(nvcc_of(solution), library.folder / library.source, architecture)
    name = f"derby_{operator}" if operator == PAGED else "derby_latent_"
    assert kernels and all(name in kernel.name for kernel in kernels)
    for kernel in kernels:
        allowed = next((most for part, most in SPILLED.items() if re.search(part, kernel.name)), 0)
        assert kernel.spilled <= allowed, kernel.name


@compiled
def test_cuda_of_stretches_compiles():
    solution = module(PAGED, "sm90")
    kernels = []
    for library in (solution.decode.long_library, solution.decode.other_library):
        kernels += nvcc.kernels_of(nvcc_of(solution), library.folder / library.source, part=library.source)
    assert len(kernels) == 12
    allowed = {"ILi256ELi2E": 120, "ILi192ELi2E": 8}  # 16 rows of so many sums
    for kernel in kernels:
        assert kernel.spilled <= max((most for part, most in allowed.items() if part in kernel.name), default=0), kernel


PAGED_LIBRARIES = "library", "long_library", "other_library", "wide_library"


@functools.cache
def on_cpu(operator, *edits):
    """derby_<operator>_sm90 with its kernel compiled by g++ and the CPU's decode_mma.cuh."""
    own = "import importlib\nimport os\n", "import importlib  # on the CPU\nimport os\n"
    solution = module(operator, "sm90", own, *edits)
    owner = owner_of(operator, solution)
    for name in PAGED_LIBRARIES if operator == PAGED else ("library",):
        setattr(owner, name, functions_on_cpu(getattr(owner, name), bool(edits)))
    if operator == PAGED:
        owner.processors = lambda device: 5
    return solution


def functions_on_cpu(library, edited):
    """A CudaLibrary's function for CPU tensors, compiled when it is first called."""

    @functools.cache
    def function():
        with tempfile.TemporaryDirectory() as folder:  # without those of its files that the CPU has its own of
            names = [name for name in library.sources if name != "decode_mma.cuh"]
            source, *headers = (Path(shutil.copy(library.folder / name, folder)) for name in names)
            how = FAST if edited else ("-O1",)
            return library.load(shared_library(source, *how, header="decode_mma.cuh", beside=headers))

    def call(device, *arguments):
        addresses = [value.data_ptr() if isinstance(value, torch.Tensor) else value for value in arguments]
        assert function()(*addresses, None) == 0, "cudaErrorInvalidValue"

    return call


@compiled
@pytest.mark.parametrize("order", ["", "reversed"])
@pytest.mark.parametrize("operator", OPERATORS)
@recalled_for("derby_{operator}_sm90")
def test_cuda_at_odd_sizes(operator, order, monkeypatch):
    """Every case in the first choice; a few more choices where the context is short."""
    monkeypatch.setenv("EMULATED_ORDER", order)
    solution = on_cpu(operator)
    for number, case in enumerate(cases_of(operator)[: 1 if order else None]):
        inputs = spoil(operator, inputs_of(operator, case))
        choices = solution.candidates(*inputs.values())
        if case.sizes.get("num_heads", 0) > 64:
            choices = [{"groups": 8, "tokens": 32, "splits": 2}]  # blocks write over data that others still read
        for config in choices[:4] if number == 0 else choices[:1]:
            assert found(operator, solution, config, inputs, case)[0] is Status.PASSED, (case.label, config)


# groups, tokens, splits, longest: every kernel, and blocks of a cluster with one tile and with several.
IN_BLOCKS = [
    (1, 32, 1, 31),
    (1, 32, 8, 200),
    (1, 64, 1, 64),
    (1, 64, 4, 193),
    (1, 16, 1, 90),
    (1, 16, 16, 300),
    (1, 32, 2, 330),
    (2, 16, 2, 100),
    (2, 32, 4, 300),
    (2, 64, 1, 200),
    (4, 32, 2, 130),
    (8, 32, 2, 130),
]


def ragged(longest, heads, size, device="cpu"):
    """(case, inputs) of contexts with no token, one, and up to `longest`, in blocks of `size` tokens."""
    lengths = [longest, 0, 1, longest // 2 + 1]
    width = -(-longest // size) + 1
    case = case_of(
        BLOCKS,
        batch_size=len(lengths),
        num_heads=heads,
        block_size=size,
        num_blocks=len(lengths) * width,
        max_blocks_per_seq=width,
        max_context_len=longest,
    )
    inputs = inputs_of(BLOCKS, case, device)
    order = torch.randperm(len(lengths) * width, generator=torch.Generator().manual_seed(1)).to(torch.int32)
    inputs["block_table"].copy_(order.view(len(lengths), width))
    inputs["context_lens"].copy_(torch.tensor(lengths))
    return case, spoil(BLOCKS, inputs)


def assert_right_in_blocks(solution, config, heads, size, longest, device="cpu"):
    case, inputs = ragged(longest, heads, size, device)
    outputs = [found(BLOCKS, solution, config, inputs, case, device) for _ in range(2)]
    assert outputs[0][0] is Status.PASSED, (config, heads, size, longest)
    assert not outputs[0][1]["output"][1].any()
    assert torch.equal(outputs[0][1]["output"], outputs[1][1]["output"])


@compiled
@pytest.mark.parametrize("number", range(len(IN_BLOCKS)))
@recalled_for(f"derby_{BLOCKS}_sm90")
def test_latent_clusters_in_blocks(number):
    """Empty contexts, NaN in slots that no token needs, table entries there that lead nowhere."""
    groups, tokens, splits, longest = IN_BLOCKS[number]
    config = {"groups": groups, "tokens": tokens, "splits": splits}
    heads, size = (31, 16, 1)[number % 3], (8, 16, 64, 128)[number % 4]
    assert_right_in_blocks(on_cpu(BLOCKS), config, heads if groups < 8 else 63, size, longest)


def test_latent_clusters_are_chosen_by_estimated_time(monkeypatch):
    for operator in (LATENT, BLOCKS):
        solution = module(operator, "sm90")
        monkeypatch.setattr(solution.latent_attention, "on_hopper", lambda device: True)

        def first(batch, heads, longest, chosen=solution.latent_clusters):
            return chosen.candidates(torch.empty(batch, heads, 576, device="meta"), longest)[0]

        for few in ((10, 128, 15), (30, 16, 1), (8, 16, 372), (63, 32, 17), (22, 64, 42)):
            assert "splits" in first(*few)
        assert first(4, 64, 513)["splits"] < 8  # 16 clusters of 8 come in two rounds
        for many in ((214, 64, 303), (64, 128, 4000), (127, 64, 123)):
            assert "workers" in first(*many)


STRETCHES = [
    {"head_dim": 64, "num_query_heads": 16, "num_kv_heads": 4},
    {"head_dim": 128, "num_query_heads": 5, "num_kv_heads": 1},
    {"head_dim": 128, "num_query_heads": 32, "num_kv_heads": 2},  # of 16 rows
    {"head_dim": 256, "num_query_heads": 16, "num_kv_heads": 2},
    {"head_dim": 256, "num_query_heads": 18, "num_kv_heads": 2},  # of pairs of warps
    {"head_dim": 256, "num_query_heads": 64, "num_kv_heads": 4},
    {"head_dim": 200, "num_query_heads": 26, "num_kv_heads": 2},
    {"head_dim": 248, "num_query_heads": 12, "num_kv_heads": 1},
    {"head_dim": 72, "num_query_heads": 2, "num_kv_heads": 2},  # of kernels for larger heads
    {"head_dim": 80, "num_query_heads": 20, "num_kv_heads": 2},
    {"head_dim": 96, "num_query_heads": 28, "num_kv_heads": 4},
    {"head_dim": 112, "num_query_heads": 16, "num_kv_heads": 8},
    {"head_dim": 112, "num_query_heads": 9, "num_kv_heads": 1},
    {"head_dim": 160, "num_query_heads": 5, "num_kv_heads": 1},
    {"head_dim": 192, "num_query_heads": 8, "num_kv_heads": 4},
    {"head_dim": 192, "num_query_heads": 12, "num_kv_heads": 1},
]


@compiled
@recalled_for(f"derby_{PAGED}_sm90")
def test_stretches_of_all_pages():
    """Ragged, with an empty sequence and one of a token, on 5 multiprocessors; counters are left at zero."""
    solution, sizes = on_cpu(PAGED), {"num_seqs": 5, "num_blocks": 40, "max_blocks_per_seq": 14, "max_context_len": 214}
    for changes in STRETCHES:
        case = case_of(PAGED, **sizes, **changes)
        inputs = inputs_of(PAGED, case)
        inputs["context_lens"].copy_(torch.tensor([214, 0, 1, 160, 33]))
        for together in {1, changes["num_kv_heads"]}:
            assert found(PAGED, solution, {"together": together}, spoil(PAGED, inputs), case)[0] is Status.PASSED, (
                changes
            )
    assert not next(iter(solution.decode.workspace.kept.values())).tensors[0].any()


@pytest.mark.parametrize(
    "sizes, first",
    [  # sequences, heads, key heads, head_dim, tokens: the fastest form on an H200, or one within 3 % of it
        ((32, 5, 1, 128, 2048), "8x4"),  # 16 blocks each would come in two rounds
        ((1, 16, 4, 128, 4096), "16x4"),
        ((16, 32, 8, 128, 2048), "1x8"),
        ((32, 12, 1, 128, 2048), "4x4"),
        ((1, 8, 1, 128, 32768), "long"),
        ((1, 16, 2, 64, 65536), "long"),
        ((16, 8, 2, 72, 32768), "long"),
        ((16, 8, 2, 56, 32768), "shares"),  # no kernel of stretches has such heads; not timed
        ((1, 14, 2, 256, 10740), "shares"),
        ((3, 24, 2, 192, 13038), "shares"),
        ((2, 32, 4, 256, 35489), "shares"),
        ((16, 16, 2, 208, 32768), "shares"),
        ((16, 18, 2, 208, 32768), "long"),
        ((3, 56, 8, 96, 91000), "long"),
        ((4, 128, 8, 80, 108000), "long"),
        ((31, 4, 4, 128, 27815), "long"),
        ((4, 32, 8, 128, 128), "4x2"),
    ],
)
def test_which_form_a_call_of_paged_decode_has(sizes, first):
    sequences, heads, kv_heads, head_dim, tokens = sizes
    query = torch.empty(sequences, heads, head_dim, device="meta")
    cache = torch.empty(sequences * -(-tokens // 16), 16, kv_heads, head_dim, device="meta")
    config = module(PAGED, "sm90").candidates(query, cache, cache, None, None, tokens, 1.0)[0]
    other = "shares" if "split" in config else "long" if "together" in config else None
    assert (other or f"{config['splits']}x{config['warps']}") == first


def test_only_hopper_has_equal_shares(monkeypatch):
    decode = module(PAGED, "sm90").decode
    query, cache = torch.empty(1, 14, 256, device="meta"), torch.empty(672, 16, 2, 256, device="meta")
    assert "split" in decode.candidates(query, cache, cache, None, None, 10740, 1.0)[0]
    monkeypatch.setattr(decode, "has_shares", lambda device: False)
    assert not any("split" in config for config in decode.candidates(query, cache, cache, None, None, 10740, 1.0))
    monkeypatch.undo()
    for major in (9, 10):
        decode.has_shares.cache_clear()
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, major=major: (major, 0))
        assert decode.has_shares(torch.device("cuda", 0)) == (major == 9)
    decode.has_shares.cache_clear()


def test_equal_shares_of_paged_decode(monkeypatch):
    """The kernel of attention_shares.cu gets one query token a sequence, and the cut that sharing.Shared makes."""
    solution, calls = module(PAGED, "sm90"), []
    decode = solution.decode
    monkeypatch.setattr(decode, "shares_library", lambda device, *arguments: calls.append(arguments))
    monkeypatch.setattr(decode, "processors", lambda device: 132)
    sizes = {"num_query_heads": 12, "num_kv_heads": 2, "max_blocks_per_seq": 70, "num_blocks": 210, "num_seqs": 3}
    case = case_of(PAGED, **sizes, max_context_len=1111)
    inputs, outputs = inputs_of(PAGED, case), outputs_of(PAGED, case)
    for split in (0, 1):
        decode.run_with({"split": split}, *inputs.values(), *outputs.values())
    for split, arguments in enumerate(calls):
        query, keys, values, rows, lengths, table, output, counters, parts, *numbers = arguments
        assert [query.data_ptr(), keys.data_ptr(), values.data_ptr(), table.data_ptr(), output.data_ptr()] == [
            given.data_ptr()
            for given in (
                *(inputs[name] for name in ("query", "key_cache", "value_cache", "block_table")),
                *outputs.values(),
            )
        ]
        assert rows[:4].tolist() == [0, 1, 2, 3] and lengths is inputs["context_lens"]
        call = decode.sharing.planning.Call(3, 3, 1, 1111, 12, 2, 128, True, 132)
        made = decode.sharing.Shared(call.works(decode.sharing.FEW)[split], 1.0).plan()
        cut = [made.split, made.pack, made.overhead, made.again, made.least, made.trusting]
        assert numbers == [3, 210, 3, 70, 12, 2, 128, inputs["sm_scale"], *cut, 132]
        assert len(counters) >= 2 and len(parts) >= made.floats


@functools.cache
def unified_on_cpu():
    """derby_unified_attention_sm90 with the kernels of paged decode alone; any other call of it fails."""
    own = "import importlib\nimport os\n", "import importlib\nimport os  # on the CPU\n"
    solution = module("unified_attention", "sm90", own)
    decode = solution.paged_decode
    for name in PAGED_LIBRARIES:
        setattr(decode, name, functions_on_cpu(getattr(decode, name), False))
    decode.processors = solution.planning.processors = lambda device: 5
    return solution


@compiled
@pytest.mark.parametrize(
    "sizes",
    [  # sequences, heads, key heads, head_dim, tokens of the longest
        (5, 8, 2, 128, 100),
        (3, 14, 2, 128, 700),
        (4, 8, 8, 64, 300),
        (2, 6, 2, 80, 200),
        (2, 16, 1, 256, 400),
        (3, 12, 2, 96, 700),
    ],
)
@recalled_for("derby_unified_attention_sm90")
def test_one_token_a_sequence_of_unified_attention_is_paged_decode(sizes):
    sequences, heads, kv_heads, head_dim, tokens = sizes
    solution, operator, width = unified_on_cpu(), "unified_attention", -(-tokens // 16)
    case = case_of(
        operator,
        num_tokens=sequences,
        num_seqs=sequences,
        len_cu_seqlens=sequences + 1,
        num_blocks=sequences * width,
        max_blocks_per_seq=width + 1,
        num_query_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_query_len=1,
        max_seq_len=tokens,
        sm_scale=head_dim**-0.5,
    )
    inputs, outputs = inputs_of(operator, case), outputs_of(operator, case)
    solution.run(*inputs.values(), *outputs.values())
    assert judge(CATALOG.definition(operator), reference(operator), inputs, outputs).status is Status.PASSED


@pytest.mark.parametrize(
    "sizes, is_clusters",
    [  # sequences, heads, key heads, head_dim, tokens: clusters where starting stretches costs more than they save
        ((16, 32, 8, 128, 1024), True),
        ((1, 32, 8, 128, 4096), True),
        ((64, 32, 8, 64, 8192), False),
        ((1, 32, 8, 128, 131072), False),
        ((256, 16, 16, 128, 2048), False),
    ],
)
def test_which_form_a_decode_call_of_unified_attention_has(sizes, is_clusters):
    sequences, heads, kv_heads, head_dim, tokens = sizes
    run = load_solution(CATALOG.definition("unified_attention"), CATALOG.solution("derby_unified_attention_sm90"))
    solution = sys.modules[run.__module__]
    query = torch.empty(sequences, heads, head_dim, device="meta")
    cache = torch.empty(sequences * -(-tokens // 16), 16, kv_heads, head_dim, device="meta")
    assert ("splits" in solution.choose(query, cache, cache, None, None, tokens, 1.0)) == is_clusters


# Where the mutants are: operator, case, configuration, edits.
CUDA_MUTANTS = {
    "paged_decode.cu": (
        PAGED, {"num_seqs": 2, "num_blocks": 14, "max_blocks_per_seq": 9, "max_context_len": 140},
        {"splits": 2, "warps": 2, "sliced": 0}, [
            ("left ? s[i][h] * given.scale", "left - 1 ? s[i][h] * given.scale"),
            ("\n        sum[n][h] = sum[n][h] * factor[h]", "\n        sum[n][h] = sum[n][h]"),
            ("share(both.x, whole)", "1"),
            ("int part = split * warps + warp;", "int part = warp;"),
            ("table_width, sm_scale * LOG2E", "table_width, sm_scale"),
        ]),
    "one_page.cuh": (
        PAGED, {"num_seqs": 2, "num_blocks": 7, "max_blocks_per_seq": 5, "max_context_len": 61},
        {"splits": 2, "warps": 2, "sliced": 0}, [
            ("left ? s[i][h] * a.scale", "left - 1 ? s[i][h] * a.scale"),
            ("i / 2 * 8 >= left;", "i / 2 * 8 > left;"),
            ("exp2_approx(both[p].x - whole)", "1"),
            ("SLICED ? warp : block * W + warp", "warp"),
            ("PAGE * token * 2", "PAGE * token"),
        ]),
    "one_page.cuh, sliced": (
        PAGED, {"num_seqs": 2, "num_blocks": 14, "max_blocks_per_seq": 9, "max_context_len": 125},
        {"splits": 4, "warps": 8, "sliced": 1}, [
            ("(SLICED ? block * S::DIMS : 0) + 2 * WORDS", "2 * WORDS"),
            ("(SLICED ? block * S::DIMS : 0) + dim", "dim"),
            ("free) value[k / WORDS]", "false) value[k / WORDS]"),
        ]),
    "paged_decode_long.cu": (
        PAGED, {"num_seqs": 2, "num_blocks": 14, "max_blocks_per_seq": 9, "max_context_len": 140}, {"together": 1}, [
            ("one_query() ? walk.sequence :", "one_query() ? 0 :"),
            ("float factor = share(its.x, both.x);", "float factor = 1;"),
        ]),
    "paged_decode_other.cu": (
        PAGED, {"num_seqs": 2, "num_blocks": 14, "max_blocks_per_seq": 9, "max_context_len": 140, "head_dim": 80},
        {"together": 2}, [
            ("at % 16 / width * 4", "at % 16 / 8 * 4"),
            ("i % 2 * width + quad", "i % 2 * 8 + quad"),
            ("if (inside(dim)) *reinterpret_cast<uint2*>(to +", "if (inside(dim + 8)) *reinterpret_cast<uint2*>(to +"),
            ("index / VECTORS;", "lane / VECTORS;"),
        ]),
    "latent_clusters.cuh": (
        LATENT, {"batch_size": 2, "cache_len": 150, "max_context_len": 145}, {"groups": 1, "tokens": 16, "splits": 2}, [
            ("token + 1 < length ? both.y", "token + 1 <= length ? both.y"),
            ("sum[n] *= factor;", ""),
            ("cp_async_wait_group<1>();", ""),
            ("share(first.x, whole.x)", "1"),
            ("stage ^= 1;", ""),
            ("for (int row = last + warp; row < T;", "for (int row = T; row < T;"),
        ]),
    "latent_one_tile.cuh": (
        LATENT, {"batch_size": 2, "cache_len": 150, "max_context_len": 145}, {"groups": 1, "tokens": 64, "splits": 4}, [
            ("token + 1 < length ? s[i].y", "token + 1 <= length ? s[i].y"),
            ("sum += s[i].x + s[i].y;", "sum += s[i].x;"),
            ("0 : exp2_approx(statistic[b].x - whole.x)", "0 : 1"),
            ("&= keep, ", "&= ~0u, "),
            ("min(start + row + warp, a.longest - 1)", "min(row + warp, a.longest - 1)"),
        ]),
    "latent_clusters.cuh in blocks": (
        BLOCKS, {"batch_size": 2, "num_blocks": 20, "max_blocks_per_seq": 11, "max_context_len": 165},
        {"groups": 1, "tokens": 16, "splits": 2}, [
            ("look_up(next + given.splits);", "look_up(next);"),
            ("bool valid = token < end;", "bool valid = token <= end;"),
            ("(token >> given.page_bits));", "0);"),
            ("(token & (given.slots - 1));", "0;"),
        ]),
    "latent_one_tile.cuh in blocks": (
        BLOCKS, {"batch_size": 2, "num_blocks": 22, "max_blocks_per_seq": 11, "max_context_len": 165},
        {"groups": 1, "tokens": 64, "splits": 4}, [
            ("(token >> a.page_bits));", "0);"),
            ("(token & (a.slots - 1));", "0;"),
            ("unsigned(a.table_width)", "0u"),
        ]),
}  # fmt: skip


@compiled
@pytest.mark.parametrize("where", CUDA_MUTANTS)
@recalled_for(*(f"derby_{operator}_sm90" for operator in (*OPERATORS, BLOCKS)))
def test_cuda_mutants_fail(where):
    operator, changes, config, edits = CUDA_MUTANTS[where]
    case = case_of(operator, **changes)
    inputs = spoil(operator, inputs_of(operator, case))
    for edit in [None, *share_of(edits)]:
        status = found(operator, on_cpu(operator, *([edit] if edit else [])), config, inputs, case)[0]
        assert (status is Status.PASSED) == (edit is None), edit


# Contexts of every kernel: a page a warp in clusters and sliced, a tile a block, and the loops.
KERNELS = {
    PAGED: [(61, {"splits": 4, "warps": 1, "sliced": 0}), (125, {"splits": 1, "warps": 8, "sliced": 0}),
            (125, {"splits": 8, "warps": 1, "sliced": 0}), (125, {"splits": 2, "warps": 8, "sliced": 1}),
            (125, {"splits": 2, "warps": 2, "sliced": 0}), (125, {"splits": 1, "warps": 1, "sliced": 0}),
            (125, {"together": 1})],
    LATENT: [(61, {"groups": 1, "tokens": 64, "splits": 1}), (61, {"groups": 1, "tokens": 32, "splits": 2}),
             (61, {"groups": 1, "tokens": 16, "splits": 2}), (61, {"groups": 2, "tokens": 32, "splits": 1})],
}  # fmt: skip


@compiled
@pytest.mark.parametrize("operator", OPERATORS)
@recalled_for("derby_{operator}_sm90")
def test_cuda_with_an_empty_sequence(operator):
    """Which the definition leaves out: zeros, beside sequences of one token and of whole pages."""
    sizes = {"num_seqs": 4, "num_blocks": 32, "max_blocks_per_seq": 10} if operator == PAGED else {"batch_size": 4}
    for longest, config in KERNELS[operator]:
        more = {"cache_len": longest + 5} if operator == LATENT else {}
        case = case_of(operator, **sizes, **more, max_context_len=longest)
        inputs = inputs_of(operator, case)
        inputs["context_lens"].copy_(torch.tensor([longest, 0, 1, 48]))
        status, outputs = found(operator, on_cpu(operator), config, spoil(operator, inputs), case)
        assert status is Status.PASSED, (longest, config)
        assert not outputs["output"][1].any()


@pytest.mark.parametrize("operator", OPERATORS)
def test_cuda_launches_nothing_without_a_query(operator):
    """No query returns at once."""
    solution = module(operator, "sm90")
    empty = next(case for case in cases_of(operator) if 0 in case.sizes.values())
    solution.run(*inputs_of(operator, empty).values(), *outputs_of(operator, empty).values())


@pytest.mark.parametrize("operator", [*OPERATORS, BLOCKS])
def test_all_sources_are_named(operator):
    sources = CATALOG.solution(f"derby_{operator}_sm90").sources
    solution = module(operator, "sm90")
    owner = owner_of(operator, solution)
    names = (*PAGED_LIBRARIES[1:], "shares_library") if operator == PAGED else ("workers", "uncut")
    others = [getattr(owner, name) for name in names]
    assert all(getattr(solution, name) is getattr(owner, name) for name in ("library", *names)), "built ahead"
    named = {*owner.library.sources, *(name for other in others for name in other.sources)}
    assert named == {path for path in sources if path.endswith((".cu", ".cuh"))}


# On a GPU -------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("language", ["sm90", "triton"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_candidate_on_a_gpu(operator, language):
    """At small and odd sizes, at every workload, and at contexts of several tiles a warp."""
    definition, solution = CATALOG.definition(operator), module(operator, language)
    long = (
        {"num_seqs": 3, "num_blocks": 700, "max_blocks_per_seq": 300, "max_context_len": 4800}
        if (operator == PAGED)
        else {"batch_size": 3, "num_heads": 72, "cache_len": 3000, "max_context_len": 2999}
    )
    cases = [*cases_of(operator), case_of(operator, **long)]
    cases += [case_of_workload(definition, workload) for workload in CATALOG.workloads(operator)]
    for case in cases:
        inputs = inputs_of(operator, case, "cuda")
        for config in solution.candidates(*inputs.values()):
            status, outputs = found(operator, solution, config, inputs, case, "cuda")
            assert status is Status.PASSED, (case.label, config)
            again = found(operator, solution, config, inputs, case, "cuda")[1]
            assert torch.equal(outputs["output"], again["output"]), f"{case.label}, {config}: another result"


@pytest.mark.gpu
@pytest.mark.parametrize("changes", STRETCHES, ids=str)
def test_stretches_on_a_gpu(changes):
    """Every number of key heads together, ragged, with pages for all multiprocessors and for a few."""
    solution = module(PAGED, "sm90")
    for longest, lengths in ((214, [214, 0, 1, 160, 33]), (9000, [9000, 4242, 1, 0, 777])):
        width = -(-longest // 16)
        sizes = {"num_blocks": 5 * width, "max_blocks_per_seq": width + 1, "max_context_len": longest}
        case = case_of(PAGED, num_seqs=5, **sizes, **changes)
        inputs = inputs_of(PAGED, case, "cuda")
        inputs["context_lens"].copy_(torch.tensor(lengths))
        spoil(PAGED, inputs)
        warps = 8 if changes["head_dim"] <= 128 else 4
        for together in (count for count in (1, 2, 4, 8) if changes["num_kv_heads"] % count == 0 and count <= warps):
            config = {"together": together}
            status, outputs = found(PAGED, solution, config, inputs, case, "cuda")
            assert status is Status.PASSED, (longest, together)
            assert torch.equal(outputs["output"], found(PAGED, solution, config, inputs, case, "cuda")[1]["output"])
    assert not any(space.tensors[0].any() for space in solution.decode.workspace.kept.values())


@pytest.mark.gpu
@pytest.mark.parametrize("language", ["sm90", "triton"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_tails_do_not_count_on_a_gpu(operator, language):
    solution = module(operator, language)
    for case in cases_of(operator):
        inputs = spoil(operator, inputs_of(operator, case, "cuda"))
        config = solution.candidates(*inputs.values())[0]
        assert found(operator, solution, config, inputs, case, "cuda")[0] is Status.PASSED, case.label


@pytest.mark.gpu
@pytest.mark.parametrize("language", ["sm90", "triton"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_captured_on_a_gpu(operator, language):
    """A replay reads what lies in the inputs then."""
    solution, case = module(operator, language), case_of(operator)
    inputs, outputs = inputs_of(operator, case, "cuda"), outputs_of(operator, case, "cuda")
    solution.run(*inputs.values(), *outputs.values())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        solution.run(*inputs.values(), *outputs.values())
    inputs["query"].mul_(-0.5)
    inputs["context_lens"].clamp_(max=17)
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        assert judge(CATALOG.definition(operator), reference(operator), inputs, outputs).status is Status.PASSED


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("heads", [1, 16, 31, 128])
def test_every_candidate_in_blocks_on_a_gpu(heads):
    """Contexts of no token, one and more in blocks of 8 to 64; NaN in free slots; the same bits in a second call."""
    solution = module(BLOCKS, "sm90")
    for size in (8, 16, 64):
        for longest in (2, 61, 320, 1100, 4500):
            inputs = ragged(longest, heads, size, "cuda")[1]
            for config in solution.candidates(*inputs.values()):
                assert_right_in_blocks(solution, config, heads, size, longest, "cuda")


@pytest.mark.gpu
def test_clusters_in_blocks_captured_on_a_gpu():
    """A replay reads the lengths and the table that lie in the inputs then."""
    solution = module(BLOCKS, "sm90")
    case, inputs = ragged(300, 16, 16, "cuda")
    outputs = outputs_of(BLOCKS, case, "cuda")
    assert "splits" in solution.choose(*inputs.values())
    solution.run(*inputs.values(), *outputs.values())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        solution.run(*inputs.values(), *outputs.values())
    table = inputs["block_table"]
    table[0, :4] = table[0, :4].flip(0)
    inputs["context_lens"].copy_(torch.tensor([63, 0, 1, 17]))
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        assert judge(CATALOG.definition(BLOCKS), reference(BLOCKS), inputs, outputs).status is Status.PASSED
