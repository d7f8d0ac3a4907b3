"""The kernel of derby_unified_attention_sm90 for few query tokens a sequence over long contexts: it compiles, and is
right on the CPU (its PTX replaced by cuda_on_host/decode_mma.cuh) at odd sizes, where mutants fail; on a GPU too."""

import dataclasses
import functools
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nvcc
import pytest
import torch
from on_host import FAST, nvcc_of, recalled_for, share_of, shared_library
from rowwise_cases import CATALOG, case_of, inputs_of, outputs_of, reference

from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

NAME = "unified_attention"
MOST_ERROR = 0.0026  # norm of FlashAttention 3's error over the result's, on its worst shape


def sizes(sequences, tokens, queries, most, heads, kv_heads, blocks=None, head_dim=128):
    """Axes of a batch: `queries` the longest query, `most` the longest sequence; blocks: of all, or as many as fit."""
    width = -(-most // 16)
    return {
        "num_tokens": tokens,
        "num_seqs": sequences,
        "len_cu_seqlens": sequences + 1,
        "num_blocks": sequences * width if blocks is None else blocks,
        "max_blocks_per_seq": width + 1,
        "num_query_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "max_query_len": queries,
        "max_seq_len": most,
        "sm_scale": head_dim**-0.5,
    }


MANY_PARTS = sizes(1, 1, 1, 2290, 8, 8)  # on 80 multiprocessors 72, so that they are added in two steps
ALONE = sizes(1, 1, 1, 650, 8, 8)
TWO = sizes(2, 2, 1, 1500, 8, 8, blocks=120)  # of other lengths: stretches cannot begin anew with the second
LAST_TOKEN = sizes(3, 6, 2, 33, 8, 1)  # alone in its page, which the token before does not see
SEVERAL = sizes(5, 11, 4, 300, 8, 2, blocks=60)
# (axes, multiprocessors): decode; several tokens; heads that share a CTA and that do not; more sequences than
# multiprocessors, some shorter than a page.
CASES = [
    (sizes(5, 5, 1, 300, 8, 2, blocks=60), 7),
    (SEVERAL, 3),
    (SEVERAL, 24),
    (sizes(5, 11, 3, 200, 5, 1, blocks=40), 3),
    (MANY_PARTS, 80),
    (ALONE, 24),
    (TWO, 30),
    (sizes(2, 2, 1, 1500, 32, 8), 50),
    (LAST_TOKEN, 3),
    (sizes(2, 4, 2, 150, 12, 3), 7),
    (sizes(25, 40, 2, 130, 16, 2, blocks=60), 7),
    (sizes(3, 3, 1, 130, 16, 16, blocks=16), 3),
]


# Of decode_wide.cu: pairs of warps, one of them without a row where a sequence has one token; 8 rows; every head size,
# exact and padded.
PAIRS = sizes(5, 7, 2, 300, 14, 2, blocks=60, head_dim=256)
PADDED_PAIRS = sizes(4, 11, 4, 150, 8, 2, blocks=36, head_dim=200)
MANY_PARTS_OF_PAIRS = sizes(1, 1, 1, 1150, 36, 4, head_dim=256)
WIDE_CASES = [
    (PAIRS, 3),
    (PAIRS, 24),
    (PADDED_PAIRS, 7),
    (MANY_PARTS_OF_PAIRS, 72),
    (sizes(3, 8, 3, 33, 5, 1, head_dim=248), 3),
    (sizes(25, 40, 2, 70, 16, 2, blocks=60, head_dim=192), 7),
    (sizes(3, 6, 3, 170, 10, 2, blocks=30, head_dim=136), 5),
    (sizes(3, 6, 3, 170, 4, 2, blocks=30, head_dim=256), 5),
    (sizes(3, 6, 3, 90, 2, 1, blocks=17, head_dim=216), 5),
    (sizes(3, 6, 3, 170, 4, 2, blocks=30, head_dim=160), 5),
    (sizes(4, 9, 4, 200, 16, 4, blocks=40, head_dim=64), 7),
    (sizes(4, 9, 4, 200, 4, 4, blocks=40, head_dim=64), 7),
    (sizes(3, 6, 3, 170, 10, 2, blocks=30, head_dim=96), 5),
    (sizes(3, 6, 3, 170, 4, 2, blocks=30, head_dim=80), 5),
    (sizes(3, 6, 3, 170, 10, 2, blocks=30, head_dim=112), 5),
    (sizes(3, 6, 3, 170, 4, 2, blocks=30, head_dim=104), 5),
]


class Workspace:
    """Memory that holds no number, and counters that a call must leave as it finds them."""

    def __init__(self):
        self.counters = torch.zeros(4096, dtype=torch.int32)

    def __call__(self, device, needed):
        assert needed.counters <= len(self.counters)
        return self.counters, torch.full((needed.floats,), float("nan"))


@functools.cache
def module(*edits):
    """The solution's module, its sources edited (old, new)."""
    solution = CATALOG.solution("derby_unified_attention_sm90")
    sources = dict(solution.sources)
    others = "one_page.cuh", *(path for path in sources if path.startswith("paged_decode"))  # of another test
    for old, new in edits:
        (holder,) = (path for path, text in sources.items() if old in text and path not in others)
        sources[holder] = sources[holder].replace(old, new)
    run = load_solution(CATALOG.definition(NAME), dataclasses.replace(solution, sources=sources))
    return sys.modules[run.__module__]


@functools.cache
def on_cpu(*edits):
    """The module with its kernel compiled by g++ and the CPU's decode_mma.cuh."""
    solution = module(("import importlib\nimport os\n", "import importlib  # on the CPU\nimport os\n"), *edits)
    how = FAST if edits else ("-O1",)
    solution.decode_library = function_on_cpu(solution.decode_library, how)
    solution.wide_library = function_on_cpu(solution.wide_library, how)
    solution.workspace = Workspace()
    solution.MOST_SHORT = {}
    solution.spreads_pages = lambda *sizes: True
    solution.is_decode = lambda *sizes: False
    return solution


def function_on_cpu(library, how):
    """A CudaLibrary's function for CPU tensors, compiled when it is first called."""

    @functools.cache
    def function():
        with tempfile.TemporaryDirectory() as folder:  # without those of its files that the CPU has its own of
            names = [name for name in library.sources if name not in ("decode_mma.cuh", "ptx.cuh", "tma.cuh")]
            source, *headers = (Path(shutil.copy(library.folder / name, folder)) for name in names)
            return library.load(shared_library(source, *how, header="decode_mma.cuh", beside=headers))

    def call(device, *arguments):
        addresses = [value.data_ptr() if isinstance(value, torch.Tensor) else value for value in arguments]
        assert function()(*addresses, None) == 0, "cudaErrorInvalidValue"

    return call


def passes(solution, changes, device="cpu"):
    """Whether a call's output is right: within the tolerances, and as near as FlashAttention 3's."""
    case = case_of(NAME, **changes)
    inputs, outputs = inputs_of(NAME, case, device), outputs_of(NAME, case, device)
    spoil(inputs)
    solution.run(*inputs.values(), *outputs.values())
    wanted = reference(NAME).run(*inputs.values()).double()
    error = float((outputs["output"].double() - wanted).norm() / wanted.norm())
    verdict = judge(CATALOG.definition(NAME), reference(NAME), inputs, outputs)
    return verdict.status is Status.PASSED and error <= MOST_ERROR


def spoil(inputs):
    """Values that would show, where a sequence ends and in blocks that its table only seems to name."""
    for sequence, length in enumerate(inputs["seq_lens"].tolist()):
        block, used = inputs["block_table"][sequence, (length - 1) // 16], (length - 1) % 16 + 1
        inputs["key_cache"][block, used:], inputs["value_cache"][block, used:] = 30, float("nan")


def divisors(changes):
    """Numbers of key heads that a multiprocessor may read."""
    counts = (1, 2, 4, 8) if changes["head_dim"] <= 128 else (1, 2, 4)
    return [together for together in counts if changes["num_kv_heads"] % together == 0]


@pytest.mark.parametrize("order", ["", "reversed"])
@recalled_for(f"derby_{NAME}_sm90")
def test_odd_sizes(order, monkeypatch):
    monkeypatch.setenv("EMULATED_ORDER", order)
    solution = on_cpu()
    for changes, processors in [*CASES[1:6:3], *WIDE_CASES[:5]] if order else [*CASES, *WIDE_CASES]:
        monkeypatch.setattr(solution.planning, "processors", lambda device, processors=processors: processors)
        for together in divisors(changes)[::-3]:
            monkeypatch.setattr(solution, "key_heads_together", lambda *sizes, together=together: together)
            assert passes(solution, changes), (changes, processors, together)
            assert not solution.workspace.counters.any(), (changes, processors, together)


MUTANTS = [
    ("if (lane + 32 * k < count) factors[(lane + 32 * k) * ODD + place] = factor;", ""),
    ("const int part = lane + 32 * k;", "const int part = lane;"),
    ("even = all_laid * head_groups <= ctas * chunk;", ""),
    ("group * each;", "group * piece.pages;"),
    ("cp_async_wait_group<PLACES - 1>();", "cp_async_wait_group<PLACES>();"),
    ("quad + 8 * i < left - hidden[n][h]", "quad + 8 * i < left"),
    ("sum[n][h] * factor[h] + s[0][h]", "sum[n][h] + s[0][h]"),
    ("greatest == -INFINITY ? 0.f : greatest", "greatest"),
    ("const float factor = share(its.x, both.x);", "const float factor = 1;"),
    ("2 * (first + which) + (which == 0)", "2 * (first + which)"),
    ("again ? 2 * gridDim.x : 0,", "0,"),
    ("= upcoming >= 0 ? upcoming :", "= upcoming >= 0 ? 0 :"),
    ("factors[(first + i) * ODD + place[k]]", "factors[first * ODD + place[k]]"),
]


MUTANTS_ON = [(LAST_TOKEN, 24, 1), (SEVERAL, 24, 2), (ALONE, 24, 4), (TWO, 30, 8), (MANY_PARTS, 80, 8)]


@recalled_for(f"derby_{NAME}_sm90")
def test_mutants_fail(monkeypatch):
    monkeypatch.setenv("EMULATED_ORDER", "reversed")  # a CTA's second part comes before others have added its first
    for edit in [None, *share_of(MUTANTS)]:
        solution = on_cpu(*([edit] if edit else []))
        solution.workspace, right = Workspace(), True
        for changes, processors, together in MUTANTS_ON:
            monkeypatch.setattr(solution.planning, "processors", lambda device, processors=processors: processors)
            monkeypatch.setattr(solution, "key_heads_together", lambda *sizes, together=together: together)
            right = right and passes(solution, changes) and not solution.workspace.counters.any()
        assert right == (edit is None), edit


# In addition to those above, of what pairs of warps share.
MUTANTS_OF_PAIRS = [
    ("else named_barrier_sync(FIRST_TEAM + team, 32 * TEAM);", ""),
    ("half * (PAGE / TEAM) + i", "i"),
    ("8 * OWN * half < rows;", "half == 0;"),
    ("const int row = 8 * (OWN * half + n) + quad", "const int row = 8 * n + quad"),
    ("(8 * (OWN * half + n) + 2 * corner + h) / given.group", "(8 * n + 2 * corner + h) / given.group"),
    ("tile_ahead += TEAMS / given.together;", "tile_ahead += WARPS / given.together;"),
]
PAIRS_ON = [(PAIRS, 24, 2), (PADDED_PAIRS, 7, 1)]


@recalled_for(f"derby_{NAME}_sm90")
def test_mutants_of_pairs_fail(monkeypatch):
    for edit in [None, *share_of(MUTANTS_OF_PAIRS)]:
        solution = on_cpu(*([edit] if edit else []))
        solution.workspace, right = Workspace(), True
        for changes, processors, together in PAIRS_ON:
            monkeypatch.setattr(solution.planning, "processors", lambda device, processors=processors: processors)
            monkeypatch.setattr(solution, "key_heads_together", lambda *sizes, together=together: together)
            right = right and passes(solution, changes)
        assert right == (edit is None), edit


@pytest.mark.parametrize(
    "sequences, longest, kv_heads, together",
    [
        (1, 131072, 8, None),  # equal shares are as good
        (4, 32768, 1, None),
        (12, 10000, 8, None),
        (12, 16384, 8, 2),
        (12, 52518, 8, 2),
        (64, 2048, 5, None),
        (64, 8192, 8, 4),  # few enough parts for a multiprocessor not to go through many
        (256, 2048, 16, None),
        (256, 4096, 16, 8),
        (3000, 4096, 6, 2),
    ],
)
def test_which_calls_it_takes(sequences, longest, kv_heads, together):
    solution = module()
    assert solution.spreads_pages(sequences, longest, kv_heads, 128) == (together is not None)
    if together is not None:
        assert solution.key_heads_together(sequences, longest, kv_heads, 132) == together


@pytest.mark.parametrize(
    "sequences, longest, kv_heads, head_dim, takes",
    [  # keys count by their bytes; of larger heads equal shares are faster
        (113, 9500, 2, 256, False),
        (113, 9500, 2, 64, True),
        (54, 9500, 2, 64, False),
        (113, 9500, 1, 96, False),
        (113, 9500, 2, 96, True),
        (113, 9500, 8, 192, False),
    ],
)
def test_which_drafts_of_other_heads_it_takes(sequences, longest, kv_heads, head_dim, takes):
    assert module().spreads_pages(sequences, longest, kv_heads, head_dim) == takes


def test_sizes_of_heads():
    solution = module()
    sizes = {64: 64, 72: 96, 96: 96, 104: 128, 128: 128, 136: 192, 192: 192, 200: 256, 256: 256, 56: None}
    assert {head_dim: solution.few_rows_size(head_dim) for head_dim in sizes} == sizes


@pytest.mark.parametrize("library, count", [("decode_library", 2), ("wide_library", 12)])
def test_it_compiles(library, count):
    solution = module()
    library = getattr(solution, library)
    kernels = nvcc.kernels_of(nvcc_of(solution), library.folder / library.source)
    assert [kernel.spilled for kernel in kernels if "derby_decode_attention" in kernel.name] == [0] * count


# On a GPU -------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_on_a_gpu(monkeypatch):
    monkeypatch.setattr(module(), "MOST_SHORT", {})
    monkeypatch.setattr(module(), "spreads_pages", lambda *sizes: True)
    for changes in [
        *(changes for changes, _ in CASES + WIDE_CASES),
        sizes(64, 170, 4, 8192, 32, 8, blocks=17000),
        sizes(1, 1, 1, 131072, 32, 8),
        sizes(1, 1, 1, 131072, 16, 1),
        sizes(8, 8, 1, 32768, 64, 8, blocks=16000),
        sizes(300, 300, 1, 2000, 16, 1, blocks=9000),
        sizes(64, 120, 2, 8192, 14, 2, blocks=17000, head_dim=256),
        sizes(1, 2, 2, 65536, 8, 1, head_dim=256),
        sizes(300, 450, 3, 1000, 5, 1, blocks=9000, head_dim=224),
    ]:
        for together in divisors(changes):
            monkeypatch.setattr(module(), "key_heads_together", lambda *sizes, together=together: together)
            assert passes(module(), changes, "cuda"), (changes, together)


@pytest.mark.gpu
def test_captured_on_a_gpu():
    """A replay reads what lies in the inputs then, and gives the same every time."""
    solution, case = module(), case_of(NAME, **sizes(19, 19, 1, 5000, 32, 8, blocks=2000))
    inputs, outputs = inputs_of(NAME, case, "cuda"), outputs_of(NAME, case, "cuda")
    solution.run(*inputs.values(), *outputs.values())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        solution.run(*inputs.values(), *outputs.values())
    inputs["query"].mul_(-0.5)
    inputs["seq_lens"].clamp_(max=417)
    found = []
    for _ in range(3):
        graph.replay()
        found.append(outputs["output"].clone())
    wanted = reference(NAME).run(*inputs.values()).double()
    assert float((found[0].double() - wanted).norm() / wanted.norm()) <= MOST_ERROR
    assert all(torch.equal(found[0], each) for each in found)


# racecheck misses a barrier of all threads that follows one of some (tests/data/racecheck.cu: a right program that it
# reports). A barrier of the pairs before that of all shows it the latter.
SEEN_BY_RACECHECK = [
    (text, text.replace("__syncthreads();", "sync_team(), __syncthreads();"))
    for text in (
        "        __syncthreads();\n        const bool whole",
        "        __syncthreads();\n        if (threadIdx.x == 0) {\n            __threadfence();",
        "        __syncthreads();\n        return shared.last;",
        "        if (whole) {\n            __syncthreads();",
        "        __syncthreads();  // the next piece's outputs go where the factors lie",
        "            if (lane == 0) wholes[place] = {most, sum};\n        }\n        __syncthreads();",
    )
]


@recalled_for(f"derby_{NAME}_sm90")
def test_what_racecheck_sees_is_right(monkeypatch):
    solution = on_cpu(*SEEN_BY_RACECHECK)
    monkeypatch.setattr(solution.planning, "processors", lambda device: 24)
    for changes in (PAIRS, SEVERAL):
        assert passes(solution, changes), changes


SANITIZED = """
import sys
sys.path[:0] = {folders!r}
import test_few_rows_attention as tests
solution = tests.module(*{edits!r})
solution.MOST_SHORT, solution.spreads_pages = {{}}, lambda *sizes: True
for changes in (tests.MANY_PARTS, tests.TWO, tests.SEVERAL, tests.LAST_TOKEN, tests.PAIRS, tests.PADDED_PAIRS):
    assert tests.passes(solution, changes, "cuda"), changes
"""


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_the_sanitizer_finds_nothing(tool):
    """Parts added in two steps and in one, sequences that share a CTA, pages that a token does not see."""
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not shutil.which(sanitizer):
        pytest.skip("no compute-sanitizer on the PATH or in /usr/local/cuda/bin")
    edits = SEEN_BY_RACECHECK if tool == "racecheck" else []
    script = SANITIZED.format(folders=[str(folder) for folder in Path(__file__).resolve().parents[:3]], edits=edits)
    command = [sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
