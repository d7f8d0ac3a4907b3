// output [m, n] = E(x [m, k] @ w [n, k]^T + bias), bf16, sums in float32: one kernel for every form and every E.
//
// Consumer warpgroups multiply, one thread loads by TMA. Where there are many tiles a CTA does several; a tile's sums are
// packed into half the registers and leave through shared memory by TMA while the next tile's products are made, the second
// warpgroup's parts half way between the first's. Where there are few, a cluster may share a tile's k blocks.
//
// Constraints: x and w contiguous, 16-byte aligned, k a multiple of 8; output (and multiplier) contiguous, 16-byte
// aligned; any m and n from 1 on.
#pragma once
#include "dense_join.cuh"
#include "dense_later.cuh"

namespace derby {

constexpr int SPREAD = 6;  // k blocks between two parts of the tile before, at most

// One thread: all loads of this CTA.
template <class F>
__device__ __forceinline__ void load_tiles(Shared<F>& shared, const CUtensorMap* x_map, const CUtensorMap* w_map,
                                           const Extent& extent) {
    constexpr uint16_t ALL = (1 << F::CLUSTER) - 1;
    const int rank = blockIdx.x % F::CLUSTER, x_first = F::SHARE_X ? rank * F::X_PART : 0;
    const int w_first = F::SHARE_X ? 0 : rank * F::W_BOX;
    // Rows of a box that x does not have are zeros; places that no box reaches only count for rows that are not stored.
    const uint32_t bytes = (extent.x_box * (F::SHARE_X ? F::CLUSTER : 1) + F::COLUMNS) * ROW_BYTES;
    PipelineState<F::STAGES> at;
    for (WholeTiles<F> work(extent, blockIdx.x, gridDim.x); work.next(extent);) {
        const int2 tile = work.tile;
        for (int k = work.from; k < work.to; ++k, at.next()) {
            const uint32_t barrier = shared.ring.acquire(at, bytes);
            const uint32_t x = shared_address(shared.x[at.stage]) + x_first * ROW_BYTES;
            const uint32_t w = shared_address(shared.w[at.stage]) + w_first * ROW_BYTES;
            if (F::CLUSTER > 1 && !F::SHARE_X) tma_load_multicast(w, w_map, barrier, ALL, k * BLOCK, tile.y + w_first);
            else tma_load(w, w_map, barrier, k * BLOCK, tile.y);
            if (F::CLUSTER > 1 && F::SHARE_X) tma_load_multicast(x, x_map, barrier, ALL, k * BLOCK, tile.x + x_first);
            else tma_load(x, x_map, barrier, k * BLOCK, tile.x);
        }
    }
}

// The tile's bias, for all consumers: bias_there says that all of it is.
template <class F>
__device__ __forceinline__ void read_bias(Shared<F>& shared, const Problem& problem, int column, int parity) {
    for (int i = threadIdx.x; i < F::COLUMNS; i += F::CONSUMERS)
        shared.bias[parity][i] = column + i < problem.extent.n ? problem.bias[column + i] : __nv_bfloat16(0.0f);
    __syncwarp();
    if (threadIdx.x % WARP == 0) mbarrier_arrive(shared_address(&shared.bias_there));
}

// This warpgroup's products of a tile, parts of the tile before between them.
template <class E, class F>
__device__ __forceinline__ void multiply_tile(Shared<F>& shared, PipelineState<F::STAGES>& at,
                                              const CUtensorMap* out_map, const Problem& problem, Later<E, F>& later,
                                              int group, int k_blocks, float* d) {
    int before = -1, done = 0;  // a stage; k blocks
    if constexpr (F::LATER) {
        // The second warpgroup's parts come half way between the first's: while one finishes, the other multiplies.
        const int spread = max(min(k_blocks / (later.PARTS + 1), SPREAD), 1), behind = group * (spread / 2);
#pragma unroll
        for (int part = 0; part < later.PARTS; ++part) {
            const int to = min((part + 1) * spread + behind, k_blocks);
            before = multiply<F>(shared, at, group, to - done, done == 0, before, d);
            done = to;
            if (later.any) later.finish(shared, out_map, problem, part);
        }
    }
    before = multiply<F>(shared, at, group, k_blocks - done, done == 0, before, d);
    last_product<F>(shared, before, d);
}

template <class E, class F>
__device__ __forceinline__ void consume(Shared<F>& shared, const CUtensorMap* out_map, const Problem& problem) {
    const Extent& extent = problem.extent;
    const int group = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0);  // the same in all lanes
    const bool by_tma = F::BY_TMA && extent.n % 8 == 0 && extent.splits == 1, biased = by_tma && problem.bias;
    int parity = 0;
    PipelineState<F::STAGES> at;
    Later<E, F> later;
    for (WholeTiles<F> work(extent, blockIdx.x, gridDim.x); work.next(extent); parity ^= 1) {
        const int row = work.tile.x + group * (64 * F::HALVES) + threadIdx.x / WARP % 4 * 16, column = work.tile.y;
        if (biased) read_bias<F>(shared, problem, column, parity);
        float d[F::COUNT];
        pin<F::COUNT>(d);
        multiply_tile<E, F>(shared, at, out_map, problem, later, group, work.to - work.from, d);
        if (biased) mbarrier_wait(shared_address(&shared.bias_there), parity);
        if (by_tma) {
            if constexpr (F::BY_TMA) later.take(d, shared.bias[parity], biased, row, column);
            if constexpr (F::LATER) later.read_multiplier(problem, 0);
            else if constexpr (F::BY_TMA) later.finish_all(shared, out_map, problem);
        } else if (F::CLUSTER == 1 && extent.splits > 1) {
            join_cluster<E, F>(shared, problem, d, row, column);
        } else {
            constexpr int SOME = E::MULTIPLIES ? 4 : F::HALF % 16 ? 8 : 16;
#pragma unroll
            for (int i = 0; i < F::COUNT; i += SOME)
                store_direct<E, SOME>(problem, d + i, row + i / F::HALF * 64, column + i % F::HALF * 2);
        }
    }
    if constexpr (F::LATER) {
        if (later.any) later.finish_all(shared, out_map, problem);
    }
    if (threadIdx.x % WARP == 0) bulk_wait_group_read<0>();
}

template <class E, class F>
__global__ void __launch_bounds__(F::THREADS, F::RESIDENT)
    derby_dense_gemm(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                     const __grid_constant__ CUtensorMap out_map, const Problem problem) {
    Shared<F>& shared = all_shared<Shared<F>>();
    const int warp = threadIdx.x / WARP;
    if (threadIdx.x == 0) {
        prefetch_tensor_map(&x_map), prefetch_tensor_map(&w_map);
        shared.ring.init(1, F::EMPTY_ARRIVALS);
        mbarrier_init(shared_address(&shared.bias_there), F::CONSUMERS / WARP);
        fence_mbarrier_init();
    }
    if (F::CLUSTER > 1) cluster_sync();
    else __syncthreads();
    if (warp >= F::CONSUMERS / WARP) {
        if constexpr (F::GROUPS == 2) setmaxnreg_dec<40>();
        if constexpr (F::GROUPS == 3) setmaxnreg_dec<32>();
        if (warp == F::CONSUMERS / WARP && threadIdx.x % WARP == 0)
            load_tiles<F>(shared, &x_map, &w_map, problem.extent);
        __syncwarp();
        if (problem.extent.splits > 1) cluster_sync(), cluster_sync();  // those of join_cluster()
    } else {
        if constexpr (F::GROUPS == 2) setmaxnreg_inc<232>();
        if constexpr (F::GROUPS == 3) setmaxnreg_inc<160>();
        consume<E, F>(shared, &out_map, problem);
    }
    if (F::CLUSTER > 1) cluster_sync();  // no CTA leaves while another one may still signal it
}

}  // namespace derby
