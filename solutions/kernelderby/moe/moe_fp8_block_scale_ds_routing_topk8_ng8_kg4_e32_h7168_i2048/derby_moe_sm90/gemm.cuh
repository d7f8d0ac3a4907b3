// The experts' grouped GEMMs (experts_gemm.cuh) for the contest's sizes, which are constants, and for pairs in buckets:
// derby_route has filled these, or, of few tokens, every CTA of the first GEMM routes for itself (route.cuh). One warp
// plans, so that the consumers need not wait for the counts in memory.
#pragma once
#include "experts_gemm.cuh"
#include "route.cuh"

namespace derby {

constexpr int HIDDEN = 7168, INTERMEDIATE = 2048;
static_assert(HIDDEN % (2 * BLOCK) == 0 && INTERMEDIATE % BLOCK == 0, "whole blocks");

// What both GEMMs' kernels get from the host, of the second one x, x_scale and w_scale by kernel.cu. Call of main.py begins
// with these fields.
struct CallArguments {
    const uint8_t* x;      // FIRST: [tokens, HIDDEN], else [pairs, INTERMEDIATE]
    const float* x_scale;  // FIRST: [HIDDEN / 128, tokens], else [pairs, INTERMEDIATE / 128]
    const float* w_scale;  // [experts, weight rows / 128, K / 128]
    const float* logits;   // [tokens, EXPERTS]
    const __nv_bfloat16* bias;
    void* out;             // [tokens, HIDDEN] in bfloat16
    int* count;            // [experts], zero between calls
    int* ticket;           // zero between calls
    int* arrived;          // of a CTA's last tile, the pieces of others that are there; zero between calls
    int2* bucket;          // [experts, tokens] (token, bits of the routing weight)
    uint8_t* act;          // [pairs, INTERMEDIATE]
    float* act_scale;      // [pairs, INTERMEDIATE / 128]
    float4* partial;       // pieces of split tiles, one a CTA
    float scaling_factor;
    int first_local;       // number of the first local expert
    int tokens;
};

// One warp, a lane an expert that has `count` pairs: where the experts' rows and tiles begin, and this CTA's share.
template <class C>
__device__ __forceinline__ void plan_local(Shared<C>& shared, int count) {
    static_assert(LOCAL_EXPERTS == WARP, "a lane for each");
    using Layout = typename C::Arguments::FixedLayout;
    const int lane = threadIdx.x % WARP, blocks = blocks_of(count, C::ROWS);
    const int my_tiles = tiles_of(blocks, Layout::tiles_n, C::CLUSTER);
    const bool split_all = __reduce_max_sync(~0u, blocks) <= C::CLUSTER;
    int rows = count, tiles = my_tiles;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        const int more_rows = __shfl_up_sync(~0u, rows, step), more_tiles = __shfl_up_sync(~0u, tiles, step);
        if (lane >= step) rows += more_rows, tiles += more_tiles;
    }
    if (lane == 0) shared.row_start[0] = 0;
    shared.row_start[lane + 1] = rows;
    shared.tile_start[lane] = tiles - my_tiles;
    if (lane == WARP - 1)
        shared.share =
            share_work(blockIdx.x / C::CLUSTER, gridDim.x / C::CLUSTER, tiles, Layout::k_blocks, split_all);
}

// Each expert has a bucket of pairs in memory; with few tokens the first GEMM finds them in shared memory. The members are
// those of Sorted (experts_sorted.cuh).
template <bool FIRST>
struct Buckets {
    struct Arguments : CallArguments {
        struct FixedLayout {
            static constexpr int k_blocks = (FIRST ? HIDDEN : INTERMEDIATE) / BLOCK;
            static constexpr int tiles_n = FIRST ? INTERMEDIATE / BLOCK : HIDDEN / (2 * BLOCK);
        } layout;
        static constexpr int hidden = HIDDEN, intermediate = INTERMEDIATE, row_bytes = FIRST ? HIDDEN : INTERMEDIATE;
        static constexpr int weight_rows = FIRST ? 2 * INTERMEDIATE : HIDDEN;
        static constexpr int second_block = FIRST ? -INTERMEDIATE : BLOCK;  // from gate's block to up's
        static constexpr __nv_bfloat16* results = nullptr;
    };
    template <int>
    using Order = Routed;
    using Scratch = Scores;

    template <class C>
    static __device__ __forceinline__ Place place_of(const Shared<C>& shared, const Arguments& arguments, int tile) {
        constexpr int TILES_N = Arguments::FixedLayout::tiles_n;
        static_assert(TILES_N % C::CLUSTER == 0, "both CTAs of a cluster have weights");
        return locate_in_slab<LOCAL_EXPERTS>(tile, 0, TILES_N, C::ROWS, shared.tile_start, shared.row_start,
                                             blockIdx.x % C::CLUSTER, C::CLUSTER, 0, false);
    }

    // A row of a tile in its expert's bucket.
    template <class C>
    static __device__ __forceinline__ const int2* pair_at(const Shared<C>& shared, const Arguments& arguments,
                                                          const Place& place, int row) {
        const int slot = place.first_row - shared.row_start[place.expert] + row;
        return arguments.bucket + size_t(place.expert) * arguments.tokens + slot;
    }

    template <class C>
    static __device__ __forceinline__ int token_at(const Shared<C>& shared, const Arguments& arguments,
                                                   const Place& place, int row) {
        if constexpr (C::ROUTES > 0)
            return derby::token_at(shared.order, place.expert, place.first_row - shared.row_start[place.expert] + row);
        else
            return __ldcg(&pair_at(shared, arguments, place, row)->x);
    }

    template <class C>
    static __device__ __forceinline__ void bring_pair(Shared<C>& shared, const Arguments& arguments,
                                                      const Place& place, int row, int2* to) {
        cp_async8(shared_address(to), pair_at(shared, arguments, place, row));
    }

    template <class C, bool>
    static __device__ __forceinline__ void await_share(Shared<C>& shared, const Arguments& arguments) {
        if constexpr (FIRST && C::ROUTES > 0) {
            const int warp = threadIdx.x / WARP;
            route_tokens(arguments.logits, arguments.bias, shared.staging.scratch[warp], shared.order, arguments.tokens,
                         arguments.first_local, arguments.scaling_factor, warp, CONSUMERS / WARP, threadIdx.x % WARP);
            named_barrier_arrive(NamedBarrier::ROUTED, THREADS);
        }
        named_barrier_sync(NamedBarrier::SHARE_READY, THREADS);
    }

    template <class C, bool>
    static __device__ __forceinline__ void produce(Shared<C>& shared, const Arguments& arguments,
                                                   const CUtensorMap* map, const CUtensorMap* act_map, int thread) {
        constexpr bool ROUTES = FIRST && C::ROUTES > 0;
        const int lane = thread % WARP;
        if (thread < GATHERERS) {
            if constexpr (ROUTES) {
                named_barrier_sync(NamedBarrier::ROUTED, THREADS);
                if (blockIdx.x == 0 && thread < WARP) {
                    publish(shared.order, arguments.bucket, arguments.count, arguments.tokens, lane);
                    __threadfence();
                }
            }
            named_barrier_sync(NamedBarrier::PRODUCERS_READY, PRODUCERS);
            named_barrier_arrive(NamedBarrier::SHARE_READY, THREADS);
            if (!FIRST) wait_for_previous_kernel();
            gather<C, FIRST>(shared, arguments, thread);
            return;
        }
        if (FIRST) {
            fill_zeros(shared, lane);
            wait_for_previous_kernel();
        }
        if constexpr (ROUTES) {
            named_barrier_sync(NamedBarrier::ROUTED, THREADS);
            plan_local(shared, __popc(tokens_of(shared.order, lane)));
        } else {
            // The second GEMM may start before the first has ended: the counts are older than that start.
            plan_local(shared, __ldcg(arguments.count + lane));
        }
        named_barrier_sync(NamedBarrier::PRODUCERS_READY, PRODUCERS);
        named_barrier_arrive(NamedBarrier::SHARE_READY, THREADS);
        if (lane == 0) {
            if (!FIRST && atomicAdd(arguments.ticket, 1) == gridDim.x - 1) {  // all CTAs have read the counts
                for (int e = 0; e < LOCAL_EXPERTS; ++e) arguments.count[e] = 0;
                *arguments.ticket = 0;
            }
            bring_weights<C, FIRST>(shared, arguments, map, act_map, 0);
        }
        __syncwarp();
    }
};

// In tiles of 128, pairs are wgmma's M. In the kernels for tiles of 16 pairs the first GEMM does the routing.
template <bool FIRST, int ROWS, int STAGES, int CLUSTER>
struct LocalExperts : Config<Fp8, ROWS, STAGES, CLUSTER, ROWS == 128, ROWS == MOST_ROUTED ? MOST_ROUTED * TOP_K : 0,
                             Buckets<FIRST>> {
    static constexpr bool UP_FIRST = true, SCALES_BY_BLOCK = true, WHOLE_BLOCKS = true;
    static constexpr bool GATHERS_ACT = ROWS < 128;
    static constexpr bool READ_ONCE = false, EARLY = false;
    static constexpr int HALVED = 0, ZERO_BYTES = 2048, ZEROS_A_BLOCK = 1, SETS_UP = CONSUMERS;
    static_assert(HIDDEN * 2 % ZERO_BYTES == 0, "a row of the output is cleared by whole bulk stores");
};

}  // namespace derby
