"""derby_moe_sm90: how its work is shared out (schedule.cuh, compiled for the host), its build, its results on a GPU.

The kernels need a Hopper GPU, and their sizes are fixed; so a CPU sees the arithmetic of the schedule and the compiler.
"""

import ctypes
import math
import os
import shutil
import subprocess
import sys
import types

import pytest
import torch
from moe_cases import NAME as DEFINITION
from moe_cases import ROOT, definition, load

from kernelderby.catalog import Catalog
from kernelderby.measure.cases import case_of_workload

FOLDER = ROOT / "solutions" / "kernelderby" / "moe" / DEFINITION / "derby_moe_sm90"
FULL = {
    "num_experts": 256, "num_local_experts": 32, "hidden_size": 7168, "intermediate_size": 2048, "gemm1_out_size": 4096,
    "num_hidden_blocks": 56, "num_intermediate_blocks": 16, "num_gemm1_out_blocks": 32,
}
GEMMS = [(56, 16), (16, 28)]  # k blocks of a tile, blocks of 256 (2 x 128) weight rows
VARIANTS = [(16, 1), (64, 1), (64, 2), (128, 2)]  # most pairs a tile, programs a cluster

HOST = r"""
#include "schedule.cuh"
using namespace derby;
extern "C" void share(int program, int programs, int tiles, int k_blocks, int split_all, int* out) {
    const Share s = share_work(program, programs, tiles, k_blocks, split_all);
    const int values[6] = {s.visits, s.whole, s.split_from, s.begin, s.end, s.stretch};
    for (int i = 0; i < 6; ++i) out[i] = values[i];
}
extern "C" void visit(const int* in, int index, int program, int programs, int k_blocks, int* out) {
    const Share s = {in[0], in[1], in[2], in[3], in[4], in[5]};
    const Visit v = visit_at(s, index, program, programs, k_blocks);
    out[0] = v.tile, out[1] = v.k_begin, out[2] = v.k_end;
}
extern "C" void place(int tile, int tiles_n, const int* count, const int* block_start, const int* row_start, int rank,
                      int cluster, int* out) {
    const Place p = locate(tile, tiles_n, count, block_start, row_start, rank, cluster);
    const int values[6] = {p.expert, p.block_n, p.first_slot, p.rows, p.first_row, p.same_weights};
    for (int i = 0; i < 6; ++i) out[i] = values[i];
}
extern "C" int first(int in_split, int stretch, int k_blocks) { return first_piece(in_split, stretch, k_blocks); }
extern "C" int last(int in_split, int stretch, int k_blocks) { return last_piece(in_split, stretch, k_blocks); }
"""


@pytest.fixture(scope="module")
def schedule(tmp_path_factory):
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler on the PATH")
    folder = tmp_path_factory.mktemp("schedule")
    (folder / "host.cpp").write_text(HOST)
    subprocess.run([compiler, "-O1", "-std=c++17", "-shared", "-fPIC", f"-I{FOLDER}", "-o", folder / "host.so",
                    folder / "host.cpp"], check=True)
    return ctypes.CDLL(str(folder / "host.so"))


def numbers(function, size, *arguments):
    out = (ctypes.c_int * size)()
    function(*arguments, out)
    return list(out)


@pytest.mark.parametrize("programs", [132, 114, 2])
def test_the_workspace_has_a_counter_for_every_program(programs):
    """Where the kernels count: experts, a ticket, the pieces that a program waits for (kernel.cu, `first.arrived`)."""
    module = load(FOLDER / "main.py")
    library = types.SimpleNamespace(derby_moe_piece_bytes=lambda programs: 16)
    space = module._Workspace(library, 1, programs, torch.device("cpu"))
    assert "arrived = count + LOCAL_EXPERTS + 1;" in (FOLDER / "kernel.cu").read_text()
    assert space.counters.numel() == module.NUM_LOCAL + 1 + programs


def tile_counts():
    return [0, 1, 3, 16, 31, 32, 33, 56, 65, 66, 67, 131, 132, 133, 200, 263, 264, 265, 500, 2720]


@pytest.mark.parametrize("k_blocks", [56, 16])
@pytest.mark.parametrize("programs", [66, 132, 2])
@pytest.mark.parametrize("split_all", [0, 1])
def test_every_k_block_of_every_tile_is_done_once(schedule, k_blocks, programs, split_all):
    for tiles in tile_counts():
        done = [0] * (tiles * k_blocks)
        for program in range(programs):
            share = numbers(schedule.share, 6, program, programs, tiles, k_blocks, split_all)
            packed = (ctypes.c_int * 6)(*share)
            for index in range(share[0]):
                tile, begin, end = numbers(schedule.visit, 3, packed, index, program, programs, k_blocks)
                assert 0 <= begin < end <= k_blocks
                for k in range(begin, end):
                    done[tile * k_blocks + k] += 1
        assert all(times == 1 for times in done), (tiles, programs)


@pytest.mark.parametrize("k_blocks", [56, 16])
@pytest.mark.parametrize("programs", [66, 132, 2])
@pytest.mark.parametrize("split_all", [0, 1])
def test_pieces_of_split_tiles_meet(schedule, k_blocks, programs, split_all):
    """The programs that have a piece of a tile are those that the tile expects. The one with its beginning collects,
    as its last work; the others deliver, as the first of their stretches, so that nobody waits in a circle."""
    for tiles in tile_counts():
        owners, stretch = {}, 1
        for program in range(programs):
            share = numbers(schedule.share, 6, program, programs, tiles, k_blocks, split_all)
            packed, stretch = (ctypes.c_int * 6)(*share), share[5]
            for index in range(share[0]):
                tile, begin, end = numbers(schedule.visit, 3, packed, index, program, programs, k_blocks)
                if end - begin == k_blocks:
                    continue
                owners.setdefault(tile - share[2], []).append(program)
                assert index == (share[1] if begin > 0 else share[0] - 1)
                assert (begin == 0) == (program == schedule.first(tile - share[2], stretch, k_blocks))
        for in_split, programs_of_tile in owners.items():
            first, last = (f(in_split, stretch, k_blocks) for f in (schedule.first, schedule.last))
            assert programs_of_tile == list(range(first, last + 1))


COUNTS = {
    "none": [0] * 32,
    "one pair": [0] * 17 + [1] + [0] * 14,
    "all on one": [0] * 31 + [16384],
    "one each": [1] * 32,
    "edges": [0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 0, 0, 383, 384, 385, 511, 513]
    + [0] * 8,
    "skewed": [int(4000 / (e + 1)) for e in range(32)],
    "full": [16384] * 4 + [0] * 28,
}


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS.keys())
@pytest.mark.parametrize("rows, cluster", VARIANTS)
@pytest.mark.parametrize("k_blocks, tiles_n", GEMMS)
def test_every_pair_meets_every_block_of_weights_once(schedule, counts, rows, cluster, k_blocks, tiles_n):
    blocks = [math.ceil(count / rows) for count in counts]
    block_start = (ctypes.c_int * 33)(*[sum(blocks[:e]) for e in range(33)])
    row_start = (ctypes.c_int * 33)(*[sum(counts[:e]) for e in range(33)])
    seen = {}
    for tile in range(sum(blocks) * (tiles_n // cluster)):
        block_of_rank = []
        for rank in range(cluster):
            expert, block_n, first, size, first_row, same = numbers(
                schedule.place, 6, tile, tiles_n, (ctypes.c_int * 32)(*counts), block_start, row_start, rank, cluster)
            assert 0 < size <= rows and first % 8 == 0 and first_row == row_start[expert] + first
            assert first + size <= counts[expert] and 0 <= block_n < tiles_n
            seen.setdefault((expert, block_n), []).append((first, first + size))
            block_of_rank.append((expert, block_n, first))
        if cluster == 2:
            (expert, n, first), (other_expert, other_n, other_first) = block_of_rank
            assert expert == other_expert
            assert (n == other_n and first != other_first) if same else (n != other_n and first == other_first)
    for expert, count in enumerate(counts):
        for block_n in range(tiles_n if count else 0):
            stretches = sorted(seen.pop((expert, block_n)))
            assert stretches[0][0] == 0 and stretches[-1][1] == count
            assert all(a[1] == b[0] for a, b in zip(stretches, stretches[1:], strict=False))
    assert not seen


@pytest.fixture(scope="module")
def module():
    return load(FOLDER / "main.py")


def test_it_compiles_for_sm_90a(module, tmp_path):
    try:
        module.find_nvcc()
    except RuntimeError as error:
        pytest.skip(str(error))
    library = module.build(tmp_path)
    assert module.build(tmp_path) == library, "the second time from the cache"
    assert [path.name for path in tmp_path.iterdir()] == [library.name]


def test_without_nvcc_it_says_so_in_one_line(module, tmp_path, monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    monkeypatch.setattr(module.os, "access", lambda path, mode: False)
    with pytest.raises(RuntimeError, match="found no nvcc") as caught:
        module.build(tmp_path)
    assert "\n" not in str(caught.value)


def test_all_sources_are_named(module):
    assert sorted(module.SOURCES) == sorted(path.name for path in FOLDER.glob("*.cu*"))


# On a GPU -------------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def weights():
    generator = torch.Generator("cuda").manual_seed(3)

    def fp8(*shape):
        parts = [torch.randn(shape[1:], device="cuda", generator=generator).clamp(-2, 2) for _ in range(shape[0])]
        return torch.stack([part.to(torch.float8_e4m3fn) for part in parts])

    return fp8(32, 4096, 7168), fp8(32, 7168, 2048)


def gpu_inputs(weights, seq_len, offset, mode, seed=None):
    size = {**FULL, "seq_len": seq_len, "seed": 31 * seq_len + offset if seed is None else seed}
    made = definition.generate_inputs(size, "cuda")
    logits = made["routing_logits"]
    if mode == "local":
        logits[:, offset:offset + 32] += 6
    elif mode == "none":
        logits[:, offset:offset + 32] -= 50
    elif mode == "one":
        logits[:, offset] = 10
    elif mode == "equal":
        logits.zero_()
        made["routing_bias"].zero_()
    hidden = torch.randn(seq_len, 7168, device="cuda").clamp(-2, 2).to(torch.float8_e4m3fn)
    return [logits, made["routing_bias"], hidden, made["hidden_states_scale"], weights[0], made["gemm1_weights_scale"],
            weights[1], made["gemm2_weights_scale"], offset, 2.5]


def check_on_gpu(module, inputs):
    """Twice into poisoned outputs: the error's norm within that of an fp8 intermediate, and no counter left behind.
    Returns the second output."""
    expected = definition.run(*inputs).float()
    for _ in range(2):
        out = torch.full(expected.shape, float("nan"), dtype=torch.bfloat16, device="cuda")
        module.run(*inputs, out)
        assert (out.float() - expected).norm() <= 0.03 * expected.norm()
    return out.float()


@pytest.mark.gpu
@pytest.mark.parametrize("variant", [0, 1, 2, 3])
@pytest.mark.parametrize("seq_len, offset, mode", [
    (1, 0, "none"), (1, 224, "local"), (3, 17, "local"), (8, 0, "equal"), (9, 100, "one"), (15, 96, ""),
    (16, 32, "local"), (16, 200, "one"), (64, 96, "one"), (65, 96, "one"), (129, 32, "local"), (257, 32, ""),
    (1000, 100, ""), (2049, 64, "one"), (3001, 128, "local"), (1500, 224, "none"),
])
def test_every_variant_against_the_definition(module, weights, monkeypatch, variant, seq_len, offset, mode):
    if variant == 0 and seq_len > module.MOST_ROUTED:
        pytest.skip("the kernels for up to 16 tokens")
    monkeypatch.setattr(module, "choose_variant", lambda seq_len: variant)
    check_on_gpu(module, gpu_inputs(weights, seq_len, offset, mode))


def workloads():
    return Catalog.open(ROOT).workloads(DEFINITION)


@pytest.mark.gpu
@pytest.mark.parametrize("workload", workloads(), ids=lambda workload: f"seq_len={workload.axes['seq_len']}")
def test_the_workloads(module, weights, workload):
    """Their routing, by their seeds, and at least 99 % of the elements within the contest's tolerance."""
    contract = Catalog.open(ROOT).definition(DEFINITION)
    case = case_of_workload(contract, workload)
    inputs = gpu_inputs(weights, workload.axes["seq_len"], case.scalars["local_expert_offset"], "", case.seed)
    expected = definition.run(*inputs).float()
    error = (check_on_gpu(module, inputs) - expected).abs()
    contest = next(tolerance for tolerance in contract.tolerances if tolerance.name == "contest")
    within = (error <= contest.atol) | (error <= contest.rtol * expected.abs())
    assert within.float().mean() >= 0.99


@pytest.mark.gpu
def test_random_sizes_and_offsets(module, weights):
    generator = torch.Generator().manual_seed(7)
    for _ in range(20):
        seq_len = int(2 ** (torch.rand((), generator=generator) * 13.5))
        offset = int(torch.randint(0, 225, (), generator=generator))
        check_on_gpu(module, gpu_inputs(weights, seq_len, offset, ["", "local", "one"][seq_len % 3]))


@pytest.mark.gpu
def test_in_a_graph(module, weights):
    inputs = gpu_inputs(weights, 56, 96, "")
    expected = definition.run(*inputs).float()
    out = torch.empty(expected.shape, dtype=torch.bfloat16, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        module.run(*inputs, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        module.run(*inputs, out)
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert (out.float() - expected).norm() <= 0.03 * expected.norm()


SANITIZED = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("derby_moe_sm90", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.FLAGS += tuple(sys.argv[3:])
inputs = torch.load(sys.argv[2], map_location="cuda", weights_only=True)
out = torch.full((inputs[2].shape[0], 7168), float("nan"), dtype=torch.bfloat16, device="cuda")
module.run(*inputs, out)
assert out.isfinite().all()
"""


@pytest.mark.gpu
@pytest.mark.parametrize("tool, flags", [("memcheck", ()), ("racecheck", ("-DDERBY_RACECHECK",))])
def test_under_compute_sanitizer(module, weights, tmp_path, tool, flags):
    """Few tokens; racecheck with a build of its own, see common.cuh."""
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if sanitizer is None:
        pytest.skip("no compute-sanitizer on the PATH or in /usr/local/cuda/bin")
    torch.save(gpu_inputs(weights, 8, 96, "local"), tmp_path / "inputs.pt")
    (tmp_path / "run.py").write_text(SANITIZED)
    found = subprocess.run(
        [sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable, tmp_path / "run.py", FOLDER / "main.py",
         tmp_path / "inputs.pt", *flags], capture_output=True, text=True,
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
    assert found.returncode == 0, found.stdout[-2000:]
