// output [m, n] = E(x [m, k] @ w [n, k]^T + bias), bf16, sums in float32: one kernel for every form and every E.
//
// Consumer warpgroups multiply, one thread loads by TMA. If there are many tiles, a CTA does several. A tile's sums are
// stored by TMA through stages of the ring, or they are packed into half the registers and stored while the next tile's
// products are computed, the second warpgroup's parts half way between the first's. If there are few tiles, a cluster
// may share a tile's k blocks.
//
// Constraints: x and w contiguous, 16-byte aligned, k a multiple of 8; output (and multiplier) contiguous, 16-byte
// aligned; any m and n from 1 on.
#pragma once
#include "dense_ends.cuh"
#include "dense_join.cuh"
#include "dense_later.cuh"

namespace derby {

constexpr int SPREAD = 6;  // k blocks between two parts of the tile before, at most

// One warp: all loads of this CTA. If `any`, `work` already holds its first tile. multiplier: the multiplier's map, or
// an empty one. All lanes wait and one of them loads; it is chosen by elect_one(), so that the compiler does not turn
// each load into a loop over lanes.
template <class E, class F>
__device__ __forceinline__ void load_tiles(Shared<F>& shared, const CUtensorMap* a_map, const CUtensorMap* b_map,
                                           const CUtensorMap* multiplier, const Extent& extent, WholeTiles<F>& work,
                                           bool any) {
    // The tile's place among those that share operands, and the rank of the first of these.
    const int below = blockIdx.x % F::CLUSTER / F::BESIDE, beside = blockIdx.x % F::BESIDE;
    const int share = share_of<F>(blockIdx.x, extent) * F::CLUSTER;
    const int a_first = beside * F::A_PART;
    const int b_first = min(below * F::B_PART, F::COLUMNS - F::B_PART);  // some twice where 8 does not divide
    const uint16_t a_ctas = ((1 << F::BESIDE) - 1) << (share + below * F::BESIDE);
    const uint16_t b_ctas = ((1 << F::CLUSTER) - 1) / ((1 << F::BESIDE) - 1) << (share + beside);  // every BESIDE-th bit
    // Rows of a box that do not exist are read as zeros; places that no box reaches only influence output that is not
    // stored.
    const uint32_t bytes = F::DEEP * (extent.a_box * F::BESIDE + extent.b_box * F::BELOW) * ROW_BYTES;
    const bool leader = elect_one();
    PipelineState<F::STAGES> at;
    for (; any; any = work.next(extent)) {
        const int2 tile = work.tile;
        for (int k = work.from; k < work.to; ++k, at.next()) {
            shared.ring.wait_empty(at);
            if (!leader) continue;
            const uint32_t barrier = shared.ring.full(at.stage);
            mbarrier_arrive_expect_tx(barrier, bytes);
#pragma unroll
            for (int j = 0; j < F::DEEP; ++j) {
                const uint32_t a = shared.a(at.stage) + (j * F::ROWS + a_first) * ROW_BYTES;
                const uint32_t b = shared.b(at.stage) + (j * F::COLUMNS + b_first) * ROW_BYTES;
                const int place = (k * F::DEEP + j) * BLOCK;
                if (F::BELOW > 1) tma_load_multicast(b, b_map, barrier, b_ctas, place, tile.y + b_first);
                else tma_load(b, b_map, barrier, place, tile.y);
                if (F::BESIDE > 1) tma_load_multicast(a, a_map, barrier, a_ctas, place, tile.x + a_first);
                else tma_load(a, a_map, barrier, place, tile.x);
            }
        }
        if (F::BY_TMA && extent.staged && !(F::LATER && !extent.by_hand && work.more(extent))) {
            if (leader) pass_stages<E, F>(shared, at, multiplier, tile, extent.by_hand);
            for (int slot = 0; slot < F::ENDS; ++slot) at.next();
            __syncwarp();
        }
    }
    // No CTA leaves while another one may still signal it: all stages come back but those that output left through.
    if (F::CLUSTER > 1)
        for (int left = F::BY_TMA ? F::STAGES - F::ENDS : F::STAGES; left > 0; --left, at.next())
            shared.ring.wait_empty(at);
}

// The tile's bias, for all consumers: bias_there says that all of it is.
template <class F>
__device__ __forceinline__ void read_bias(Shared<F>& shared, const Problem& problem, int column, int parity) {
    for (int i = threadIdx.x; i < F::COLUMNS; i += F::CONSUMERS)
        shared.bias[parity][i] = column + i < problem.extent.n ? problem.bias[column + i] : __nv_bfloat16(0.0f);
    __syncwarp();
    if (threadIdx.x % WARP == 0) mbarrier_arrive(shared_address(&shared.bias_there));
}

// This warpgroup's products of a tile, parts of the tile before between them. begun: as in multiply().
template <class E, class F, class Begun>
__device__ __forceinline__ void multiply_tile(Shared<F>& shared, const Releaser<F>& release,
                                              PipelineState<F::STAGES>& at, const CUtensorMap* out_map,
                                              const Problem& problem, Later<E, F>& later, int group, int k_blocks,
                                              float* d, const Begun& begun) {
    int before = -1, done = 0;  // a stage; k blocks
    if constexpr (F::LATER) {
        // The second warpgroup's parts come half way between the first's, so that one multiplies while the other
        // stores.
        const int spread = max(min(k_blocks / (later.PARTS + 1), SPREAD), 1), behind = group * (spread / 2);
#pragma unroll 1
        for (int part = later.any ? 0 : later.PARTS; part < later.PARTS; ++part) {
            const int to = min((part + 1) * spread + behind, k_blocks);
            before = multiply<F>(shared, release, at, group, to - done, done == 0, before, d, begun);
            done = to;
            later.finish(shared, out_map, problem, part);
        }
    }
    before = multiply<F>(shared, release, at, group, k_blocks - done, done == 0, before, d, begun);
    last_product<F>(release, before, d);
}

// TURNED: the addends of this thread's rows of the tile.
template <class F>
__device__ __forceinline__ void read_rows_bias(float (&add)[2 * F::HALVES], const Problem& problem, int row) {
#pragma unroll
    for (int i = 0; i < 2 * F::HALVES; ++i) {
        const int at = row + i / 2 * 64 + i % 2 * 8 + threadIdx.x % WARP / 4;
        add[i] = F::TURNED && problem.bias && at < problem.extent.n ? __bfloat162float(problem.bias[at]) : 0.0f;
    }
}

template <class E, class F>
__device__ __forceinline__ void consume(Shared<F>& shared, const CUtensorMap* out_map, const Problem& problem) {
    const Extent& extent = problem.extent;
    const int group = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0);  // the same in all lanes
    const bool staged = F::BY_TMA && extent.staged, biased = !F::TURNED && staged && problem.bias;
    int parity = 0;
    const Releaser<F> release(shared, extent);
    PipelineState<F::STAGES> at;
    int owed = -1;  // the first of the stages that the output before leaves through
    Later<E, F> later;
    for (WholeTiles<F> work(extent, blockIdx.x, gridDim.x); work.next(extent); parity ^= 1) {
        const int2 tile = work.tile;
        const int row = tile.x + group * (64 * F::HALVES) + threadIdx.x / WARP % 4 * 16, column = tile.y;
        if (biased) read_bias<F>(shared, problem, column, parity);
        float d[F::COUNT], add[2 * F::HALVES];
        pin<F::COUNT>(d);
        read_rows_bias<F>(add, problem, row);
        const auto give_back = [&](int k) {  // stages that the output before has left, once products are under way
            if (k || owed < 0) return;
            bulk_wait_group_read<0>();
            named_barrier_sync(BOX_THERE + group, WARPGROUP);
#pragma unroll
            for (int slot = 0; slot < F::ENDS; ++slot)
                release(owed + slot < F::STAGES ? owed + slot : owed + slot - F::STAGES);
            owed = -1;
        };
        multiply_tile<E, F>(shared, release, at, out_map, problem, later, group, work.to - work.from, d, give_back);
        if (biased) mbarrier_wait(shared_address(&shared.bias_there), parity);
        if (staged) {
            const bool later_on = F::LATER && !extent.by_hand && work.more(extent);
            if constexpr (F::LATER) {
                later.any = later_on;
                if (later_on) {
                    later.take(d, shared.bias[parity], biased, row, column);
                    later.read_multiplier(problem, 0);
                }
            }
            if constexpr (F::BY_TMA) {
                if (!later_on) {
                    owed = at.stage;
                    leave<E, F>(shared, at, out_map, problem, d, add, biased ? shared.bias[parity] : nullptr, group, tile);
                }
            }
        } else if (F::SPLITS && extent.splits > 1) {
            if constexpr (F::SPLITS) join_cluster<E, F>(shared, problem, d, row, column);
        } else if constexpr (!F::BY_TMA) {
            store_direct<E, F::COUNT>(problem, d, row, column);
        }
    }
    bulk_wait_group_read<0>();
}

template <class E, class F>
__global__ void __launch_bounds__(F::THREADS, F::RESIDENT)
    derby_dense_gemm(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                     const __grid_constant__ CUtensorMap out_map, const __grid_constant__ CUtensorMap multiplier_map,
                     const Problem problem) {
    Shared<F>& shared = dynamic_shared<Shared<F>>();
    // Made the same in all lanes in a way that the compiler sees; otherwise the loop's addresses go through vector
    // registers.
    const int warp = __shfl_sync(~0u, threadIdx.x / WARP, 0);
    const bool loads = warp == F::CONSUMERS / WARP;
    // Two warps work at the same time: one thread of the one initialises barriers (lanes would take turns), the other
    // finds where the first loads begin.
    if (threadIdx.x == 0) {
        shared.ring.init(1, F::EMPTY_ARRIVALS);
        mbarrier_init(shared_address(&shared.bias_there), F::CONSUMERS / WARP);
        fence_mbarrier_init();
    }
    WholeTiles<F> work(problem.extent, blockIdx.x, gridDim.x);
    bool any = false;
    if (loads) {
        if (threadIdx.x % WARP == 0) prefetch_tensor_map(&a_map), prefetch_tensor_map(&b_map);
        any = work.next(problem.extent);
    }
    if (F::CLUSTER > 1) cluster_sync();
    else __syncthreads();
    if (warp >= F::CONSUMERS / WARP) {
        if constexpr (F::GROUPS == 2) setmaxnreg_dec<40>();
        if constexpr (F::GROUPS == 3) setmaxnreg_dec<32>();
        if (loads) load_tiles<E, F>(shared, &a_map, &b_map, &multiplier_map, problem.extent, work, any);
        __syncwarp();
        if (problem.extent.splits > 1) cluster_sync(), cluster_sync();  // those of join_cluster()
    } else {
        if constexpr (F::GROUPS == 2) setmaxnreg_inc<232>();
        if constexpr (F::GROUPS == 3) setmaxnreg_inc<160>();
        consume<E, F>(shared, &out_map, problem);
    }
}

}  // namespace derby
