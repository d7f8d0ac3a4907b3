// Which part of the work a worker takes: a CTA, or a cluster of two CTAs. Plain arithmetic on host and device: a test
// compiles it for the host.
//
// A tile is 256 weight rows times one block of an expert's pairs over the whole K. Tiles are numbered expert by expert,
// and within one the blocks of pairs fastest: neighbours share weights and run at the same time, so L2 serves them.
// The K loops of tiles are laid end to end and every worker takes an equal stretch (stream-K, Osama et al., arXiv
// 2301.03598). Where some expert has several blocks of pairs, whole tiles are dealt out in turn first and only the last
// one to two tiles a worker are split, since blocks that share weights then run at the same time (hybrid stream-K).
#pragma once

#ifdef __CUDACC__
#define DERBY_FUNCTION __host__ __device__ __forceinline__
#else
#define DERBY_FUNCTION inline
#endif

namespace derby {

constexpr int LOCAL_EXPERTS = 32;
static_assert((LOCAL_EXPERTS & (LOCAL_EXPERTS - 1)) == 0, "locate() halves its steps");

struct Share {
    int visits;      // stretches of tiles this worker works on, one after another
    int whole;       // of them whole tiles, dealt out in turn
    int split_from;  // first tile that is split
    int begin;       // this worker's first k block, counted from the start of tile split_from
    int end;         // one past its last
    int stretch;     // k blocks a worker
};

struct Visit {
    int tile, k_begin, k_end;
};

struct Place {
    int expert, block_n;
    int first_slot, rows;  // of the expert's pairs
    int first_row;         // of all pairs, expert by expert
    bool same_weights;     // both CTAs of a cluster have this block_n
};

DERBY_FUNCTION int smaller(int a, int b) { return a < b ? a : b; }
DERBY_FUNCTION int larger(int a, int b) { return a > b ? a : b; }

DERBY_FUNCTION Share share_work(int worker, int workers, int tiles, int k_blocks, bool split_all) {
    Share share;
    share.whole = split_all ? 0 : larger(tiles / workers - 1, 0);
    share.split_from = share.whole * workers;
    const int left = (tiles - share.split_from) * k_blocks;
    share.stretch = larger((left + workers - 1) / workers, 1);
    share.begin = smaller(worker * share.stretch, left);
    share.end = smaller(share.begin + share.stretch, left);
    share.visits = share.whole;
    if (share.end > share.begin) share.visits += (share.end - 1) / k_blocks - share.begin / k_blocks + 1;
    return share;
}

DERBY_FUNCTION Visit visit_at(const Share& share, int visit, int worker, int workers, int k_blocks) {
    Visit at;
    if (visit < share.whole) {
        at.tile = worker + visit * workers;
        at.k_begin = 0;
        at.k_end = k_blocks;
    } else {
        const int in_split = share.begin / k_blocks + visit - share.whole;
        at.tile = share.split_from + in_split;
        at.k_begin = larger(share.begin - in_split * k_blocks, 0);
        at.k_end = smaller(share.end - in_split * k_blocks, k_blocks);
    }
    return at;
}

// The pieces of a split tile belong to workers first_piece..last_piece. The first of them collects the others', which
// they deliver at the start of their stretches, mostly long before. So a worker delivers at most one piece, of the
// tile it begins in the middle of, and collects at most one tile, its last.
DERBY_FUNCTION int first_piece(int in_split, int stretch, int k_blocks) { return in_split * k_blocks / stretch; }
DERBY_FUNCTION int last_piece(int in_split, int stretch, int k_blocks) {
    return (in_split * k_blocks + k_blocks - 1) / stretch;
}

// block_start[e]: blocks of pairs of the experts before e (33 entries); row_start[e]: their pairs. An expert's pairs
// are spread evenly over its blocks, in multiples of 8.
// With a cluster of two CTAs a tile is two of the above, and `rank` says which: two blocks of pairs with the same
// weights while there are two, and the odd block that may be left with two neighbouring blocks of weights.
DERBY_FUNCTION Place locate(int tile, int tiles_n, const int* count, const int* block_start, const int* row_start,
                            int rank, int cluster) {
    const int tiles_a_block = tiles_n / cluster, block = tile / tiles_a_block;
    int expert = 0;
#pragma unroll
    for (int step = LOCAL_EXPERTS / 2; step > 0; step /= 2)
        if (block_start[expert + step] <= block) expert += step;
    const int blocks = block_start[expert + 1] - block_start[expert], groups = blocks / cluster;
    const int in_expert = tile - block_start[expert] * tiles_a_block, odd = in_expert - groups * tiles_n;
    const int rows_a_block = ((count[expert] + blocks - 1) / blocks + 7) / 8 * 8;
    Place place;
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
