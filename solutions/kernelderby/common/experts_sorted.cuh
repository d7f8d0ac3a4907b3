// How a CTA of the experts' grouped GEMMs learns its work from topk_ids and topk_weights. The pairs are sorted by
// derby_experts_route (experts_route.cuh) or, if they are few, by every CTA for itself, so that no kernel has to run
// before. Then comes the plan: which tiles each expert has.
// Constraints: at most 256 experts; tokens times top_k fits an int.
#pragma once
#include "experts_gemm.cuh"

namespace derby {

constexpr int CONSUMER_WARPS = CONSUMERS / 32;

// For a routing that every CTA sorts for itself.
template <int ROUTES>
struct PairOrder {
    uint16_t pair[ROUTES];  // expert by expert
};
template <>
struct PairOrder<0> {};

// The consumers find how many pairs each expert has and, if this CTA sorts for itself (C::ROUTES), their order, which
// is the same in every CTA: by expert, then by pair. Writes shared.share last.
template <class C>
__device__ __forceinline__ void plan(Shared<C>& shared, const Arguments& arguments) {
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, experts = arguments.experts;
    constexpr int HELD = C::ROUTES ? (C::ROUTES + CONSUMERS - 1) / CONSUMERS : 1;  // pairs of a thread
    int expert_of[HELD], place_of[HELD], count = 0;
    if constexpr (C::ROUTES > 0) {
        // A warp has neighbouring pairs; __match_any tells a lane which others have its expert.
        const int pairs = arguments.tokens * arguments.top_k, first = warp * 32 * HELD;
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            const int pair = first + 32 * i + lane;
            expert_of[i] = pair < pairs ? __ldg(arguments.topk_ids + pair) : -1;
        }
        int* mine = shared.staging.histogram[warp];
        for (int e = lane; e < MOST_EXPERTS; e += 32) mine[e] = 0;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            if (first + 32 * i >= pairs) break;  // the whole warp
            const bool valid = unsigned(expert_of[i]) < unsigned(experts);
            const unsigned same = __match_any_sync(~0u, valid ? expert_of[i] : -1);
            const int before = __popc(same & ((1u << lane) - 1));
            if (!valid) expert_of[i] = -1;
            if (valid) place_of[i] = mine[expert_of[i]] + before;
            __syncwarp();
            if (valid && before == 0) mine[expert_of[i]] += __popc(same);
            __syncwarp();
        }
        named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);
        if (thread < MOST_EXPERTS)
#pragma unroll
            for (int w = 0; w < CONSUMER_WARPS; ++w) {
                const int theirs = shared.staging.histogram[w][thread];
                shared.staging.histogram[w][thread] = count;
                count += theirs;
            }
    } else if (thread < experts) {
        count = load_now(arguments.starts + thread + 1) - load_now(arguments.starts + thread);
    }
    const int blocks = blocks_of(count, C::ROWS), my_tiles = tiles_of(blocks, arguments.layout.slab, C::CLUSTER);
    int rows = count, tiles = my_tiles;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int more_rows = __shfl_up_sync(~0u, rows, step), more_tiles = __shfl_up_sync(~0u, tiles, step);
        if (lane >= step) rows += more_rows, tiles += more_tiles;
    }
    const bool many = __any_sync(~0u, blocks > C::CLUSTER);
    if (lane == 31) shared.warp_rows[warp] = rows, shared.warp_tiles[warp] = tiles, shared.warp_many[warp] = many;
    named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);
    int slab_tiles = 0;
    bool split_all = true;
#pragma unroll
    for (int w = 0; w < CONSUMER_WARPS; ++w) {
        if (w < warp) rows += shared.warp_rows[w], tiles += shared.warp_tiles[w];
        slab_tiles += shared.warp_tiles[w];
        split_all &= !shared.warp_many[w];
    }
    shared.row_start[thread + 1] = rows;
    shared.tile_start[thread] = thread < experts ? tiles - my_tiles : NEVER;
    if (thread == 0) {
        const Layout& layout = arguments.layout;
        shared.row_start[0] = 0;
        shared.slab_tiles = slab_tiles;
        shared.share = share_work(blockIdx.x / C::CLUSTER, gridDim.x / C::CLUSTER,
                                  slab_tiles * (layout.tiles_n / layout.slab), layout.k_blocks, split_all);
    }
    if constexpr (C::ROUTES > 0) {
        named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);
#pragma unroll
        for (int i = 0; i < HELD; ++i) {
            const int pair = warp * 32 * HELD + 32 * i + lane;
            if (pair < arguments.tokens * arguments.top_k && expert_of[i] >= 0)
                shared.order.pair[shared.row_start[expert_of[i]] + shared.staging.histogram[warp][expert_of[i]] +
                                  place_of[i]] = uint16_t(pair);
        }
    }
}

// Warp 3 of warpgroup 2, before the plan: asks for the weights of this CTA's first visit, as many k blocks as there are
// stages. With up to 32 pairs a warp knows the experts' order; if an expert has more pairs than a tile, nothing is
// requested. Returns the number of k blocks requested, whose stages' arrivals are still to come.
template <class C, bool FIRST>
__device__ __forceinline__ int bring_early(Shared<C>& shared, const Arguments& arguments, const CUtensorMap* map) {
    static_assert(C::CLUSTER == 1, "a worker is a CTA");
    const Layout& layout = arguments.layout;
    const int lane = threadIdx.x % WARP, pairs = arguments.tokens * arguments.top_k;
    if (pairs > WARP || layout.slab != layout.tiles_n) return 0;
    const int expert = lane < pairs ? __ldg(arguments.topk_ids + lane) : -1;
    const bool valid = unsigned(expert) < unsigned(arguments.experts);
    const unsigned same = __match_any_sync(~0u, valid ? expert : -1);
    if (__any_sync(~0u, valid && __popc(same) > C::ROWS)) return 0;
    const bool leads = valid && (same & ((1u << lane) - 1)) == 0;  // the first pair of its expert
    const unsigned leaders = __ballot_sync(~0u, leads);
    int place = 0;  // of this expert among those that have pairs
#pragma unroll 1
    for (unsigned left = leaders; left; left &= left - 1) place += __shfl_sync(~0u, expert, __ffs(left) - 1) < expert;
    const Share share = share_work(blockIdx.x, gridDim.x, __popc(leaders) * layout.tiles_n, layout.k_blocks, true);
    if (share.visits == 0) return 0;
    const Visit visit = visit_at(share, 0, blockIdx.x, gridDim.x, layout.k_blocks);
    const int first = visit.tile / layout.tiles_n, block_n = visit.tile - first * layout.tiles_n;
    const int its = __shfl_sync(~0u, expert, __ffs(__ballot_sync(~0u, leads && place == first)) - 1);
    const int row = first_row<C, FIRST>(arguments, its, block_n);
    const int blocks = smaller(visit.k_end - visit.k_begin, C::STAGES);
    if (lane == 0) {
        fence_async_proxy();
#pragma unroll 1
        for (int s = 0; s < blocks; ++s) {
            mbarrier_expect_tx(shared_address(&shared.full[s]), WEIGHT_BYTES);
            bring_block(shared, s, map, (visit.k_begin + s) * (BLOCK / C::Kind::BYTES), row,
                        row + arguments.second_block, false, C::READ_ONCE);
        }
    }
    return blocks;
}

// The routing of the experts' operators: derby_experts_route has sorted the pairs into `starts` and `sorted` where the
// CTAs do not sort for themselves.
struct Sorted {
    using Arguments = derby::Arguments;
    template <int ROUTES>
    using Order = PairOrder<ROUTES>;
    struct Scratch {};  // in the staging of the first GEMM's shared memory

    // This CTA's part of a tile.
    template <class C>
    static __device__ __forceinline__ Place place_of(const Shared<C>& shared, const Arguments& arguments, int tile) {
        const bool any = C::LATER && !arguments.results;  // number of blocks
        return locate(tile, arguments.layout, C::ROWS, shared.tile_start, shared.slab_tiles, shared.row_start,
                      blockIdx.x % C::CLUSTER, C::CLUSTER, any ? MANY_BLOCKS : C::HALVED, any);
    }

    // The token of a row of a tile.
    template <class C>
    static __device__ __forceinline__ int token_at(const Shared<C>& shared, const Arguments& arguments,
                                                   const Place& place, int row) {
        if constexpr (C::ROUTES > 0)
            return shared.order.pair[place.first_row + row] / arguments.top_k;
        else
            return load_now(&arguments.sorted[place.first_row + row].x);
    }

    // Starts the copy of its token and routing weight.
    template <class C>
    static __device__ __forceinline__ void bring_pair(Shared<C>& shared, const Arguments& arguments,
                                                      const Place& place, int row, int2* to) {
        if constexpr (C::ROUTES > 0) {
            const int pair = shared.order.pair[place.first_row + row];
            to->x = pair / arguments.top_k;
            cp_async4(shared_address(&to->y), arguments.topk_weights + pair);
        } else {
            cp_async8(shared_address(to), arguments.sorted + place.first_row + row);
        }
    }

    // Consumers: until this CTA's share of the work is known.
    template <class C, bool FIRST>
    static __device__ __forceinline__ void await_share(Shared<C>& shared, const Arguments& arguments) {
        if (FIRST) wait_for_previous_kernel();  // the second GEMM may start before the first ends: the order is older
        plan(shared, arguments);
        named_barrier_sync(NamedBarrier::SHARE_READY, THREADS);
    }

    // Warpgroup 2.
    template <class C, bool FIRST>
    static __device__ __forceinline__ void produce(Shared<C>& shared, const Arguments& arguments,
                                                   const CUtensorMap* map, const CUtensorMap* act_map, int thread) {
        const int lane = thread % 32;
        if (FIRST) wait_for_previous_kernel();
        if (thread < GATHERERS) {
            named_barrier_sync(NamedBarrier::SHARE_READY, THREADS);
            if (!FIRST) wait_for_previous_kernel();
            if (FIRST || C::Kind::SCALED) gather<C, FIRST>(shared, arguments, thread);
            return;
        }
        int early = 0;
        if constexpr (C::EARLY) early = bring_early<C, FIRST>(shared, arguments, map);
        if (FIRST) fill_zeros(shared, lane);
        named_barrier_sync(NamedBarrier::SHARE_READY, THREADS);
        if (lane == 0) bring_weights<C, FIRST>(shared, arguments, map, act_map, early);
        __syncwarp();
    }
};

}  // namespace derby
