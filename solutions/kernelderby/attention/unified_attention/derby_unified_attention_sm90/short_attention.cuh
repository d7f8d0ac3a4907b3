// Causal attention of short sequences (at most 256 tokens with their context, 128 with head_dim 256) over a paged
// cache, in one persistent kernel for sm_90a.
//
// A unit is one sequence and one key/value head, or a part of its query tiles. Its keys and values are read once into
// shared memory, in blocks of 64 tokens of 16-token pages, by TMA boxes; a query tile is up to 64 rows, some query
// heads of the group times some tokens. The four warps of the last warpgroup load keys, load queries, store outputs and
// load values (short_movers.cuh); each of the other warpgroups takes every third tile (every second with head_dim 256).
// Outputs are stored from the place in shared memory where the queries were. The result is deterministic.
// Constraints: sm_90a; head_dim 64, 128 or 256, at most 256, 256 and 128 tokens of a sequence with their context;
// pages of 16 tokens; bf16, contiguous, addresses a multiple of 16; sm_scale > 0; query heads a multiple of key heads.
// main.py sends other calls to long_attention.cuh or to Triton.
#pragma once
#include "short_movers.cuh"
#include "short_softmax.cuh"

namespace derby_short {

// The rows of a query tile: the address of their queries in shared memory, the position of their first token in the
// sequence, the sequence's last token.
struct Rows {
    uint32_t queries;
    int position, last;

    // The last token that each of this thread's two rows sees.
    __device__ __forceinline__ void limits(const Parameters& p, int* limit) const {
        const int row = threadIdx.x % WARPGROUP / WARP * 16 + threadIdx.x % WARP / 4;
        limit[0] = min(last, position + p.by_tile_heads.divide(row));
        limit[1] = min(last, position + p.by_tile_heads.divide(row + 8));
    }
};

// Computes COUNT blocks of a tile at once, from block `from` on, and only LAST tokens of the last one: first all their
// scores, then all their weights, then the products with their values. first: these are the tile's first blocks. All of
// these functions but one begin with the scores of the last block: when two began with the same products, ptxas merged
// them and ran out of registers.
template <int COUNT, int LAST, typename S>
__device__ __forceinline__ void compute_blocks(Tile<S::HEAD_DIM>& tile, Shared<S>& shared,
                                               const Places<S::RING>& places, const Rows& rows, int from, bool first,
                                               const Parameters& p) {
    constexpr int D = S::HEAD_DIM;
    constexpr bool UP = COUNT == 2 && LAST != BLOCK;
    const uint32_t queries = uniform(descriptor_low(rows.queries, 16));
    float scores[COUNT][BLOCK / 2];
#pragma unroll
    for (int i = COUNT - 1; i >= 0; --i) {
        const int b = UP ? COUNT - 1 - i : i;
        const int place = places.of(from + b);
        mbarrier_wait(shared_address(&shared.keys_full[place]), places.parity(place));
        const uint32_t keys = uniform(descriptor_low(shared_address(shared.keys[place]), 16));
        wgmma_fence();
        b == COUNT - 1 ? multiply_scores<LAST, D>(scores[b], queries, keys)
                       : multiply_scores<BLOCK, D>(scores[b], queries, keys);
        wgmma_commit_group();
    }
    float highest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = COUNT - 1; i >= 0; --i) {
        const int b = UP ? COUNT - 1 - i : i;
        i == 2 ? wgmma_wait_group<2>() : i == 1 ? wgmma_wait_group<1>() : wgmma_wait_group<0>();
        const int token = (from + b) * BLOCK;
        if (b >= COUNT - 2 && token + BLOCK - 1 > rows.position) {
            int limit[2];
            rows.limits(p, limit);
            b == COUNT - 1 ? hide<LAST>(scores[b], token + threadIdx.x % 4 * 2, limit)
                           : hide<BLOCK>(scores[b], token + threadIdx.x % 4 * 2, limit);
        }
        b == COUNT - 1 ? find_highest<LAST>(scores[b], highest) : find_highest<BLOCK>(scores[b], highest);
    }
    settle(tile, highest, first, p.scale);
    uint32_t weights[COUNT][BLOCK / 4];
#pragma unroll
    for (int b = COUNT - 1; b >= 0; --b)
        b == COUNT - 1 ? weigh<LAST>(scores[b], weights[b], tile, p.scale)
                       : weigh<BLOCK>(scores[b], weights[b], tile, p.scale);
#pragma unroll
    for (int b = 0; b < COUNT; ++b) {
        const int place = places.of(from + b);
        mbarrier_wait(shared_address(&shared.values_full[place]), places.parity(place));
        const uint32_t values = uniform(descriptor_low(shared_address(shared.values[place]), PART_BYTES));
        wgmma_fence();
        b == COUNT - 1 ? multiply_values<LAST>(tile, weights[b], values, first && b == 0)
                       : multiply_values<BLOCK>(tile, weights[b], values, first && b == 0);
        wgmma_commit_group();
    }
    wgmma_wait_group<0>();
}

// Computes all blocks of a tile that sees `visible` tokens. TOGETHER: up to three at once, as many as registers allow,
// then the fourth; half of the last one is left out if none of it is seen. Else one after the other, which takes less
// code.
template <bool TOGETHER, typename S>
__device__ __forceinline__ void compute_tile(Tile<S::HEAD_DIM>& tile, Shared<S>& shared, const Places<S::RING>& places,
                                             const Rows& rows, int visible, const Parameters& p) {
    constexpr int HALF = BLOCK / 2;
    const int halves = (visible + HALF - 1) / HALF;
    if constexpr (!TOGETHER) {
#pragma unroll 1
        for (int block = 0; 2 * block < halves; ++block)
            compute_blocks<1, BLOCK>(tile, shared, places, rows, block, block == 0, p);
    } else if (halves == 1) {
        compute_blocks<1, HALF>(tile, shared, places, rows, 0, true, p);
    } else if (halves <= 2) {
        compute_blocks<1, BLOCK>(tile, shared, places, rows, 0, true, p);
    } else if (halves == 3) {
        compute_blocks<2, HALF>(tile, shared, places, rows, 0, true, p);
    } else if (halves <= 4) {
        compute_blocks<2, BLOCK>(tile, shared, places, rows, 0, true, p);
    } else if (halves == 5) {
        compute_blocks<3, HALF>(tile, shared, places, rows, 0, true, p);
    } else {
        compute_blocks<3, BLOCK>(tile, shared, places, rows, 0, true, p);
        if (halves == 7) compute_blocks<1, HALF>(tile, shared, places, rows, 3, false, p);
        if (halves == 8) compute_blocks<1, BLOCK>(tile, shared, places, rows, 3, false, p);
    }
}

// Writes the tile's output, divided by the sums, to shared memory at `to`, swizzled like the queries that were there.
template <int HEAD_DIM>
__device__ __forceinline__ void lay_out(Tile<HEAD_DIM>& tile, uint32_t to) {
    const int lane = threadIdx.x % WARP;
    const int row = threadIdx.x % WARPGROUP / WARP * 16 + lane / 8 % 2 * 8 + lane % 8;  // this lane's, for stmatrix
#pragma unroll
    for (int r = 0; r < 2; ++r) tile.sum[r] = __fdividef(1.f, quad_sum(tile.sum[r]));
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; ++k) {
        const int chunk = 2 * k + lane / 16;
        const float* o = tile.output + 8 * k;
        stmatrix_x4(to + chunk / 8 * PART_BYTES + row * 128 + ((chunk % 8) ^ (row % 8)) * 16,
                    pack_bf16(o[0] * tile.sum[0], o[1] * tile.sum[0]),
                    pack_bf16(o[2] * tile.sum[1], o[3] * tile.sum[1]),
                    pack_bf16(o[4] * tile.sum[0], o[5] * tile.sum[0]),
                    pack_bf16(o[6] * tile.sum[1], o[7] * tile.sum[1]));
    }
    fence_async_proxy();
    __syncwarp();
}

// A consumer warpgroup: every third tile of the CTA (every second with head_dim 256). It reads a unit's data from
// shared memory each time they are needed: there were not enough registers to hold them.
template <bool TOGETHER, typename S>
__device__ __forceinline__ void consume(const Parameters& p, Shared<S>& shared) {
    constexpr int CONSUMERS = S::CONSUMERS, QUERY_SLOTS = S::QUERY_SLOTS;
    const int group = uniform(threadIdx.x / WARPGROUP), lane = threadIdx.x % WARP;
    Places<S::RING> places;
    int step = group, end = 0;  // the next tile here, and the first one of the next unit, among all of the CTA
    for (int number = 0;; ++number) {
        mbarrier_wait(shared_address(&shared.announced[number % S::RING]), number / S::RING & 1);
        const volatile Summary& unit = shared.summaries[number % S::RING];
        const int begin = end;
        end += uniform(unit.count);
        if (end == begin) return;
        const int blocks = uniform(unit.blocks);
        int held = blocks;  // that this warpgroup has not given back
        auto hold = [&](int needed) {
            __syncwarp();  // all lanes have read the summary
#pragma unroll 1
            while (held > needed) {
                const int place = places.of(--held);
                mbarrier_wait(shared_address(&shared.keys_full[place]), places.parity(place));
                mbarrier_wait(shared_address(&shared.values_full[place]), places.parity(place));
                if (lane == 0) mbarrier_arrive(shared_address(&shared.block_empty[place]));
            }
        };
        auto position_of = [&](int tile) {
            const int i = tile - begin, early = unit.early, order = i < early ? unit.count - 1 - i : i - early;
            const int index = unit.tiles - 1 - p.head_groups.divide(unit.begin + order);
            return uniform(unit.first_position + index * p.tile_tokens);
        };
        auto visible_from = [&](int position) { return uniform(min(unit.length, position + p.tile_tokens)); };
        if (step >= end) hold(0);
        while (step < end) {
            const int slot = step % QUERY_SLOTS, position = position_of(step);
            const Rows rows = {shared_address(shared.queries[slot]), position, unit.length - 1};
            Tile<S::HEAD_DIM> tile;
            mbarrier_wait(shared_address(&shared.query_full[slot]), step / QUERY_SLOTS & 1);
            compute_tile<TOGETHER>(tile, shared, places, rows, visible_from(position), p);
            step += CONSUMERS;
            // The tiles after the early ones are longer.
            hold(step >= end ? 0 : step - begin < unit.early ? blocks
                             : (visible_from(position_of(step)) + BLOCK - 1) / BLOCK);
            named_barrier_sync(QUERIES_READ + group, WARPGROUP);
            lay_out(tile, rows.queries);
            if (lane == 0) mbarrier_arrive(shared_address(&shared.output_full[slot]));
        }
        places.advance(blocks);
    }
}

template <int HEAD_DIM, bool TOGETHER>
__global__ void __launch_bounds__(Sizes<HEAD_DIM>::THREADS, 1)
    derby_short_attention(const __grid_constant__ CUtensorMap queries, const __grid_constant__ CUtensorMap keys,
                          const __grid_constant__ CUtensorMap values, const __grid_constant__ CUtensorMap value_quads,
                          const __grid_constant__ CUtensorMap value_rows, const __grid_constant__ CUtensorMap outputs,
                          const __grid_constant__ Parameters p) {
    using S = Sizes<HEAD_DIM>;
    Shared<S>& shared = dynamic_shared<Shared<S>>();
    if (threadIdx.x >= S::CONSUMERS * WARPGROUP) {
        setmaxnreg_dec<S::PRODUCER_REGISTERS>();
        const int warp = threadIdx.x / WARP % 4;
        const Start start(p);
        const int page = start.number >= 0 ? page_of<S>(p, start.number) : 0;
        __syncthreads();
        if (warp == 0) load_blocks<false>(p, shared, start, page, &keys, nullptr, nullptr);
        else if (warp == 1) load_queries<S>(p, shared, start, &queries);
        else if (warp == 2) store_outputs<S>(p, shared, start, &outputs);
        else load_blocks<true>(p, shared, start, page, &values, &value_quads, &value_rows);
    } else {
        if (threadIdx.x == 0) {
            for (const CUtensorMap* map : {&queries, &keys, &values, &value_quads, &value_rows, &outputs})
                prefetch_tensor_map(map);
            for (int i = 0; i < S::RING; ++i) {
                mbarrier_init(shared_address(&shared.announced[i]), 1);
                mbarrier_init(shared_address(&shared.keys_full[i]), 1);
                mbarrier_init(shared_address(&shared.values_full[i]), 1);
                mbarrier_init(shared_address(&shared.block_empty[i]), S::CONSUMERS * 4);
            }
            for (int i = 0; i < S::QUERY_SLOTS; ++i) {
                mbarrier_init(shared_address(&shared.query_full[i]), 1);
                mbarrier_init(shared_address(&shared.output_full[i]), 4);
                mbarrier_init(shared_address(&shared.query_empty[i]), 1);
            }
            fence_mbarrier_init();
        }
        __syncthreads();
        setmaxnreg_inc<S::CONSUMER_REGISTERS>();
        consume<TOGETHER>(p, shared);
    }
}

}  // namespace derby_short
