// The producer warps of long attention: take items of work and load their queries, keys and values.
#pragma once
#include "attention_shares.cuh"

namespace derby {

// Pages of a tile of keys are dealt out to the producer warps: each takes every LOADERS-th, one page a lane. A warp
// issues its boxes one after the other: a single warp takes longer to issue 32 of them than the tensor cores take for
// the tile.
template <typename S>
__device__ __forceinline__ int page_in_tile(int warp, int lane) {
    return warp + S::LOADERS * lane;
}

// A tile of keys or values: `row` bytes of each.
template <typename S>
__device__ __forceinline__ void load_keys(const CUtensorMap* map, const CUtensorMap* tail, const Tile& tile, int block,
                                          int kv_head, int page, uint32_t to, uint32_t barrier, int row, int warp,
                                          int lane) {
    if (warp == 0 && lane == 0) mbarrier_arrive_expect_tx(barrier, S::N * row);
    __syncwarp();
    if constexpr (S::PAGED) {
        const int place = page_in_tile<S>(warp, lane);
        if (place < S::N / PAGE) {
            const uint32_t at = to + place * PAGE * ROW_BYTES;
#pragma unroll
            for (int slab = 0; slab < S::SLABS; ++slab)
                tma_load(at + slab * S::KV_SLAB, slab < S::WHOLE ? map : tail, barrier, slab * SLAB_COLUMNS, kv_head, 0,
                         page);
        }
    } else if (lane < S::SLABS) {
        tma_load(to + lane * S::KV_SLAB, lane < S::WHOLE ? map : tail, barrier, lane * SLAB_COLUMNS, kv_head,
                 tile.first_key + block * S::N);
    }
}

template <typename S>
__device__ __forceinline__ int page_of(const AttentionCall& call, const Tile& tile, int block, int warp, int lane) {
    if constexpr (S::PAGED) {
        // Pages past the last token get the number of a page behind the cache, which TMA fills with zeros.
        const int index = block * (S::N / PAGE) + min(page_in_tile<S>(warp, lane), S::N / PAGE - 1);
        if (index * PAGE >= tile.keys) return static_cast<int>(call.kv_tokens);
        return call.block_table[static_cast<long long>(tile.sequence) * call.table_width + index];
    }
    return 0;
}

// Loads the queries of the tiles-th item once those of the item before have been read, and hands the item to the
// consumers.
template <typename S>
__device__ __forceinline__ void load_queries(const AttentionCall& call, const AttentionMaps& maps, const Tile& tile,
                                             SharedMap<S> shared, int tiles, int lane) {
    mbarrier_wait(shared.q_empty(), (tiles & 1) ^ 1);
    if (lane == 0) {
        put_tile(shared.tile(tiles & 1), tile);
        if (tile.blocks > 0)
            mbarrier_arrive_expect_tx(shared.q_full(), S::K_ROW * call.pack * call.tile_tokens);
        else
            mbarrier_arrive(shared.q_full());
    }
    __syncwarp();
    if (tile.blocks > 0 && lane < S::SLABS)
        tma_load(shared.q() + lane * S::Q_SLAB, lane < S::WHOLE ? &maps.q : &maps.q_tail, shared.q_full(),
                 lane * SLAB_COLUMNS, tile.head, tile.first_query + tile.token);
}

// Tells the consumers that there are no more items. The last CTA to end leaves the counters as it found them.
template <typename S>
__device__ __forceinline__ void end_items(const AttentionCall& call, SharedMap<S> shared, int tiles, int lane) {
    mbarrier_wait(shared.q_empty(), (tiles & 1) ^ 1);
    if (lane > 0) return;
    Tile end = {};
    end.blocks = -1;
    put_tile(shared.tile(tiles & 1), end);
    mbarrier_arrive(shared.q_full());
    if (call.items <= static_cast<int>(gridDim.x)) return;
    __threadfence();
    if (atomicInc(reinterpret_cast<unsigned*>(call.counters + 1), gridDim.x - 1) == gridDim.x - 1) call.counters[0] = 0;
}

// The first LOADERS warps, all on the same items; warp 0 takes them, loads the queries and tells the consumers.
template <typename S, typename Call>
__device__ __forceinline__ void produce(const Call& call, const AttentionMaps& maps, SharedMap<S> shared,
                                        int warp, int lane) {
    Ring<S::K_STAGES> k_ring;
    Ring<S::STAGES> v_ring;
    int tiles = 0, item = blockIdx.x;
    auto way = way_of<S>(call, shared);  // IN_SHARES: item stays
    for (int round = 0; item < call.items; ++round) {
        // The next item's number is fetched while the last tiles of this one are loaded, and nothing may use it before
        // the end. It is not fetched earlier: a CTA with a long item would then hold a second one while others have run
        // out of short ones.
        int ticket = 0x3fffffff;  // none
        const auto take = [&]() {
            take_ticket(call.counters, call.items > static_cast<int>(gridDim.x) && warp == 0 && lane == 0, ticket);
        };
        Tile tile;
        bool found;
        if constexpr (S::IN_SHARES) {
            if (!way.next(call, tile)) break;
            found = true;
        } else {
            found = find_tile<S>(call, shared, item, lane, tile);
        }
        if (!found) {
            take();
        } else {
            int page = 0;
            const int last_block = tile.first_block + tile.blocks - 1;
            if (tile.blocks > 0) page = page_of<S>(call, tile, last_block, warp, lane);
            int page_before = page;
            if (warp == 0) {
                load_queries<S>(call, maps, tile, shared, tiles, lane);
                ++tiles;
            }
            const int kv_head = divide(tile.head, call.by_group);
            if (tile.blocks == 0) take();
            for (int block = last_block; block >= tile.first_block - 1; --block) {
                if (block >= tile.first_block) {
                    const int stage = k_ring.stage();
                    mbarrier_wait(shared.k_empty(stage), k_ring.parity() ^ 1);
                    load_keys<S>(&maps.k, &maps.k_tail, tile, block, kv_head, page, shared.k(stage),
                                 shared.k_full(stage), S::K_ROW, warp, lane);
                    ++k_ring.turn;
                    if (block == tile.first_block) take();
                }
                if (block < last_block) {
                    const int stage = v_ring.stage();
                    mbarrier_wait(shared.v_empty(stage), v_ring.parity() ^ 1);
                    load_keys<S>(&maps.v, &maps.v_tail, tile, block + 1, kv_head, page_before, shared.v(stage),
                                 shared.v_full(stage), S::V_ROW, warp, lane);
                    ++v_ring.turn;
                }
                page_before = page;
                if (block > tile.first_block) page = page_of<S>(call, tile, block - 1, warp, lane);
            }
        }
        if constexpr (S::IN_SHARES) continue;
        if constexpr (S::LOADERS > 1) {
            const uint32_t slot = shared.ticket(round & 1);
            if (warp == 0 && lane == 0) store_shared(slot, ticket);
            named_barrier_sync(TICKET_READY, 32 * S::LOADERS);
            ticket = load_shared_i32(slot);
        } else {
            ticket = __shfl_sync(0xffffffff, ticket, 0);
        }
        item = ticket + gridDim.x;
    }
    if (warp == 0) end_items<S>(call, shared, tiles, lane);
}

}  // namespace derby
