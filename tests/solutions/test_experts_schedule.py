"""The experts' GEMMs for sm_90: how their work is shared out, compiled for the host from experts_schedule.cuh.

The kernels need a Hopper GPU; this arithmetic does not.
"""

import ctypes
import random
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "solutions" / "kernelderby" / "common"
MOST_EXPERTS, NEVER = 256, 0x7FFFFFFF
# Most pairs a tile, CTAs a cluster, blocks up to which one may be half as large, whether also of an even number.
VARIANTS = [(16, 1, 0, 0), (64, 1, 0, 0), (160, 1, 0, 0), (128, 2, 0, 0), (128, 2, 3, 0), (128, 2, 1000, 0),
            (128, 2, 1000, 1)]  # fmt: skip

HOST = r"""
#include "experts_schedule.cuh"
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
extern "C" void place(int tile, int tiles_n, int slab, int most_rows, const int* tile_start, int slab_tiles,
                      const int* row_start, int rank, int cluster, int halved, int evens, int* out) {
    const Layout layout = {1, tiles_n, slab};
    const Place p = locate(tile, layout, most_rows, tile_start, slab_tiles, row_start, rank, cluster, halved, evens);
    const int values[5] = {p.expert, p.block_n, p.rows, p.first_row, p.same_weights};
    for (int i = 0; i < 5; ++i) out[i] = values[i];
}
extern "C" int tiles(int count, int most, int slab, int cluster) {
    return tiles_of(blocks_of(count, most), slab, cluster);
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
    command = [compiler, "-O1", "-std=c++17", "-shared", "-fPIC", f"-I{FOLDER}", "-o", folder / "host.so"]
    subprocess.run([*command, folder / "host.cpp"], check=True)
    return ctypes.CDLL(str(folder / "host.so"))


def numbers(function, size, *arguments):
    out = (ctypes.c_int * size)()
    function(*arguments, out)
    return list(out)


@pytest.mark.parametrize("k_blocks", [56, 32, 16, 6, 1])  # 56 and 16: derby_moe_sm90's
@pytest.mark.parametrize("workers", [66, 132, 2])
@pytest.mark.parametrize("split_all", [0, 1])
def test_every_k_block_of_every_tile_is_done_once_and_pieces_are_where_they_are_looked_for(
    schedule, k_blocks, workers, split_all
):
    for tiles in (0, 1, 3, 31, 65, 66, 67, 131, 132, 133, 263, 264, 265, 500):
        done, pieces, split_from, stretch = [0] * (tiles * k_blocks), {}, 0, 1
        for worker in range(workers):
            share = numbers(schedule.share, 6, worker, workers, tiles, k_blocks, split_all)
            packed, (split_from, stretch) = (ctypes.c_int * 6)(*share), (share[2], share[5])
            delivered = collected = 0
            for index in range(share[0]):
                tile, begin, end = numbers(schedule.visit, 3, packed, index, worker, workers, k_blocks)
                for k in range(begin, end):
                    done[tile * k_blocks + k] += 1
                if end - begin < k_blocks:
                    pieces.setdefault(tile, []).append(worker)
                    # Delivered first and collected last, so that nobody waits in a circle.
                    assert index == (share[1] if begin > 0 else share[0] - 1)
                    delivered += begin > 0
                    collected += begin == 0
            assert delivered <= 1 and collected <= 1, "one piece of workspace and one counter a worker"
        assert done == [1] * len(done)
        for tile, found in pieces.items():
            first = schedule.first(tile - split_from, stretch, k_blocks)
            assert found == list(range(first, schedule.last(tile - split_from, stretch, k_blocks) + 1))


def routings(experts):
    draw = random.Random(experts)
    yield [draw.randint(0, 300) for _ in range(experts)]
    yield [draw.choice([0, 0, 0, 1, 64, 65, 1000]) for _ in range(experts)]
    yield [5000, *[0] * (experts - 1)]
    yield [*[0] * (experts - 1), 129]


@pytest.mark.parametrize("most_rows, cluster, halved, evens", VARIANTS)
@pytest.mark.parametrize("experts", [1, 8, 128, 256])
@pytest.mark.parametrize("tiles_n, slab", [(3, 3), (8, 2), (6, 3), (1, 1), (7, 1)])
def test_every_pair_meets_every_block_of_weights_once(
    schedule, most_rows, cluster, halved, evens, experts, tiles_n, slab
):
    """Rows of tiles are at most those of the variant and start at multiples of 8 in an expert; CTAs without weights
    have no rows; slabs come one after another."""
    for counts in routings(experts):
        row_start, tile_start = [0], []
        for count in counts:
            tile_start.append(sum(schedule.tiles(c, most_rows, slab, cluster) for c in counts[: len(tile_start)]))
            row_start.append(row_start[-1] + count)
        slab_tiles = tile_start[-1] + schedule.tiles(counts[-1], most_rows, slab, cluster)
        starts = (ctypes.c_int * MOST_EXPERTS)(*tile_start, *[NEVER] * (MOST_EXPERTS - experts))
        rows = (ctypes.c_int * (MOST_EXPERTS + 1))(*row_start, *[row_start[-1]] * (MOST_EXPERTS - experts))
        met, last_slab = {}, 0
        for tile in range(slab_tiles * (tiles_n // slab)):
            for rank in range(cluster):
                expert, block_n, size, first, _ = numbers(
                    schedule.place,
                    5,
                    tile,
                    tiles_n,
                    slab,
                    most_rows,
                    starts,
                    slab_tiles,
                    rows,
                    rank,
                    cluster,
                    halved,
                    evens,
                )
                assert 0 <= block_n < tiles_n and 0 <= size <= most_rows and (first - row_start[expert]) % 8 == 0
                assert block_n // slab >= last_slab
                last_slab = block_n // slab
                if size:
                    assert row_start[expert] <= first and first + size <= row_start[expert + 1]
                    met.setdefault((expert, block_n), []).append((first, size))
        for expert, count in enumerate(counts):
            for block_n in range(tiles_n if count else 0):
                spans = sorted(met.pop((expert, block_n)))
                ends = [row_start[expert], *(first + size for first, size in spans)]
                assert [first for first, _ in spans] == ends[:-1] and ends[-1] == row_start[expert + 1]
        assert not met


@pytest.mark.parametrize("count", [64, 65, 140, 192, 193, 257, 260, 300, 320, 321, 384, 385, 448, 449])
def test_the_last_block_is_a_half_one_where_that_holds_the_pairs(schedule, count):
    """Beside full blocks of 128, 64 pairs fit into half a block, which half the products make: of an odd number of
    blocks up to `halved`, and, `evens`, of any."""
    starts = (ctypes.c_int * MOST_EXPERTS)(0, *[NEVER] * (MOST_EXPERTS - 1))
    rows = (ctypes.c_int * (MOST_EXPERTS + 1))(0, *[count] * MOST_EXPERTS)
    slab_tiles = schedule.tiles(count, 128, 4, 2)
    for halved, evens in ((0, 0), (3, 0), (1000, 1)):
        sizes = [
            numbers(schedule.place, 5, tile, 4, 4, 128, starts, slab_tiles, rows, rank, 2, halved, evens)[2]
            for tile in range(slab_tiles) for rank in range(2)
        ]  # fmt: skip
        blocks = -(-count // 128)
        half = blocks <= halved and (evens or blocks % 2) and (count - 1) % 128 < 64
        assert (min(sizes) <= 64) == (half or count == 64) and max(sizes) <= 128
