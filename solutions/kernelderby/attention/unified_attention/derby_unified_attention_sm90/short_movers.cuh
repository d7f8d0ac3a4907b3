// Short attention: the four warps that move data: keys, values, queries, outputs.
#pragma once
#include <cuda.h>
#include "short_units.cuh"

namespace derby_short {

constexpr int OUTSIDE = -PAGE;  // row of a box that lies outside of the cache: TMA fills it with zeros

// The free slots of a page may hold anything, and 0 times NaN is NaN. So the values of a page that a sequence fills
// only in part (`tokens` of its slots, 1 to 15) are loaded as seven boxes of 64 columns: three of four rows, away from
// the end, and four of the single rows around it. No box has both filled and free slots.
constexpr int PIECES = 7, QUADS = 3, QUAD = 4;
struct Piece {
    int at, rows;  // the piece's first row within the page, and how many
    bool held;     // else the rows are free
};
__host__ __device__ inline Piece piece_of_page(int piece, int tokens) {
    const int cut = tokens / QUAD * QUAD;
    if (piece >= QUADS) return {cut + piece - QUADS, 1, cut + piece - QUADS < tokens};
    return {piece * QUAD + (piece * QUAD < cut ? 0 : QUAD), QUAD, piece * QUAD < cut};
}

// Lane i: page i of the unit's sequence, or 0 past the table.
template <typename S>
__device__ __forceinline__ int page_of(const Parameters& p, int unit) {
    const int lane = threadIdx.x % WARP, sequence = p.by_heads.divide(unit);
    return lane < S::MOST_TOKENS / PAGE && lane < p.table_width
               ? __ldg(p.table + int64_t(sequence) * p.table_width + lane) : 0;
}

// The warp that loads keys, or VALUES, a block of four pages at a time, each lane with one box. The warp of keys also
// announces units to the consumers. first_page: page_of the first unit.
template <bool VALUES, typename S>
__device__ __forceinline__ void load_blocks(const Parameters& p, Shared<S>& shared, const Start& start, int first_page,
                                            const CUtensorMap* pages, const CUtensorMap* quads,
                                            const CUtensorMap* rows) {
    const int lane = threadIdx.x % WARP;
    Places<S::RING> places;
    int announced = 0;
    auto announce = [&](const Summary& summary) {
        shared.summaries[announced % S::RING] = summary;
        mbarrier_arrive(shared_address(&shared.announced[announced++ % S::RING]));
    };
    Walk walk = start.walk;
    int from, to, number, next_page = first_page;
    for_each_unit(p, start, [&](const Unit& unit) {
        const int page = next_page;
        number = walk.next(p, from, to);
        if (number >= 0) next_page = page_of<S>(p, number);
        const int full = unit.length / PAGE, rest = unit.length % PAGE;  // pages, and tokens of the one behind them
#pragma unroll 1
        for (int block = 0; block < unit.blocks; ++block) {
            const int slot = places.of(block);
            mbarrier_wait(shared_address(&shared.block_empty[slot]), places.parity(slot) ^ 1);
            const uint32_t barrier = shared_address(VALUES ? &shared.values_full[slot] : &shared.keys_full[slot]);
            const uint32_t place = shared_address(VALUES ? shared.values[slot] : shared.keys[slot]);
            if (lane == 0) mbarrier_arrive_expect_tx(barrier, S::SLOT_BYTES);
            const int index = block * (BLOCK / PAGE) + lane % 4, held = __shfl_sync(~0u, page, index) * PAGE;
            const int row = index < full + (rest > 0) ? held : OUTSIDE;
            __syncwarp();
            if (lane < BLOCK / PAGE * S::PARTS && !(VALUES && rest && index == full))
                tma_load(place + lane / 4 * PART_BYTES + lane % 4 * PAGE * 128, pages, barrier, lane / 4 * 64,
                         unit.kv_head, row);
            if (VALUES && rest && full / (BLOCK / PAGE) == block) {
                const int part = lane / PIECES, first = __shfl_sync(~0u, page, full) * PAGE;
                const Piece piece = piece_of_page(lane % PIECES, rest);
                if (part < S::PARTS)
                    tma_load(place + part * PART_BYTES + (full % (BLOCK / PAGE) * PAGE + piece.at) * 128,
                             piece.rows == QUAD ? quads : rows, barrier, part * 64, unit.kv_head,
                             piece.held ? first + piece.at : OUTSIDE);
            }
            if (!VALUES && block == 0 && lane == 0)
                announce({unit.count, unit.blocks, unit.length - unit.queries, unit.length, unit.tiles, unit.begin,
                          unit.early});
            __syncwarp();
        }
        places.advance(unit.blocks);
    });
    if (VALUES) return;
    const int slot = places.of(0);
    mbarrier_wait(shared_address(&shared.block_empty[slot]), places.parity(slot) ^ 1);
    if (lane == 0) announce({});
}

// The warp that loads query tiles, in the order in which the consumers take them.
template <typename S>
__device__ __forceinline__ void load_queries(const Parameters& p, Shared<S>& shared, const Start& start,
                                             const CUtensorMap* queries) {
    if (threadIdx.x % WARP) return;
    constexpr int QUERY_SLOTS = S::QUERY_SLOTS;
    int step = 0;
    const int bytes = p.tile_heads * p.tile_tokens * S::HEAD_DIM * 2;
    for_each_unit(p, start, [&](const Unit& unit) {
#pragma unroll 1
        for (int i = 0; i < unit.count; ++i, ++step) {
            const int slot = step % QUERY_SLOTS;
            mbarrier_wait(shared_address(&shared.query_empty[slot]), (step / QUERY_SLOTS + 1) & 1);
            const uint32_t barrier = shared_address(&shared.query_full[slot]);
            const uint32_t to = shared_address(shared.queries[slot]);
            const int head = unit.head_of(p, i), row = unit.first_row + unit.tile_of(p, i) * p.tile_tokens;
            mbarrier_arrive_expect_tx(barrier, bytes);
#pragma unroll
            for (int part = 0; part < S::PARTS; ++part)
                tma_load(to + part * PART_BYTES, queries, barrier, part * 64, head, row);
        }
    });
}

// The warp that stores finished tiles from the places of their queries: whole tiles as TMA boxes, the last tile of a
// sequence row by row, since the rows after its end belong to others.
template <typename S>
__device__ __forceinline__ void store_outputs(const Parameters& p, Shared<S>& shared, const Start& start,
                                              const CUtensorMap* outputs) {
    constexpr int QUERY_SLOTS = S::QUERY_SLOTS;
    const int lane = threadIdx.x % WARP;
    int step = 0;
    for_each_unit(p, start, [&](const Unit& unit) {
#pragma unroll 1
        for (int i = 0; i < unit.count; ++i, ++step) {
            const int slot = step % QUERY_SLOTS;
            const uint32_t from = shared_address(shared.queries[slot]);
            const int head = unit.head_of(p, i), token = unit.tile_of(p, i) * p.tile_tokens;
            const int tokens = min(p.tile_tokens, unit.queries - token);
            mbarrier_wait(shared_address(&shared.output_full[slot]), (step / QUERY_SLOTS) & 1);
            if (tokens == p.tile_tokens) {
                if (lane == 0) {
#pragma unroll
                    for (int part = 0; part < S::PARTS; ++part)
                        tma_store(outputs, from + part * PART_BYTES, part * 64, head, unit.first_row + token);
                    bulk_commit_group();
                    bulk_wait_group_read();  // all that is needed before the end, too
                }
            } else {
                constexpr int CHUNKS = S::HEAD_DIM / 8;
#pragma unroll 1
                for (int item = lane; item < tokens * p.tile_heads * CHUNKS; item += WARP) {
                    const int row = item / CHUNKS, chunk = item % CHUNKS;
                    const uint4 v =
                        load_shared16(from + chunk / 8 * PART_BYTES + row * 128 + ((chunk % 8) ^ (row % 8)) * 16);
                    const int64_t to = int64_t(unit.first_row + token + row / p.tile_heads) * p.query_heads + head +
                                       row % p.tile_heads;
                    reinterpret_cast<uint4*>(p.output + to * S::HEAD_DIM)[chunk] = v;
                }
            }
            __syncwarp();
            if (lane == 0) mbarrier_arrive(shared_address(&shared.query_empty[slot]));
        }
    });
}

}  // namespace derby_short
