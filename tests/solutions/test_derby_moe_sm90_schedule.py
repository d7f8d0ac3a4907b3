"""derby_moe_sm90: how its work and the pairs of few tokens are shared out, compiled for the host from its sources.

The kernels need a Hopper GPU; this arithmetic does not.
"""

import ctypes
import itertools
import math
import random
import shutil
import subprocess

import pytest
from moe_cases import NAME as DEFINITION
from moe_cases import ROOT

COMMON = ROOT / "solutions" / "kernelderby" / "common"
FOLDER = ROOT / "solutions" / "kernelderby" / "moe" / DEFINITION / "derby_moe_sm90"
GEMMS = [(56, 16), (16, 28)]  # k blocks of a tile, blocks of 256 (2 x 128) weight rows
VARIANTS = [(16, 1), (64, 1), (64, 2), (128, 2)]  # most pairs a tile, CTAs a cluster

HOST = r"""
#include "schedule.cuh"
using namespace derby;
extern "C" void share(int worker, int workers, int tiles, int k_blocks, int split_all, int* out) {
    const Share s = share_work(worker, workers, tiles, k_blocks, split_all);
    const int values[6] = {s.visits, s.whole, s.split_from, s.begin, s.end, s.stretch};
    for (int i = 0; i < 6; ++i) out[i] = values[i];
}
extern "C" void visit(const int* in, int index, int worker, int workers, int k_blocks, int* out) {
    const Share s = {in[0], in[1], in[2], in[3], in[4], in[5]};
    const Visit v = visit_at(s, index, worker, workers, k_blocks);
    out[0] = v.tile, out[1] = v.k_begin, out[2] = v.k_end;
}
extern "C" void place(int tile, int tiles_n, const int* count, const int* block_start, const int* row_start, int rank,
                      int cluster, int* out) {
    const Tile p = locate(tile, tiles_n, count, block_start, row_start, rank, cluster);
    const int values[6] = {p.expert, p.block_n, p.first_slot, p.rows, p.first_row, p.same_weights};
    for (int i = 0; i < 6; ++i) out[i] = values[i];
}
extern "C" int first(int in_split, int stretch, int k_blocks) { return first_piece(in_split, stretch, k_blocks); }
extern "C" int last(int in_split, int stretch, int k_blocks) { return last_piece(in_split, stretch, k_blocks); }
"""


def compiled(folder, text):
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler on the PATH")
    (folder / "host.cpp").write_text(text)
    subprocess.run(
        [
            compiler,
            "-O1",
            "-std=c++17",
            "-shared",
            "-fPIC",
            f"-I{FOLDER}",
            f"-I{COMMON}",
            "-o",
            folder / "host.so",
            folder / "host.cpp",
        ],
        check=True,
    )
    return ctypes.CDLL(str(folder / "host.so"))


@pytest.fixture(scope="module")
def schedule(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("schedule"), HOST)


def numbers(function, size, *arguments):
    out = (ctypes.c_int * size)()
    function(*arguments, out)
    return list(out)


def tile_counts():
    return [0, 1, 3, 16, 31, 32, 33, 56, 65, 66, 67, 131, 132, 133, 200, 263, 264, 265, 500, 2720]


@pytest.mark.parametrize("k_blocks", [56, 16])
@pytest.mark.parametrize("workers", [66, 132, 2])
@pytest.mark.parametrize("split_all", [0, 1])
def test_every_k_block_of_every_tile_is_done_once(schedule, k_blocks, workers, split_all):
    for tiles in tile_counts():
        done = [0] * (tiles * k_blocks)
        for worker in range(workers):
            share = numbers(schedule.share, 6, worker, workers, tiles, k_blocks, split_all)
            packed = (ctypes.c_int * 6)(*share)
            for index in range(share[0]):
                tile, begin, end = numbers(schedule.visit, 3, packed, index, worker, workers, k_blocks)
                assert 0 <= begin < end <= k_blocks
                for k in range(begin, end):
                    done[tile * k_blocks + k] += 1
        assert all(times == 1 for times in done), (tiles, workers)


@pytest.mark.parametrize("k_blocks", [56, 16])
@pytest.mark.parametrize("workers", [66, 132, 2])
@pytest.mark.parametrize("split_all", [0, 1])
def test_pieces_of_split_tiles_meet(schedule, k_blocks, workers, split_all):
    """The workers that have a piece of a tile are those that the tile expects. The one with its beginning collects,
    as its last work; the others deliver, as the first of their stretches, so that nobody waits in a circle."""
    for tiles in tile_counts():
        owners, stretch = {}, 1
        for worker in range(workers):
            share = numbers(schedule.share, 6, worker, workers, tiles, k_blocks, split_all)
            packed, stretch = (ctypes.c_int * 6)(*share), share[5]
            for index in range(share[0]):
                tile, begin, end = numbers(schedule.visit, 3, packed, index, worker, workers, k_blocks)
                if end - begin == k_blocks:
                    continue
                owners.setdefault(tile - share[2], []).append(worker)
                assert index == (share[1] if begin > 0 else share[0] - 1)
                assert (begin == 0) == (worker == schedule.first(tile - share[2], stretch, k_blocks))
        for in_split, workers_of_tile in owners.items():
            first, last = (f(in_split, stretch, k_blocks) for f in (schedule.first, schedule.last))
            assert workers_of_tile == list(range(first, last + 1))


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
                schedule.place, 6, tile, tiles_n, (ctypes.c_int * 32)(*counts), block_start, row_start, rank, cluster
            )
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
            assert all(a[1] == b[0] for a, b in itertools.pairwise(stretches))
    assert not seen


# Few tokens -----------------------------------------------------------------------------------------------------------

FEW = r"""
#include <cstddef>
#include <cstdint>
#include <cstring>
#define __device__
#define __forceinline__ inline
struct int2 { int x, y; };
static int2 make_int2(int x, int y) { return {x, y}; }
static int __float_as_int(float value) { int bits; std::memcpy(&bits, &value, 4); return bits; }
static int __popc(unsigned bits) { return __builtin_popcount(bits); }
static int __ffs(unsigned bits) { return __builtin_ffs(bits); }
constexpr int TOP_K = 8;
@
extern "C" int most() { return MOST_ROUTED; }
extern "C" int token(const Routed* routed, int expert, int slot) { return token_at(*routed, expert, slot); }
extern "C" void tell(const Routed* routed, int2* bucket, int* count, int seq_len) {
    for (int lane = 0; lane < 32; ++lane) publish(*routed, bucket, count, seq_len, lane);
}
"""


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """The part of route.cuh for few tokens that has no instruction of the GPU in it: the struct, and what reads it."""
    text = (FOLDER / "route.cuh").read_text()
    struct = text[text.index("constexpr int MOST_ROUTED") : text.index("// Warps 0..warps-1")]
    readers = text[text.index("// Bit t: whether") : text.rindex("}  // namespace")]
    return compiled(tmp_path_factory.mktemp("few"), FEW.replace("@", struct + readers))


def routed_of(choices, most):
    """choices: of each token, local expert or -1 of its eight."""

    class Routed(ctypes.Structure):
        _fields_ = [
            ("experts", ctypes.c_uint32 * most),
            ("local", ctypes.c_int8 * 8 * most),
            ("weight", ctypes.c_float * 8 * most),
        ]

    routed = Routed()
    for t in range(most):
        for rank in range(8):
            local = choices[t][rank] if t < len(choices) else -1
            routed.local[t][rank] = local
            routed.weight[t][rank] = 100 * t + rank
            if local >= 0:
                routed.experts[t] |= 1 << local
    return routed


def some_choices(seed, seq_len):
    chosen = random.Random(seed)
    return [[e if e < 32 else -1 for e in chosen.sample(range(32 + 16 * (seed % 3)), 8)] for _ in range(seq_len)]


CHOICES = {
    "none local": [[-1] * 8] * 16,
    "all on one": [[31, *[-1] * 7]] * 16,
    "the same eight": [list(range(24, 32))] * 16,
    "one token": [[-1, 0, -1, 31, -1, -1, 5, -1]],
    **{f"random {seed}": some_choices(seed, seq_len) for seed, seq_len in enumerate([2, 7, 8, 9, 15, 16])},
}


@pytest.mark.parametrize("choices", CHOICES.values(), ids=CHOICES.keys())
def test_few_tokens_pairs_lie_in_the_order_of_the_tokens(few, choices):
    """Every CTA works out for itself what one of them publishes for the second GEMM: they have to agree."""
    seq_len, most = len(choices), few.most()
    routed = routed_of(choices, most)
    bucket, count = (ctypes.c_int * (32 * seq_len * 2))(), (ctypes.c_int * 32)(*[-1] * 32)
    few.tell(ctypes.byref(routed), bucket, count, seq_len)
    for expert in range(32):
        pairs = [(t, choices[t].index(expert)) for t in range(seq_len) if expert in choices[t]]
        assert count[expert] == len(pairs)
        for slot, (t, rank) in enumerate(pairs):
            at = 2 * (expert * seq_len + slot)
            weight = ctypes.c_float.from_buffer(ctypes.c_int(bucket[at + 1])).value
            assert (bucket[at], weight) == (8 * t + rank, 100 * t + rank)
            assert few.token(ctypes.byref(routed), expert, slot) == t
