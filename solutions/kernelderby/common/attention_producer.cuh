// The producer warp of long attention: takes items of work and loads their queries, keys and values.
#pragma once
#include "attention_tiles.cuh"

namespace derby {

// A tile of keys or values: `row` bytes of each.
template <typename S>
__device__ __forceinline__ void load_keys(const CUtensorMap* map, const CUtensorMap* tail, const Tile& tile, int block,
                                          int kv_head, int page, uint32_t to, uint32_t barrier, int row, int lane) {
    if (lane == 0) mbarrier_arrive_expect_tx(barrier, S::N * row);
    __syncwarp();
    if constexpr (S::PAGED) {
        if (lane < S::N / PAGE) {
            const uint32_t at = to + lane * PAGE * ROW_BYTES;
#pragma unroll
            for (int slab = 0; slab < S::SLABS; ++slab)
                tma_load_4d(at + slab * S::KV_SLAB, slab < S::WHOLE ? map : tail, slab * SLAB_COLUMNS, kv_head, 0, page,
                            barrier);
        }
    } else if (lane < S::SLABS) {
        tma_load_3d(to + lane * S::KV_SLAB, lane < S::WHOLE ? map : tail, lane * SLAB_COLUMNS, kv_head,
                    tile.first_key + block * S::N, barrier);
    }
}

template <typename S>
__device__ __forceinline__ int page_of(const AttentionCall& call, const Tile& tile, int block, int lane) {
    if constexpr (S::PAGED) {
        // Pages past the last token: the last page again, so that what is multiplied by zero is finite.
        const int last = (tile.keys - 1) / PAGE;
        const int index = min(block * (S::N / PAGE) + min(lane, S::N / PAGE - 1), last);
        return call.block_table[static_cast<long long>(tile.sequence) * call.table_width + index];
    }
    return 0;
}

// ticket: how many were taken before, in the thread that takes one; else as it was. An increment: of an addition the
// assembler makes one for the whole warp, with shuffles that wait for it on the spot.
__device__ __forceinline__ void take_ticket(int* counter, bool wanted, int& ticket) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\n@p atom.global.inc.u32 %0, [%1], 0x7fffffff;\n}"
                 : "+r"(ticket) : "l"(counter), "r"(static_cast<int>(wanted)) : "memory");
}

template <typename S>
__device__ __forceinline__ void produce(const AttentionCall& call, const AttentionMaps& maps, SharedMap<S> shared, int items,
                                        int lane) {
    Ring<S::STAGES> k_ring, v_ring;
    int tiles = 0;
    const int group = call.heads / call.kv_heads;
    int item = blockIdx.x;
    while (item < items) {
        // The next item's number comes while this one is loaded: nothing may use it before the end.
        int ticket = items;
        take_ticket(call.counters, items > static_cast<int>(gridDim.x) && lane == 0, ticket);
        Tile tile;
        if (find_tile<S>(call, item, lane, tile)) {
            int page = 0;
            const int last_block = tile.first_block + tile.blocks - 1;
            if (tile.blocks > 0) page = page_of<S>(call, tile, last_block, lane);
            int page_before = page;
            mbarrier_wait(shared.q_empty(), (tiles & 1) ^ 1);
            if (lane == 0) {
                put_tile(shared.tile(tiles & 1), tile);
                if (tile.blocks > 0)
                    mbarrier_arrive_expect_tx(shared.q_full(), S::K_ROW * call.pack * call.tile_tokens);
                else
                    mbarrier_arrive(shared.q_full());
            }
            __syncwarp();
            ++tiles;
            if (tile.blocks > 0 && lane < S::SLABS)
                tma_load_3d(shared.q() + lane * S::Q_SLAB, lane < S::WHOLE ? &maps.q : &maps.q_tail, lane * SLAB_COLUMNS,
                            tile.head, tile.first_query + tile.token, shared.q_full());
            const int kv_head = tile.head / group;
            for (int block = last_block; block >= tile.first_block - 1; --block) {
                if (block >= tile.first_block) {
                    const int stage = k_ring.stage();
                    mbarrier_wait(shared.k_empty(stage), k_ring.parity() ^ 1);
                    load_keys<S>(&maps.k, &maps.k_tail, tile, block, kv_head, page, shared.k(stage),
                                 shared.k_full(stage), S::K_ROW, lane);
                    ++k_ring.turn;
                }
                if (block < last_block) {
                    const int stage = v_ring.stage();
                    mbarrier_wait(shared.v_empty(stage), v_ring.parity() ^ 1);
                    load_keys<S>(&maps.v, &maps.v_tail, tile, block + 1, kv_head, page_before, shared.v(stage),
                                 shared.v_full(stage), S::V_ROW, lane);
                    ++v_ring.turn;
                }
                page_before = page;
                if (block > tile.first_block) page = page_of<S>(call, tile, block - 1, lane);
            }
        }
        item = __shfl_sync(0xffffffff, ticket, 0) + gridDim.x;
    }
    mbarrier_wait(shared.q_empty(), (tiles & 1) ^ 1);
    if (lane == 0) {
        Tile end = {};
        end.blocks = -1;
        put_tile(shared.tile(tiles & 1), end);
        mbarrier_arrive(shared.q_full());
        // The last CTA to end leaves the counters as it found them.
        if (items > static_cast<int>(gridDim.x)) {
            __threadfence();
            if (atomicInc(reinterpret_cast<unsigned*>(call.counters + 1), gridDim.x - 1) == gridDim.x - 1)
                call.counters[0] = 0;
        }
    }
}

}  // namespace derby
