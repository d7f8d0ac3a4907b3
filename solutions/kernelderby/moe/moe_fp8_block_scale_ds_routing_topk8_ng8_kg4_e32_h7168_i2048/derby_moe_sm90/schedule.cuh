// Where a tile lies. Which stretch of tiles a worker takes (stream-K, hybrid) stands in experts_schedule.cuh. Plain
// arithmetic on host and device; a test compiles it for the host.
//
// A tile is 256 weight rows times one block of an expert's pairs over the whole K. Tiles are numbered expert by expert,
// and within one the blocks of pairs fastest: neighbours share weights and run at the same time, so L2 serves them.
#pragma once
#include "experts_schedule.cuh"

namespace derby {

constexpr int LOCAL_EXPERTS = 32;
static_assert((LOCAL_EXPERTS & (LOCAL_EXPERTS - 1)) == 0, "locate() halves its steps");

// Of one CTA.
struct Tile {
    int expert, block_n;
    int first_slot, rows;  // of the expert's pairs
    int first_row;         // of all pairs, expert by expert
    bool same_weights;     // both CTAs of a cluster have this block_n
};

// block_start[e]: blocks of pairs of the experts before e (33 entries); row_start[e]: their pairs. An expert's pairs
// are spread evenly over its blocks, in multiples of 8.
// In a cluster of two CTAs a tile is two of the above, and `rank` says which: two blocks of pairs with the same
// weights, or, for an odd block that is left over, that block with two neighbouring blocks of weights.
DERBY_FUNCTION Tile locate(int tile, int tiles_n, const int* count, const int* block_start, const int* row_start,
                           int rank, int cluster) {
    const int tiles_a_block = tiles_n / cluster, block = tile / tiles_a_block;
    int expert = 0;
#pragma unroll
    for (int step = LOCAL_EXPERTS / 2; step > 0; step /= 2)
        if (block_start[expert + step] <= block) expert += step;
    const int blocks = block_start[expert + 1] - block_start[expert], groups = blocks / cluster;
    const int in_expert = tile - block_start[expert] * tiles_a_block, odd = in_expert - groups * tiles_n;
    const int rows_a_block = ((count[expert] + blocks - 1) / blocks + 7) / 8 * 8;
    Tile place;
    int block_m;
    if (odd < 0) {
        place.block_n = in_expert / groups;
        block_m = (in_expert - place.block_n * groups) * cluster + rank;
    } else {
        place.block_n = odd * cluster + rank;
        block_m = blocks - 1;
    }
    place.same_weights = odd < 0;
    place.expert = expert;
    place.first_slot = block_m * rows_a_block;
    place.rows = smaller(rows_a_block, count[expert] - place.first_slot);
    place.first_row = row_start[expert] + place.first_slot;
    return place;
}

}  // namespace derby
