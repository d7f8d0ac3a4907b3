"""derby_moe_sm90: how its work and the pairs of few tokens are shared out, compiled for the host from its sources.

The kernels need a Hopper GPU; this arithmetic does not.
"""

import ctypes
import itertools
import random
import shutil
import subprocess

import pytest
from moe_cases import NAME as DEFINITION
from moe_cases import ROOT

COMMON = ROOT / "solutions" / "kernelderby" / "common"
FOLDER = ROOT / "solutions" / "kernelderby" / "moe" / DEFINITION / "derby_moe_sm90"
TILES_N = [16, 28]  # blocks of 256 (2 x 128) weight rows, of the first GEMM and of the second
VARIANTS = [(16, 1), (64, 1), (64, 2), (128, 2)]  # most pairs a tile, CTAs a cluster

HOST = r"""
#include "experts_schedule.cuh"
using namespace derby;
extern "C" int tiles(int count, int most, int tiles_n, int cluster) {
    return tiles_of(blocks_of(count, most), tiles_n, cluster);
}
extern "C" void place(int tile, int tiles_n, int most_rows, const int* tile_start, const int* row_start, int rank,
                      int cluster, int* out) {
    const Place p = locate_in_slab<32>(tile, 0, tiles_n, most_rows, tile_start, row_start, rank, cluster, 0, false);
    const int values[5] = {p.expert, p.block_n, p.rows, p.first_row, p.same_weights};
    for (int i = 0; i < 5; ++i) out[i] = values[i];
}
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
@pytest.mark.parametrize("tiles_n", TILES_N)
def test_every_pair_meets_every_block_of_weights_once(schedule, counts, rows, cluster, tiles_n):
    tiles = [schedule.tiles(count, rows, tiles_n, cluster) for count in counts]
    tile_start = (ctypes.c_int * 32)(*itertools.accumulate(tiles[:-1], initial=0))
    row_start = (ctypes.c_int * 33)(*itertools.accumulate(counts, initial=0))
    seen = {}
    for tile in range(sum(tiles)):
        block_of_rank = []
        for rank in range(cluster):
            expert, block_n, size, first_row, same = numbers(
                schedule.place, 5, tile, tiles_n, rows, tile_start, row_start, rank, cluster
            )
            first = first_row - row_start[expert]
            assert 0 < size <= rows and first % 8 == 0
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
            assert (bucket[at], weight) == (t, 100 * t + rank)
            assert few.token(ctypes.byref(routed), expert, slot) == t
