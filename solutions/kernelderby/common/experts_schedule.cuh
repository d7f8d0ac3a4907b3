// Which part of the work a worker takes; a worker is a CTA or a cluster of two CTAs. It is plain arithmetic for host
// and device, so a test can compile it for the host.
//
// A tile is 256 weight rows times one block of an expert's pairs over the whole K. Tiles are numbered slab by slab (a
// slab is some neighbouring blocks of weights of every expert), within a slab expert by expert, and within an expert
// the blocks of pairs fastest: neighbours share weights and run at the same time, so L2 serves them.
// The K loops of tiles are laid end to end and every worker takes an equal stretch (stream-K, Osama et al., arXiv
// 2301.03598). If some expert has several blocks of pairs, whole tiles are first dealt out in turn, and only the last
// one to two tiles a worker are split, so that blocks that share weights run at the same time (hybrid stream-K).
#pragma once

#ifdef __CUDACC__
#define DERBY_FUNCTION __host__ __device__ __forceinline__
#else
#define DERBY_FUNCTION inline
#endif

namespace derby {

constexpr int MOST_EXPERTS = 256;
constexpr int NEVER = 0x7fffffff;  // the first tile of an expert that does not exist

// What the blocks of one GEMM's weights are.
struct Layout {
    int k_blocks;  // of 128 bytes of K
    int tiles_n;   // blocks of 256 weight rows of an expert
    int slab;      // of them those of a slab; it divides tiles_n
};

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
    int rows;           // pairs; 0 for a CTA of a cluster that has no block of weights left
    int first_row;      // of all pairs, expert by expert
    bool same_weights;  // both CTAs of a cluster have this block_n
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

// Blocks of up to `most` pairs that `count` pairs of an expert make.
DERBY_FUNCTION int blocks_of(int count, int most) { return (count + most - 1) / most; }

// The number of tiles of one expert's blocks of pairs in a slab. In a cluster of two CTAs a tile is two tiles of a
// single CTA: two blocks of pairs with the same weights, or, for an odd block that is left over, that block with two
// neighbouring blocks of weights.
DERBY_FUNCTION int tiles_of(int blocks, int slab, int cluster) {
    return blocks / cluster * slab + blocks % cluster * ((slab + cluster - 1) / cluster);
}

// A tile of a slab, whose first block of weights is first_n. tile_start[e]: tiles of a slab before those of expert e,
// EXPERTS entries, a power of two, NEVER where there is no expert; row_start[e]: pairs of the experts before e. An
// expert's pairs are spread evenly over its blocks, in multiples of 8, except for a half block. rank: of the CTA in its
// cluster. halved: up to this many blocks the last one of an odd number may be a half block; evens: also the last one of
// an even number.
template <int EXPERTS>
DERBY_FUNCTION Place locate_in_slab(int tile, int first_n, int slab, int most_rows, const int* tile_start,
                                    const int* row_start, int rank, int cluster, int halved, bool evens) {
    static_assert((EXPERTS & (EXPERTS - 1)) == 0, "the search halves its steps");
    int expert = 0;
#pragma unroll
    for (int step = EXPERTS / 2; step > 0; step /= 2)
        if (tile_start[expert + step] <= tile) expert += step;
    const int count = row_start[expert + 1] - row_start[expert];
    const int blocks = blocks_of(count, most_rows), groups = blocks / cluster;
    const int in_expert = tile - tile_start[expert], odd = in_expert - groups * slab;
    // If pairs are wgmma's M, they are shared out in half blocks.
    const bool half = (blocks % 2 || evens) && blocks <= halved && (count - 1) % most_rows < most_rows / 2;
    const int units = half ? 2 * blocks - 1 : 2 * blocks;  // half blocks
    const int rows_a_block = blocks > 1 ? ((2 * count + units - 1) / units + 7) / 8 * 8 : (count + 7) / 8 * 8;
    Place place;
    int block_m;
    bool idle = false;
    if (odd < 0) {
        place.block_n = in_expert / groups;
        block_m = (in_expert - place.block_n * groups) * cluster + rank;
    } else {
        place.block_n = odd * cluster + rank;
        idle = place.block_n >= slab;
        if (idle) place.block_n = slab - 1;
        block_m = blocks - 1;
    }
    place.block_n += first_n;
    place.same_weights = odd < 0;
    place.expert = expert;
    const int first_slot = block_m * rows_a_block;
    place.rows = idle ? 0 : larger(smaller(rows_a_block, count - first_slot), 0);
    place.first_row = row_start[expert] + smaller(first_slot, count);
    return place;
}

// slab_tiles: of a whole slab.
DERBY_FUNCTION Place locate(int tile, const Layout& layout, int most_rows, const int* tile_start, int slab_tiles,
                            const int* row_start, int rank, int cluster, int halved, bool evens) {
    const int slab = tile / slab_tiles;
    return locate_in_slab<MOST_EXPERTS>(tile - slab * slab_tiles, slab * layout.slab, layout.slab, most_rows, tile_start,
                                        row_start, rank, cluster, halved, evens);
}

}  // namespace derby
