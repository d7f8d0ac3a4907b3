// Tiles of a dense bf16 GEMM x [m, k] @ w [n, k]^T for Hopper: their forms, and which CTA does which of them.
//
// A CTA has consumer warpgroups that multiply and a last warp(group) that loads, through a ring of stages of 64 or 128
// values along k. Of many tiles a CTA does several, one after the other; of few, `splits` CTAs share each. The cluster
// then has `splits` times the form's CTAs; those with one share of k have ranks that follow one another.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace derby {

constexpr int WARP = 32, WARPGROUP = 128;
constexpr int BLOCK = 64;        // values of a box along k; a stage has one box of each operand, or DEEP
constexpr int ROW_BYTES = 128;   // of a box: they, in bf16
constexpr int MOST_CTAS = 8;     // of a portable cluster

// A tile is ROWS x COLUMNS products, HALVES times 64 rows for each of GROUPS consumer warpgroups. Its rows are rows of
// x and its columns are rows of the weight; TURNED, it is the other way round, and a tile's width, which may be any
// multiple of 8, divides up the rows of x. `a` is the operand of the rows, `b` that of the columns. A cluster's tiles
// form a rectangle: BESIDE of them lie side by side and share a, BELOW of them lie one below the other and share b.
// LATER: a tile's output is stored while the next tile's products are computed. A CTA with a single warpgroup, not in a
// cluster, shares its multiprocessor with a second CTA. DEEP: blocks of 64 values in a stage; with two, small tiles and
// large clusters wait for each other half as often.
template <int ROWS_, int COLUMNS_, int GROUPS_, int STAGES_, int CLUSTER_ = 1, int BESIDE_ = 1, bool LATER_ = false,
          bool TURNED_ = false, int DEEP_ = 1>
struct Form {
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, GROUPS = GROUPS_, STAGES = STAGES_, CLUSTER = CLUSTER_;
    static constexpr int BESIDE = BESIDE_, BELOW = CLUSTER / BESIDE;
    static constexpr bool LATER = LATER_, TURNED = TURNED_;
    static constexpr int DEEP = DEEP_;
    static constexpr int CONSUMERS = GROUPS * WARPGROUP, THREADS = CONSUMERS + (GROUPS == 1 ? WARP : WARPGROUP);
    static constexpr int RESIDENT = GROUPS == 1 && CLUSTER == 1 ? 2 : 1;  // CTAs of a multiprocessor
    static constexpr int HALVES = ROWS / 64 / GROUPS;
    static constexpr int HALF = COLUMNS / 2;              // sums of a thread in 64 rows
    static constexpr int COUNT = HALVES * HALF;           // sums of a thread
    static constexpr int A_PART = ROWS / BESIDE;  // rows of a box, which a CTA loads for all that share the operand
    static constexpr int B_PART = (COLUMNS / BELOW + 7) / 8 * 8;
    static constexpr int STAGE = (ROWS + COLUMNS) * ROW_BYTES * DEEP;
    // Output is stored through the stages in boxes of 64 columns: a box has 16 rows of a warp or, TURNED, all rows of
    // the tile.
    static constexpr bool BY_TMA = TURNED || COLUMNS >= 64;
    static constexpr int ACROSS = (COLUMNS + 63) / 64;
    static constexpr int OUT_ROWS = TURNED ? COLUMNS : LATER ? 8 : 16;  // of the output's tensor map
    static constexpr int BOX = (TURNED ? COLUMNS : 16) * ROW_BYTES, BOXES = ROWS / 64 * (TURNED ? 1 : 4 * ACROSS);
    static constexpr int IN_STAGE = STAGE / BOX, ENDS = (BOXES + IN_STAGE - 1) / IN_STAGE;  // stages that they take
    static constexpr bool SPLITS = !LATER && COUNT <= 104;  // whether CTAs may share a tile's k blocks
    static constexpr int EMPTY_ARRIVALS = GROUPS * CLUSTER;
    static_assert(ROWS == 64 * GROUPS * HALVES, "a warpgroup's products have 64 rows");
    static_assert(CLUSTER == BELOW * BESIDE && A_PART % 8 == 0, "a cluster's tiles are a rectangle of whole ones");
    static_assert(COUNT <= (LATER ? 128 : GROUPS == 3 ? 104 : 200), "more sums do not fit into a consumer's registers");
    static_assert(COLUMNS % 8 == 0 && B_PART % 8 == 0 && B_PART <= 256, "the widths of wgmma, and of a box of TMA");
    static_assert(!LATER || (COLUMNS % 64 == 0 && GROUPS == 2 && !TURNED), "packed sums want registers beside the next");
    static_assert(!BY_TMA || ENDS < STAGES, "the next tile's loads have a stage at least");
};

struct Extent {
    int m, n, k_blocks;  // k_blocks: stages along k
    int unit_rows, unit_columns, group;  // see unit_place(); a unit is what a cluster does at a time
    int a_box, b_box;  // rows that one load brings: a CTA's part of the tile's, or fewer where there are fewer
    int splits;  // CTAs that share a tile's k blocks; 1: each has tiles of its own
    int staged, by_hand;  // whether output leaves through the stages, and by ordinary stores: n is no multiple of 8
    __host__ __device__ int units() const { return unit_rows * unit_columns; }
};

// The place of unit u among rows x columns units. Units are numbered by groups of `group` rows, and within a group
// column after column, so that the CTAs at work share both operands in L2.
__host__ __device__ __forceinline__ int2 unit_place(int u, const Extent& extent) {
    const int whole = extent.group * extent.unit_columns, first = u / whole * extent.group, within = u % whole;
    const int high = extent.group < extent.unit_rows - first ? extent.group : extent.unit_rows - first;
    return make_int2(first + within % high, within / high);
}

// First row and column (of a and b) of the tile of unit u that CTA `rank` of a cluster computes.
template <class F>
__host__ __device__ __forceinline__ int2 tile_of(int u, int rank, const Extent& extent) {
    const int2 at = unit_place(u, extent);
    const int down = at.x * F::BELOW + rank / F::BESIDE, across = at.y * F::BESIDE + rank % F::BESIDE;
    return make_int2(down * F::ROWS, across * F::COLUMNS);
}

// Which share of its tiles' k blocks a CTA does.
template <class F>
__host__ __device__ __forceinline__ int share_of(int cta, const Extent& extent) {
    return cta / F::CLUSTER % extent.splits;
}

// The tiles of a CTA, one after the other, each with its stages [from, to) along k: all of them, or one of `splits` shares.
template <class F>
struct WholeTiles {
    int turn, step, rank, from, to;
    int2 tile;
    __host__ __device__ WholeTiles(const Extent& extent, int cta, int ctas)
        : turn(cta / (F::CLUSTER * extent.splits)), step(ctas / (F::CLUSTER * extent.splits)), rank(cta % F::CLUSTER),
          from(extent.k_blocks * share_of<F>(cta, extent) / extent.splits),
          to(extent.k_blocks * (share_of<F>(cta, extent) + 1) / extent.splits) {}
    __host__ __device__ bool more(const Extent& extent) const { return turn < extent.units(); }
    __host__ __device__ bool next(const Extent& extent) {
        if (!more(extent)) return false;
        tile = tile_of<F>(turn, rank, extent);
        turn += step;
        return true;
    }
};

// Host ------------------------------------------------------------------------------------------------------------

// The units of a form and how they are spread over at most `ctas` CTAs at a time. Returns the CTAs to launch.
template <class F>
int fill_extent(Extent* extent, int m, int n, int k_blocks, int group, int splits, int ctas) {
    const int down = F::ROWS * F::BELOW, across = F::COLUMNS * F::BESIDE;
    const int a_rows = F::TURNED ? n : m, b_rows = F::TURNED ? m : n;
    const int a_box = a_rows < F::A_PART ? (a_rows + 7) / 8 * 8 : F::A_PART;
    const int b_box = b_rows < F::B_PART ? (b_rows + 7) / 8 * 8 : F::B_PART;
    *extent = {m, n, k_blocks, (a_rows + down - 1) / down, (b_rows + across - 1) / across, group, a_box, b_box, splits,
               F::BY_TMA && splits == 1, n % 8 != 0};
    // Larger clusters do not divide the multiprocessors of a GPC and leave some of them without a CTA: 120 of an H200's
    // 132 get one.
    const int units = extent->units(), places = F::CLUSTER > 2 ? ctas - ctas / 11 : ctas;
    const int clusters = places < F::CLUSTER ? 1 : places / F::CLUSTER;
    // If tiles are shared, each cluster has one tile; if two CTAs share a multiprocessor, each CTA has one tile.
    if (splits > 1 || F::RESIDENT > 1) return units * F::CLUSTER * splits;
    return F::CLUSTER * (units < clusters ? units : clusters);
}

}  // namespace derby
