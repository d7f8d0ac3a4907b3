// Stream-K for what would be a last, half empty turn of tiles: its k blocks are spread over all clusters, and the pieces
// of a tile are added up by the CTA that begins it.
#pragma once
#include "parts.cuh"

namespace derby {

// What a cluster does, one after the other: first its stretch of the streamed units' k blocks, then whole units.
template <class F>
struct Stretches {
    int cluster, clusters, rank, k_blocks, place, end, turn;  // place, end: of the stretch, over all streamed k blocks
    int unit, from, to;                                       // k blocks of the unit
    __host__ __device__ Stretches(const Problem& problem, int cta, int ctas)
        : cluster(cta / F::CLUSTER), clusters(ctas / F::CLUSTER), rank(cta % F::CLUSTER),
          k_blocks(problem.extent.k_blocks), place(start(problem, cluster)), end(start(problem, cluster + 1)),
          turn(problem.streamed + cluster) {}
    // Where cluster c's stretch starts.
    static __host__ __device__ int start(const Problem& problem, int c) {
        const long long all = (long long)problem.streamed * problem.extent.k_blocks;
        return problem.streamed ? int(all * (c < problem.sharers ? c : problem.sharers) / problem.sharers) : 0;
    }
    __host__ __device__ bool next(const Problem& problem) {
        if (place < end) {
            unit = place / k_blocks, from = place - unit * k_blocks;
            to = from + end - place < k_blocks ? from + end - place : k_blocks;
            place += to - from;
            return true;
        }
        unit = turn, from = 0, to = k_blocks;
        turn += clusters;
        return unit < problem.extent.turns;
    }
    // First row and column of the tile.
    __host__ __device__ int2 tile(const Extent& extent) const {
        const int2 at = unit_place(unit, extent.unit_rows, extent.unit_columns, extent.group);
        const int down = F::SHARE_X ? at.x : at.x * F::CLUSTER + rank;
        const int across = F::SHARE_X ? at.y * F::CLUSTER + rank : at.y;
        return make_int2(down * F::ROWS, across * F::COLUMNS);
    }
};

// Whole tiles, with the same face.
template <class F>
struct WholeTiles {
    Walk<F> walk;
    int2 place;
    int to;
    static constexpr int from = 0;
    __device__ __forceinline__ WholeTiles(const Problem& problem, int cta, int ctas)
        : walk(cta, ctas), to(problem.extent.k_blocks) {}
    __device__ __forceinline__ bool next(const Problem& problem) {
        if (!walk.more(problem.extent)) return false;
        place = walk.tile(problem.extent);
        walk.next();
        return true;
    }
    __device__ __forceinline__ int2 tile(const Extent&) const { return place; }
};

constexpr int MOST_SHARERS = 4;  // clusters that share a streamed unit, on the average: each piece takes its time

// On the host: what would be a last turn is streamed. clusters: all there are. Returns those to launch, of `used`.
template <class F>
int spread_last_turn(Problem* problem, int used, int clusters) {
    const int rest = problem->extent.turns % clusters;
    if (!rest) return used;
    problem->streamed = rest;
    const int most = rest * (problem->extent.k_blocks < MOST_SHARERS ? problem->extent.k_blocks : MOST_SHARERS);
    problem->sharers = clusters < most ? clusters : most;  // each has a block at least
    return clusters;
}

// As load_operands() of hopper_tiles.cuh, of tiles in stretches.
template <class F>
__device__ __forceinline__ void load_stretches(Ring<F>& ring, Barriers<F::STAGES>& barriers, const CUtensorMap* x_map,
                                               const CUtensorMap* w_map, const Problem& problem) {
    static_assert(F::CLUSTER > 1 && !F::SHARE_X, "a cluster shares the weight");
    constexpr uint16_t ALL = (1 << F::CLUSTER) - 1;
    uint32_t step = 0;
    for (Stretches<F> walk(problem, blockIdx.x, gridDim.x); walk.next(problem);) {
        const int2 tile = walk.tile(problem.extent);
        const int w_first = walk.rank * F::W_BOX;
        // Boxes without a row of x are left out: what lies in their place only reaches rows that are not stored.
        const int inside = max((min(F::ROWS, problem.extent.m - tile.x) + F::X_BOX - 1) / F::X_BOX * F::X_BOX, 0);
        for (int k = walk.from; k < walk.to; ++k, ++step) {
            const uint32_t s = step % F::STAGES;
            mbarrier_wait(shared_address(&barriers.empty[s]), (step / F::STAGES & 1) ^ 1);
            const uint32_t full = shared_address(&barriers.full[s]);
            mbarrier_arrive_expect_tx(full, (inside + F::COLUMNS) * ROW_BYTES);
            for (int i = 0; i < inside; i += F::X_BOX)
                tma_load(shared_address(ring.x[s]) + i * ROW_BYTES, x_map, full, k * BLOCK, tile.x + i);
            tma_load_multicast(shared_address(ring.w[s]) + w_first * ROW_BYTES, w_map, full, ALL, k * BLOCK,
                               tile.y + w_first);
        }
    }
}

// This CTA's sums of a stretch that does not begin a tile, for the CTA that begins it. Nobody waits.
template <class F>
__device__ __forceinline__ void deliver_piece(const Problem& problem, const float* d) {
    float4* piece = problem.pieces + size_t(blockIdx.x) * (F::ROWS * F::COLUMNS / 4) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < F::COLUMNS / 8; ++i)
        piece[i * F::CONSUMERS] = make_float4(d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]);
    named_barrier_sync(1, F::CONSUMERS);
    if (threadIdx.x == 0) {
        __threadfence();
        atomicExch(problem.arrived + blockIdx.x, 1);
    }
}

// Adds the other clusters' pieces of the unit that this cluster begins. Those deliver before they wait for anybody.
template <class F>
__device__ __forceinline__ void collect_pieces(const Problem& problem, const Stretches<F>& work, float* d) {
    constexpr int AT_ONCE = 16;
    const int unit_end = (work.unit + 1) * work.k_blocks;
    for (int c = work.cluster + 1; c < problem.sharers && Stretches<F>::start(problem, c) < unit_end; ++c) {
        const int cta = c * F::CLUSTER + work.rank;
        if (threadIdx.x == 0) {
            while (!load_acquire(problem.arrived + cta)) {
            }
            problem.arrived[cta] = 0;
        }
        named_barrier_sync(1, F::CONSUMERS);
        const float4* piece = problem.pieces + size_t(cta) * (F::ROWS * F::COLUMNS / 4) + threadIdx.x;
#pragma unroll
        for (int part = 0; part < F::COLUMNS / 8; part += AT_ONCE) {
            float4 theirs[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) theirs[i] = __ldcg(piece + (part + i) * F::CONSUMERS);
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                float* sum = d + 4 * (part + i);
                sum[0] += theirs[i].x, sum[1] += theirs[i].y, sum[2] += theirs[i].z, sum[3] += theirs[i].w;
            }
        }
    }
}

}  // namespace derby
