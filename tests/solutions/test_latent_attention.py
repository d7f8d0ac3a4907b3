"""Latent attention of serving batches (common/latent_*): the plan and the kernels on the CPU, with mutants; compiled;
on a GPU at odd shapes."""

import ctypes
import dataclasses
import functools
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nvcc
import on_host
import pytest
import torch
from interpreted import compiled
from rowwise_cases import CATALOG, case_of, inputs_of, outputs_of, reference

from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

DENSE, PAGED = OPERATORS = ("mla_decode_attention", "mla_paged_decode_attention")
SOLUTIONS = {DENSE: "derby_mla_decode_attention_sm90", PAGED: "derby_mla_paged_decode_attention_sm90"}
COMMON = CATALOG.root / "solutions" / "kernelderby" / "common"
HOPPER = on_host.HEADERS / "hopper"
TILE = 64


# The plan -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """plan(lengths, workers, overhead, least, snap) -> [(first, first_tile, end, end_tile)] of each worker."""
    return plan_of(tmp_path_factory.mktemp("plan"))


@pytest.fixture(scope="module")
def plan_uncut(tmp_path_factory):
    """The same of latent_uncut.cu."""
    return plan_of(tmp_path_factory.mktemp("plan"), "-DLATENT_UNCUT")


def plan_of(folder, *flags):
    source = folder / "latent_plan.cu"
    text = (CATALOG.root / "tests" / "solutions" / "latent_plan.cu").read_text()
    for name in ("latent_plan.cuh", "cluster.cuh"):
        text = text.replace(name.partition(".")[0].upper(), str(COMMON / name))
    source.write_text(text)
    beside = [COMMON / "latent_plan.cuh", COMMON / "lanes.cuh"]
    made = on_host.shared_library(source, *on_host.SANITIZED, *flags, beside=beside)
    function = ctypes.CDLL(str(made)).latent_plan_run

    def call(lengths, workers, overhead, least, snap):
        lens = torch.tensor(lengths, dtype=torch.int32)
        found = torch.empty(workers, 4, dtype=torch.int32)
        longest = max([*lengths, 1])
        error = function(
            ctypes.c_void_p(lens.data_ptr()),
            len(lengths),
            longest,
            workers,
            overhead,
            least,
            snap,
            ctypes.c_void_p(found.data_ptr()),
        )
        assert error == 0
        return found.tolist()

    return call


def pieces(lengths, ranges):
    """[(worker, sequence, first tile, end tile)] in order, as the kernel takes them."""
    found = []
    for worker, (first, first_tile, end, end_tile) in enumerate(ranges):
        for sequence in range(first, min(end + 1, len(lengths))):
            tiles = max(-(-lengths[sequence] // TILE), 1)
            tile, stop = first_tile if sequence == first else 0, end_tile if sequence == end else tiles
            if tile < stop:
                found.append((worker, sequence, tile, stop))
    return found


def random_lengths(generator):
    count, longest = generator.choice([1, 2, 7, 63, 64, 65, 130, 300]), generator.choice([1, 64, 65, 1000, 20000])
    return [generator.randint(0, longest) for _ in range(count)]


def test_every_tile_is_one_workers(plan):
    generator = random.Random(0)
    for _ in range(60):
        lengths, workers = random_lengths(generator), generator.choice([1, 2, 5, 66, 132])
        knobs = generator.choice([0, 1, 2, 5]), generator.choice([1, 4, 9]), generator.choice([1, 2, 3])
        ranges = plan(lengths, workers, *knobs)
        tiles = [(sequence, tile) for _, sequence, start, end in pieces(lengths, ranges) for tile in range(start, end)]
        wanted = [
            (sequence, tile) for sequence, length in enumerate(lengths) for tile in range(max(-(-length // TILE), 1))
        ]
        assert tiles == wanted, (lengths, workers, knobs)
        # A worker's part of a sequence that it does not begin is its first piece: two places for partial results do.
        cut = [(worker, sequence) for worker, (sequence, tile, *_) in enumerate(ranges) if tile > 0]
        owners = [(worker, sequence) for worker, sequence, start, _ in pieces(lengths, ranges) if start > 0]
        assert owners == cut


def test_workers_have_equal_loads(plan):
    """Equal within the tiles by which cuts move and the cost of beginning a sequence."""
    generator = random.Random(1)
    for _ in range(20):
        lengths = [generator.randint(1, 30000) for _ in range(generator.choice([40, 200]))]
        found = pieces(lengths, plan(lengths, 132, 2, 4, 2))
        loads = [sum(end - start + 2 for worker, _, start, end in found if worker == mine) for mine in range(132)]
        assert max(loads) - sum(loads) / 132 <= 8, loads


@pytest.mark.parametrize(
    ("lengths", "workers", "longest"), [([2048] * 32, 132, 8), ([4874] * 64, 66, 77), ([4096] + [64] * 60, 132, 2)]
)
def test_few_sequences_have_equal_pieces(plan, lengths, workers, longest):
    """One a worker, and no longer than an equal stretch of all tiles."""
    found = pieces(lengths, plan(lengths, workers, 2, 2, 1))
    assert len({worker for worker, *_ in found}) == len(found)
    assert max(end - start for *_, start, end in found) == longest
    for sequence in range(len(lengths)):
        sizes = [end - start for _, mine, start, end in found if mine == sequence]
        assert max(sizes) - min(sizes) <= 1


def test_few_tiles_go_to_few_workers(plan):
    assert len(pieces([64], plan([64], 132, 2, 4, 2))) == 1
    assert {worker for worker, *_ in pieces([640] * 2, plan([640] * 2, 132, 2, 4, 2))} == set(range(6))


def test_contexts_too_short_to_be_cut_have_a_worker_each(plan, plan_uncut):
    lengths = [320, 0, 1, 64, 200]
    found = pieces(lengths, plan_uncut(lengths, 5, 2, 3, 3))
    assert [(worker, sequence) for worker, sequence, *_ in found] == [(each, each) for each in range(5)]
    found = pieces([*lengths, 321], plan([*lengths, 321], 20, 2, 3, 3))
    assert [sequence for _, sequence, *_ in found].count(5) == 2
    for made in (plan, plan_uncut):  # fewer workers than sequences: no context has two
        found = pieces(lengths, made(lengths, 3, 2, 3, 3))
        assert sorted(sequence for _, sequence, *_ in found) == [0, 1, 2, 3, 4]
    text, attention = (COMMON / "latent_attention.cu").read_text(), module(PAGED).latent_attention
    snap = int(re.search(r" SNAP = derby::UNCUT \? (\d+) ", text).group(1))
    assert TILE * (2 * snap - 1) == attention.MOST_UNCUT


# The kernels on the CPU -----------------------------------------------------------------------------------------------


@functools.cache
def module(operator, *edits):
    """The solution's module, its sources edited (old, new); common files that several edits name are edited in turn."""
    solution = CATALOG.solution(SOLUTIONS[operator])
    sources = dict(solution.sources)
    for old, new in edits:
        (holder,) = (path for path, text in sources.items() if old in text)
        sources[holder] = sources[holder].replace(old, new)
    run = load_solution(CATALOG.definition(operator), dataclasses.replace(solution, sources=sources))
    return sys.modules[run.__module__]


@functools.cache
def on_cpu(operator, *edits):
    """The same for CPU tensors: its kernels compiled by g++ against cuda_on_host/hopper."""
    own = "import importlib\nimport os\n", "import importlib  # on the CPU\nimport os\n"
    solution = module(operator, own, *edits)
    with tempfile.TemporaryDirectory() as folder:  # without the headers that the CPU replaces
        for name in ("workers", "uncut"):
            setattr(solution, name, on_host_called(getattr(solution, name), folder))
    solution.latent_attention.multiprocessors = lambda device: 5
    return solution


def on_host_called(library, folder):
    names = [name for name in library.sources if not (HOPPER / name).exists()]
    source, *headers = (Path(shutil.copy(library.folder / name, folder)) for name in names)
    function = library.load(
        on_host.shared_library(source, "-O2", f"-I{HOPPER}", beside=[*headers, HOPPER / "hopper.cuh"])
    )

    def call(device, *arguments):
        addresses = [value.data_ptr() if isinstance(value, torch.Tensor) else value for value in arguments]
        assert function(*addresses, None) == 0

    return call


def case_with(operator, **changes):
    """The dense operator's sizes with blocks of `block_size` tokens, as many as `cache_len` has."""
    size = changes.pop("block_size", 64)
    if operator == PAGED:
        length = changes.pop("cache_len", changes.get("max_context_len", 45))
        each = -(-length // size)
        blocks = {
            "block_size": size,
            "max_blocks_per_seq": each,
            "num_blocks": each * changes.get("batch_size", 4) // 2 + 4,
        }
        changes = {**blocks, **changes}
    return case_of(operator, **changes)


def spoiled(operator, inputs, empty=()):
    """Behind a context there is NaN; sequences in `empty` have no token."""
    inputs["context_lens"][list(empty)] = 0
    free = torch.ones(inputs["kv_cache"].shape[:2], dtype=torch.bool)
    for sequence, length in enumerate(inputs["context_lens"].tolist()):
        if operator == DENSE:
            free[sequence, :length] = False
        else:
            size = inputs["kv_cache"].shape[1]
            table, places = inputs["block_table"][sequence].cpu().long(), torch.arange(length)
            free[table[places // size], places % size] = False
    inputs["kv_cache"][free.to(inputs["kv_cache"].device)] = float("nan")
    return inputs


def verdict(operator, solution, inputs, case, device="cpu"):
    outputs = outputs_of(operator, case, device)
    solution.run_with({"workers": 1}, *inputs.values(), *outputs.values())
    return judge(CATALOG.definition(operator), reference(operator), inputs, outputs).status, outputs


SHAPES = [
    {"batch_size": 1, "num_heads": 64, "cache_len": 64, "max_context_len": 64},
    {"batch_size": 1, "num_heads": 128, "cache_len": 700, "max_context_len": 700},
    {"batch_size": 5, "num_heads": 17, "cache_len": 400, "max_context_len": 399, "block_size": 16},
    {"batch_size": 3, "num_heads": 1, "cache_len": 130, "max_context_len": 129, "block_size": 128},
    {"batch_size": 3, "num_heads": 100, "cache_len": 300, "max_context_len": 257, "block_size": 32},
    {"batch_size": 2, "num_heads": 192, "cache_len": 200, "max_context_len": 193},
    {"batch_size": 7, "num_heads": 12, "cache_len": 90, "max_context_len": 70},  # one launch, several a worker
]


@compiled
@pytest.mark.parametrize("order", ["", "reversed"])
@pytest.mark.parametrize("copies", ["early", "late"])
@pytest.mark.parametrize("operator", OPERATORS)
@on_host.recalled_for("derby_{operator}_sm90")
def test_at_odd_shapes(operator, copies, order, monkeypatch):
    """Copies and products when they are asked for and when they are waited for, threads in either order."""
    monkeypatch.setenv("EMULATED_ORDER", order)
    monkeypatch.setenv("EMULATED_ASYNC", copies)
    solution = on_cpu(operator)
    for changes in SHAPES if not order else SHAPES[1:3]:
        case = case_with(operator, **changes)
        inputs = spoiled(operator, inputs_of(operator, case))
        assert verdict(operator, solution, inputs, case)[0] is Status.PASSED, changes


@compiled
@pytest.mark.parametrize("operator", OPERATORS)
@on_host.recalled_for("derby_{operator}_sm90")
def test_scores_far_apart_empty_sequences_and_the_same_bits(operator):
    solution = on_cpu(operator)
    case = case_with(operator, batch_size=4, num_heads=20, cache_len=520, max_context_len=513)
    inputs = spoiled(operator, inputs_of(operator, case), empty=[1])
    inputs["query"].mul_(30)
    outputs = verdict(operator, solution, inputs, case)[1]
    expected = reference(operator).run(**inputs).nan_to_num(0)
    assert not outputs["output"][1].any()
    torch.testing.assert_close(outputs["output"].float(), expected.float(), rtol=0.03, atol=0.03)
    assert torch.equal(verdict(operator, solution, inputs, case)[1]["output"], outputs["output"])


MUTANTS = [
    ("if (limit < TILE) clear<PART>(buffer, limit);", ""),
    ("o[i] *= i / 2 % 2 ? high : low", "o[i] *= low"),
    ("worker - before - 1) * 2;", "worker - before) * 2;"),
    ("statistics[i].y * factor[i];", "statistics[i].y;"),
    ("mbarrier_wait(at(&shared.weighed[slot]), at_weights.parity);", ""),
    ("mbarrier_wait(at(&shared.empty[buffer][part]), phase ^ 1);", ""),
]


@compiled
@pytest.mark.parametrize("number", on_host.share_of(range(len(MUTANTS))))
@on_host.recalled_for(SOLUTIONS[PAGED])
def test_mutants_fail(number):
    """A wrong result, or a process that ends: on some of the orders."""
    code = f"import test_latent_attention as t; t.run_mutant({number})"
    how = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=how, capture_output=True, text=True, timeout=100)
    assert "Error" not in done.stderr and "right" not in done.stdout, (MUTANTS[number], done.stderr)
    assert done.returncode or "wrong" in done.stdout


def run_mutant(number):
    solution = on_cpu(PAGED, MUTANTS[number])
    case = case_with(PAGED, batch_size=3, num_heads=40, cache_len=700, max_context_len=611)
    inputs = spoiled(PAGED, inputs_of(PAGED, case))
    inputs["query"].mul_(4)
    found = set()
    for copies in ("early", "late"):
        os.environ["EMULATED_ASYNC"] = copies
        found.add(verdict(PAGED, solution, inputs, case)[0] is Status.PASSED)
    print("right" if found == {True} else "wrong")


@compiled
def test_compiles_without_spills_or_warnings():
    solution = module(PAGED)
    for library in (solution.workers, solution.uncut):
        source = library.folder / library.source
        kernels = nvcc.kernels_of(on_host.nvcc_of(solution), source, part=library.source)
        assert [kernel.spilled for kernel in kernels] == [0, 0, 0]


@pytest.mark.parametrize("operator", OPERATORS)
def test_sources_are_named_and_bad_input_is_one_line(operator):
    solution, sources = module(operator), CATALOG.solution(SOLUTIONS[operator]).sources
    libraries = [each for each in vars(solution).values() if isinstance(each, solution.cuda_library.CudaLibrary)]
    named = {source for library in libraries for source in library.sources}
    assert named == {path for path in sources if path.endswith((".cu", ".cuh"))}
    case = case_with(operator, batch_size=0, cache_len=1, max_context_len=1)
    solution.run(*inputs_of(operator, case).values(), *outputs_of(operator, case).values())
    if operator == PAGED:
        for size in (4, 24):
            case = case_with(operator, block_size=size, cache_len=48, max_context_len=45)
            told = f"kv_cache has block_size {size}, which is no power of two from 8 on$"
            for _ in range(2):  # a layout that was refused is not known the second time
                with pytest.raises(ValueError, match=told):
                    solution.run(*inputs_of(operator, case).values(), *outputs_of(operator, case).values())


# On a GPU -------------------------------------------------------------------------------------------------------------

SERVING = [
    *SHAPES,
    {"batch_size": 129, "num_heads": 64, "cache_len": 3000, "max_context_len": 2999},
    {"batch_size": 7, "num_heads": 5, "cache_len": 577, "max_context_len": 577},
    {"batch_size": 300, "num_heads": 16, "cache_len": 501, "max_context_len": 500},
    {"batch_size": 1, "num_heads": 128, "cache_len": 20000, "max_context_len": 20000},
    {"batch_size": 40, "num_heads": 40, "cache_len": 5000, "max_context_len": 4999},
]


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("operator", OPERATORS)
def test_on_a_gpu(operator):
    """NaN behind the contexts, the same bits in a second call."""
    solution = module(operator)
    for changes in SERVING:
        case = case_with(operator, **changes)
        inputs = spoiled(operator, inputs_of(operator, case, "cuda"))
        status, outputs = verdict(operator, solution, inputs, case, "cuda")
        assert status is Status.PASSED, changes
        again = verdict(operator, solution, inputs, case, "cuda")[1]
        assert torch.equal(outputs["output"], again["output"]), changes


@pytest.mark.gpu
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_captured_graph_keeps_its_memory(operator):
    """Captured small, then a larger call, memory written over, new inputs, replayed."""
    solution, config = module(operator), {"workers": 1}
    case = case_with(operator, batch_size=3, num_heads=64, cache_len=900, max_context_len=900)
    larger = case_with(operator, batch_size=9, num_heads=128, cache_len=2000, max_context_len=2000)
    inputs, outputs = inputs_of(operator, case, "cuda"), outputs_of(operator, case, "cuda")
    solution.run_with(config, *inputs.values(), *outputs.values())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        solution.run_with(config, *inputs.values(), *outputs.values())
    more = *inputs_of(operator, larger, "cuda").values(), *outputs_of(operator, larger, "cuda").values()
    solution.run_with(config, *more)
    torch.cuda.empty_cache()
    taken = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(64)]
    inputs["query"].mul_(-0.5)
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        assert judge(CATALOG.definition(operator), reference(operator), inputs, outputs).status is Status.PASSED
    assert all((each == 7).all() for each in taken)
