// Tiles of a dense GEMM x [m, k] @ w [n, k]^T for Hopper: their forms and order, the warp that loads them.
//
// A persistent CTA has consumer warpgroups that multiply, and a last one that produces. Operands go through a ring
// of stages, each a block of 128 bytes along k: `full` counts the bytes that have come (and what else the kernel adds),
// `empty` the consumer warps that are done with it, in every CTA that the stage's bytes were multicast to.
#pragma once
#include "dynamic_shared.cuh"
#include "launch.cuh"
#include "once_a_device.cuh"
#include "pipeline.cuh"
#include "wgmma.cuh"

namespace derby {

constexpr int ROW_BYTES = 128;  // of a stage: a block along k, 128 values in 8 bits or 64 in 16
constexpr int WARP = 32, WARPGROUP = 128;

// ROWS x COLUMNS outputs a tile, a multiple of 64 rows for each of GROUPS consumer warpgroups. SPLIT: they share the
// tile's k blocks instead of its rows. CLUSTER CTAs share x (their tiles lie side by side) or, SHARE_X false, the
// weight (one below the other).
template <int ROWS_, int COLUMNS_, bool SPLIT_, int STAGES_, int CLUSTER_, bool SHARE_X_, int GROUPS_ = 2>
struct Form {
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, STAGES = STAGES_, CLUSTER = CLUSTER_;
    static constexpr bool SPLIT = SPLIT_, SHARE_X = SHARE_X_;
    static constexpr int GROUPS = GROUPS_, CONSUMERS = GROUPS * WARPGROUP, THREADS = CONSUMERS + WARPGROUP;
    static constexpr int HALVES = SPLIT ? ROWS / 64 : ROWS / 64 / GROUPS;  // of 64 rows, of a warpgroup
    static constexpr int X_PART = SHARE_X ? ROWS / CLUSTER : ROWS, W_BOX = SHARE_X ? COLUMNS : COLUMNS / CLUSTER;
    // Rows that one load of x brings.
    static constexpr int X_BOX = COLUMNS <= 64 || X_PART < 64 ? 16 : X_PART % 64 ? 32 : 64;
    static constexpr bool HALVES_TAIL = !SPLIT && ROWS == 256;  // the last tiles may be done as two of half the rows
    static constexpr int EMPTY_ARRIVALS = (SPLIT ? 1 : GROUPS) * WARPGROUP / WARP * CLUSTER;
    static_assert(HALVES >= 1 && ROWS == HALVES * 64 * (SPLIT ? 1 : GROUPS), "wgmma multiplies 64 rows of a warpgroup");
    static_assert(COLUMNS % 8 == 0 && COLUMNS <= 256, "columns of a wgmma");
    static_assert(CLUSTER >= 1 && CLUSTER <= 8, "CTAs of a cluster that every GPU of sm_90 takes");
    static_assert(X_PART * (SHARE_X ? CLUSTER : 1) == ROWS && W_BOX * (SHARE_X ? 1 : CLUSTER) == COLUMNS,
                  "the CTAs of a cluster load equal parts");
    static_assert(X_PART % X_BOX == 0 && W_BOX % 8 == 0, "whole boxes; the swizzle goes by 8 rows, 1024 bytes");
};

// What every kernel's shared memory begins with.
template <class F>
struct Ring {
    uint8_t x[F::STAGES][F::ROWS * ROW_BYTES];
    uint8_t w[F::STAGES][F::COLUMNS * ROW_BYTES];
};

struct Extent {
    int m, n, k_blocks;
    int unit_rows, unit_columns, group;  // see unit_place(); a unit is what a cluster does at a time
    int whole, turns;  // the first `whole` turns are a unit each, the others (of HALVES_TAIL) half a unit's rows
};

// The place of unit u among rows x columns units. Units are numbered by groups of `group` rows, and within a group
// column after column, so that the CTAs at work share both operands in L2.
__host__ __device__ __forceinline__ int2 unit_place(int u, int rows, int columns, int group) {
    const int whole = group * columns, first = u / whole * group, within = u % whole;
    const int high = group < rows - first ? group : rows - first;
    return make_int2(first + within % high, within / high);
}

// The tiles of CTA `cta` of `ctas`, one after the other.
template <class F>
struct Walk {
    int turn, step, rank;
    __host__ __device__ Walk(int cta, int ctas)
        : turn(cta / F::CLUSTER), step(ctas / F::CLUSTER), rank(cta % F::CLUSTER) {}
    __host__ __device__ bool more(const Extent& extent) const { return turn < extent.turns; }
    __host__ __device__ void next() { turn += step; }
    // Half the rows only.
    __host__ __device__ bool half(const Extent& extent) const { return F::HALVES_TAIL && turn >= extent.whole; }
    // First row and column of the tile.
    __host__ __device__ int2 tile(const Extent& extent) const {
        const int beyond = turn - extent.whole, unit = half(extent) ? extent.whole + beyond / 2 : turn;
        const int2 place = unit_place(unit, extent.unit_rows, extent.unit_columns, extent.group);
        const int down = F::SHARE_X ? place.x : place.x * F::CLUSTER + rank;
        const int across = F::SHARE_X ? place.y * F::CLUSTER + rank : place.y;
        return make_int2(down * F::ROWS + (half(extent) ? beyond % 2 * (F::ROWS / 2) : 0), across * F::COLUMNS);
    }
};

// One thread: all loads of this CTA. BLOCK: values of a stage along k.
template <class F, int BLOCK>
__device__ __forceinline__ void load_operands(Ring<F>& ring, const Pipeline<F::STAGES>& barriers,
                                              const CUtensorMap* x_map, const CUtensorMap* w_map,
                                              const Extent& extent) {
    constexpr uint16_t ALL = (1 << F::CLUSTER) - 1;
    uint32_t step = 0;
    for (Walk<F> walk(blockIdx.x, gridDim.x); walk.more(extent); walk.next()) {
        const int2 tile = walk.tile(extent);
        const int rows = walk.half(extent) ? F::ROWS / 2 : F::ROWS, part = F::SHARE_X ? rows / F::CLUSTER : rows;
        const int x_first = F::SHARE_X ? walk.rank * part : 0, w_first = F::SHARE_X ? 0 : walk.rank * F::W_BOX;
        // Boxes without a row of x are not loaded: the old values in their place only influence rows that are not
        // stored.
        const int inside = max((min(rows, extent.m - tile.x) + F::X_BOX - 1) / F::X_BOX * F::X_BOX, 0);
        for (int k = 0; k < extent.k_blocks; ++k, ++step) {
            const uint32_t s = step % F::STAGES;
            mbarrier_wait(barriers.empty(s), (step / F::STAGES & 1) ^ 1);
            const uint32_t full = barriers.full(s);
            mbarrier_arrive_expect_tx(full, (inside + F::COLUMNS) * ROW_BYTES);
#pragma unroll
            for (int i = 0; i < F::X_PART; i += F::X_BOX) {
                if (i >= part || x_first + i >= inside) break;
                const uint32_t x = shared_address(ring.x[s]) + (x_first + i) * ROW_BYTES;
                if (F::CLUSTER > 1 && F::SHARE_X)
                    tma_load_multicast(x, x_map, full, ALL, k * BLOCK, tile.x + x_first + i);
                else tma_load(x, x_map, full, k * BLOCK, tile.x + i);
            }
            const uint32_t w = shared_address(ring.w[s]) + w_first * ROW_BYTES;
            if (F::CLUSTER > 1 && !F::SHARE_X)
                tma_load_multicast(w, w_map, full, ALL, k * BLOCK, tile.y + w_first);
            else tma_load(w, w_map, full, k * BLOCK, tile.y);
        }
    }
}

// Says that a consumer warp is done with stage s.
template <class F>
__device__ __forceinline__ void release(const Pipeline<F::STAGES>& barriers, uint32_t s) {
    const int lane = threadIdx.x % WARP;
    if (F::CLUSTER == 1) barriers.release({s, 0});
    else if (lane < F::CLUSTER) mbarrier_arrive_remote(barriers.empty(s), lane);
}

// All threads, before anything else. full_arrivals: one for the loads, and one for each other producer.
template <class F>
__device__ __forceinline__ void set_up(Pipeline<F::STAGES>& barriers, int full_arrivals) {
    if (threadIdx.x == 0) {
        barriers.init(full_arrivals, F::EMPTY_ARRIVALS);
        fence_mbarrier_init();
    }
    if (F::CLUSTER > 1) cluster_sync();
    else __syncthreads();
}

// Host ------------------------------------------------------------------------------------------------------------

// m, n, the units and the turns of a form. Returns the CTAs to launch, at most `ctas`.
template <class F>
int fill_extent(Extent* extent, int m, int n, int k_blocks, int group, int ctas) {
    const int down = F::SHARE_X ? F::ROWS : F::ROWS * F::CLUSTER;
    const int across = F::SHARE_X ? F::COLUMNS * F::CLUSTER : F::COLUMNS;
    *extent = {m, n, k_blocks, (m + down - 1) / down, (n + across - 1) / across, group};
    const int units = extent->unit_rows * extent->unit_columns, clusters = ctas / F::CLUSTER;
    const int rest = units % clusters;
    const bool halves = F::HALVES_TAIL && 2 * rest <= clusters;
    extent->whole = halves ? units - rest : units;
    extent->turns = halves ? units + rest : units;
    return F::CLUSTER * (extent->turns < clusters ? extent->turns : clusters);
}

}  // namespace derby
