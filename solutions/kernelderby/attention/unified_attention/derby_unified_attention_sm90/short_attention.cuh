// Causal attention of short sequences (at most 256 tokens with their context, 128 with head_dim 256) over a paged
// cache, in one persistent kernel for sm_90a.
//
// A unit is one sequence and one key/value head, or a part of its query tiles. Its keys and values are read once into
// shared memory, in blocks of 64 tokens of 16-token pages, by TMA boxes; a query tile is up to 64 rows, some query
// heads of the group times some tokens. Warps 0 to 2 of the last warpgroup bring keys and values, bring queries, and
// store outputs (short_movers.cuh); each of the other warpgroups takes every third tile (every second with head_dim
// 256). Outputs go through the queries' own place in shared memory. Deterministic.
#pragma once
#include "short_movers.cuh"
#include "short_softmax.cuh"

namespace derby_short {

// All blocks of one tile. queries: descriptor of its queries. position: of its first token in the sequence; limit: of
// the last token that each of this thread's two rows sees.
template <typename S>
__device__ __forceinline__ void compute_tile(Tile<S::HEAD_DIM>& tile, Shared<S>& shared, const Places<S::RING>& places,
                                             uint32_t queries, int blocks, int position, const int* limit,
                                             float scale) {
    const int column = threadIdx.x % 4 * 2;
    float scores[BLOCK / 2];
    uint32_t weights[BLOCK / 4];
    tile.sum[0] = tile.sum[1] = 0;
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
        const int place = places.of(block);
        mbarrier_wait(shared_address(&shared.keys_full[place]), places.parity(place));
        const uint32_t keys = uniform(descriptor_low(shared_address(shared.keys[place]), 16));
        wgmma_fence();
        multiply_scores<S::HEAD_DIM>(scores, queries, keys);
        wgmma_commit_group();
        wgmma_wait_group<0>();
        soften(scores, weights, tile, block == 0, block * BLOCK + BLOCK - 1 > position, block * BLOCK + column, limit,
               scale);
        mbarrier_wait(shared_address(&shared.values_full[place]), places.parity(place));
        const uint32_t values = uniform(descriptor_low(shared_address(shared.values[place]), PART_BYTES));
        wgmma_fence();
        multiply_values(tile, weights, values, block == 0);
        wgmma_commit_group();
        wgmma_wait_group<0>();
    }
}

// The tile's output, divided by the sums, into shared memory at `to`, swizzled as the queries there were.
template <int HEAD_DIM>
__device__ __forceinline__ void lay_out(Tile<HEAD_DIM>& tile, uint32_t to) {
    const int lane = threadIdx.x % WARP;
    const int row = threadIdx.x % WARPGROUP / WARP * 16 + lane / 8 % 2 * 8 + lane % 8;  // this lane's, for stmatrix
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        tile.sum[r] += __shfl_xor_sync(~0u, tile.sum[r], 1);
        tile.sum[r] += __shfl_xor_sync(~0u, tile.sum[r], 2);
        tile.sum[r] = __fdividef(1.f, tile.sum[r]);
    }
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

// A consumer warpgroup: its share of each unit's tiles.
template <typename S>
__device__ __forceinline__ void consume(const Parameters& p, Shared<S>& shared) {
    constexpr int QUERY_SLOTS = S::QUERY_SLOTS, CONSUMERS = S::CONSUMERS;
    const int group = threadIdx.x / WARPGROUP, lane = threadIdx.x % WARP;
    const int row = threadIdx.x % WARPGROUP / WARP * 16 + lane / 4;
    const int row_token[2] = {row / p.tile_heads, (row + 8) / p.tile_heads};
    int step = 0;  // tiles of the CTA so far
    Places<S::RING> places;
    for_each_unit(p, [&](const Unit& unit) {
        int held = unit.blocks;  // blocks of the unit that this warpgroup has not given back
        auto hold = [&](int needed) {
#pragma unroll 1
            while (held > needed) {
                const int place = places.of(--held);
                mbarrier_wait(shared_address(&shared.keys_full[place]), places.parity(place));
                mbarrier_wait(shared_address(&shared.values_full[place]), places.parity(place));
                if (lane == 0) mbarrier_arrive(shared_address(&shared.block_empty[place]));
            }
        };
        const int first = (group + CONSUMERS - step % CONSUMERS) % CONSUMERS;
        if (first >= unit.count) hold(0);
        for (int i = first; i < unit.count; i += CONSUMERS) {
            const int slot = (step + i) % QUERY_SLOTS, index = unit.tile_of(p, i);
            const int position = unit.length - unit.queries + index * p.tile_tokens;
            const int limit[2] = {min(unit.length - 1, position + row_token[0]),
                                  min(unit.length - 1, position + row_token[1])};
            const uint32_t place = shared_address(shared.queries[slot]);
            Tile<S::HEAD_DIM> tile;
            mbarrier_wait(shared_address(&shared.query_full[slot]), (step + i) / QUERY_SLOTS & 1);
            compute_tile<S>(tile, shared, places, uniform(descriptor_low(place, 16)), unit.blocks_of(p, index),
                            position, limit, p.scale);
            hold(i + CONSUMERS < unit.count ? unit.blocks_of(p, unit.tile_of(p, i + CONSUMERS)) : 0);
            named_barrier_sync(1 + group, WARPGROUP);  // all four warps have read the queries
            lay_out(tile, place);
            if (lane == 0) mbarrier_arrive(shared_address(&shared.output_full[slot]));
        }
        step += unit.count;
        places.advance(unit.blocks);
    });
}

template <int HEAD_DIM>
__global__ void __launch_bounds__(Sizes<HEAD_DIM>::THREADS, 1)
    derby_short_attention(const __grid_constant__ CUtensorMap queries, const __grid_constant__ CUtensorMap keys,
                          const __grid_constant__ CUtensorMap values, const __grid_constant__ CUtensorMap value_quads,
                          const __grid_constant__ CUtensorMap value_rows, const __grid_constant__ CUtensorMap outputs,
                          const __grid_constant__ Parameters p) {
    using S = Sizes<HEAD_DIM>;
    extern __shared__ uint8_t raw[];
    Shared<S>& shared = *reinterpret_cast<Shared<S>*>((reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t(1023));
    if (threadIdx.x == 0) {
        for (const CUtensorMap* map : {&queries, &keys, &values, &value_quads, &value_rows, &outputs})
            prefetch_map(map);
        for (int i = 0; i < S::RING; ++i) {
            mbarrier_init(shared_address(&shared.keys_full[i]), 1);
            mbarrier_init(shared_address(&shared.values_full[i]), 1);
            mbarrier_init(shared_address(&shared.block_empty[i]), S::CONSUMERS * 4);
        }
        for (int i = 0; i < S::QUERY_SLOTS; ++i) {
            mbarrier_init(shared_address(&shared.query_full[i]), 1);
            mbarrier_init(shared_address(&shared.output_full[i]), 4);
            mbarrier_init(shared_address(&shared.query_empty[i]), 1);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= S::CONSUMERS * WARPGROUP) {
        setmaxnreg_dec<S::PRODUCER_REGISTERS>();
        const int warp = threadIdx.x / WARP % 4;
        if (warp == 0) load_blocks<S>(p, shared, &keys, &values, &value_quads, &value_rows);
        else if (warp == 1) load_queries<S>(p, shared, &queries);
        else if (warp == 2) store_outputs<S>(p, shared, &outputs);
    } else {
        setmaxnreg_inc<S::CONSUMER_REGISTERS>();
        consume<S>(p, shared);
    }
}

}  // namespace derby_short
