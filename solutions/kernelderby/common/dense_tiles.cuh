// Tiles of a dense bf16 GEMM x [m, k] @ w [n, k]^T for Hopper: their forms, and which CTA does which of them.
//
// A CTA has consumer warpgroups that multiply and a last warp(group) that loads, through a ring of stages of 64 values
// along k. Of many tiles a CTA does several, one after the other; of few, `splits` CTAs of a cluster share each.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace derby {

constexpr int WARP = 32, WARPGROUP = 128;
constexpr int BLOCK = 64;        // values of a stage along k
constexpr int ROW_BYTES = 128;   // of a stage: they, in bf16

// ROWS x COLUMNS outputs a tile, HALVES times 64 rows for each of GROUPS consumer warpgroups. CLUSTER CTAs share x (their
// tiles lie side by side) or, SHARE_X false, the weight (one below the other). LATER: a tile's output leaves under the next
// tile's products. One warpgroup alone shares its multiprocessor with a second CTA.
template <int ROWS_, int COLUMNS_, int GROUPS_, int STAGES_, int CLUSTER_ = 1, bool SHARE_X_ = false, bool LATER_ = false>
struct Form {
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, GROUPS = GROUPS_, STAGES = STAGES_, CLUSTER = CLUSTER_;
    static constexpr bool SHARE_X = SHARE_X_, LATER = LATER_;
    static constexpr int CONSUMERS = GROUPS * WARPGROUP, THREADS = CONSUMERS + (GROUPS == 1 ? WARP : WARPGROUP);
    static constexpr int RESIDENT = GROUPS == 1 ? 2 : 1;  // CTAs of a multiprocessor
    static constexpr int HALVES = ROWS / 64 / GROUPS;
    static constexpr int HALF = COLUMNS / 2;              // sums of a thread in 64 rows
    static constexpr int COUNT = HALVES * HALF;           // sums of a thread
    static constexpr int X_PART = SHARE_X ? ROWS / CLUSTER : ROWS, W_BOX = SHARE_X ? COLUMNS : COLUMNS / CLUSTER;
    static constexpr bool BY_TMA = COLUMNS % 64 == 0;     // output in boxes of 64 columns
    static constexpr int EMPTY_ARRIVALS = CONSUMERS / WARP * CLUSTER;
    static_assert(ROWS == 64 * GROUPS * HALVES, "a warpgroup's products have 64 rows");
    static_assert(COUNT <= 128, "more sums do not fit into a consumer's registers");
    static_assert(COLUMNS % 8 == 0 && W_BOX % 8 == 0 && W_BOX <= 256, "the widths of wgmma, and of a box of TMA");
    static_assert(!LATER || (BY_TMA && GROUPS == 2), "packed sums want registers beside the next tile's");
};

struct Extent {
    int m, n, k_blocks;
    int unit_rows, unit_columns, group;  // see unit_place(); a unit is what a cluster does at a time
    int x_box;   // rows that one load of x brings: a CTA's part of the tile's, or fewer where x has fewer
    int splits;  // CTAs of a cluster that share a tile's k blocks; 1: each has tiles of its own
    __host__ __device__ int units() const { return unit_rows * unit_columns; }
};

// Unit u of rows x columns units: groups of `group` rows, within them column after column, so that the CTAs at work
// share both operands in L2.
__host__ __device__ __forceinline__ int2 unit_place(int u, const Extent& extent) {
    const int whole = extent.group * extent.unit_columns, first = u / whole * extent.group, within = u % whole;
    const int high = extent.group < extent.unit_rows - first ? extent.group : extent.unit_rows - first;
    return make_int2(first + within % high, within / high);
}

// First row and column of the tile that CTA `rank` of a cluster has of unit u.
template <class F>
__host__ __device__ __forceinline__ int2 tile_of(int u, int rank, const Extent& extent) {
    const int2 at = unit_place(u, extent);
    const int down = F::SHARE_X ? at.x : at.x * F::CLUSTER + rank;
    const int across = F::SHARE_X ? at.y * F::CLUSTER + rank : at.y;
    return make_int2(down * F::ROWS, across * F::COLUMNS);
}

// The tiles of a CTA, one after the other, of each the k blocks [from, to): all, or its share of `splits`.
template <class F>
struct WholeTiles {
    int turn, step, rank, from, to;
    int2 tile;
    __host__ __device__ WholeTiles(const Extent& extent, int cta, int ctas)
        : turn(cta / (F::CLUSTER * extent.splits)), step(ctas / (F::CLUSTER * extent.splits)), rank(cta % F::CLUSTER),
          from(extent.k_blocks * (cta % extent.splits) / extent.splits),
          to(extent.k_blocks * (cta % extent.splits + 1) / extent.splits) {}
    __host__ __device__ bool next(const Extent& extent) {
        if (turn >= extent.units()) return false;
        tile = tile_of<F>(turn, rank, extent);
        turn += step;
        return true;
    }
};

// Host ------------------------------------------------------------------------------------------------------------

// The units of a form and how they are spread over at most `ctas` CTAs at a time. Returns the CTAs to launch.
template <class F>
int fill_extent(Extent* extent, int m, int n, int k_blocks, int group, int splits, int ctas) {
    const int down = F::SHARE_X ? F::ROWS : F::ROWS * F::CLUSTER;
    const int across = F::SHARE_X ? F::COLUMNS * F::CLUSTER : F::COLUMNS;
    const int x_box = m < F::X_PART ? (m + 7) / 8 * 8 : F::X_PART;
    *extent = {m, n, k_blocks, (m + down - 1) / down, (n + across - 1) / across, group, x_box, splits};
    const int units = extent->units(), clusters = ctas / F::CLUSTER;
    // Tiles that are shared are one for each cluster, and CTAs that have company on their multiprocessor have one each.
    if (splits > 1 || F::RESIDENT > 1) return units * F::CLUSTER * splits;
    return F::CLUSTER * (units < clusters ? units : clusters);
}

}  // namespace derby
