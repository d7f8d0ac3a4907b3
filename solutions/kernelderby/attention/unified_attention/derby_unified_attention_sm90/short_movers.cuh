// Short attention: the three warps that move data, keys and values, queries, outputs.
#pragma once
#include <cuda.h>
#include "short_units.cuh"

namespace derby_short {

constexpr int OUTSIDE = -PAGE;  // row of a box that lies outside of the cache: TMA fills it with zeros

// The free slots of a page may hold anything, and 0 times NaN is NaN. So the values of a page that a sequence holds in
// part (`tokens` of its slots, 1 to 15) come as seven boxes of 64 columns, none of which has both held and free slots:
// the three quads of rows beside the end, and four rows one by one.
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

// Brings such a page's values to `to`, a lane a piece. row: of the page in the cache.
template <typename S>
__device__ __forceinline__ void load_part_of_page(uint32_t to, const CUtensorMap* quads, const CUtensorMap* rows,
                                                  int kv_head, int row, int tokens, uint32_t barrier) {
    const int part = threadIdx.x % WARP / PIECES;
    if (part >= S::PARTS) return;
    const Piece piece = piece_of_page(threadIdx.x % WARP % PIECES, tokens);
    tma_load_box(to + part * PART_BYTES + piece.at * 128, piece.rows == QUAD ? quads : rows, part * 64, kv_head,
                 piece.held ? row + piece.at : OUTSIDE, barrier);
}

// The warp that brings keys and values, a block of four pages at a time: a lane issues one box.
template <typename S>
__device__ __forceinline__ void load_blocks(const Parameters& p, Shared<S>& shared, const CUtensorMap* keys,
                                            const CUtensorMap* values, const CUtensorMap* value_quads,
                                            const CUtensorMap* value_rows) {
    const int lane = threadIdx.x % WARP;
    Places<S::RING> places;
    int next_page = 0;
    auto pages_of = [&](int unit) {  // lane i: page i of the unit's sequence, or 0 past the table
        const int sequence = p.by_heads.divide(unit);
        return lane < S::MOST_TOKENS / PAGE && lane < p.table_width
                   ? __ldg(p.table + int64_t(sequence) * p.table_width + lane) : 0;
    };
    Walk walk(p);
    int from, to, number = walk.next(p, from, to);
    if (number >= 0) next_page = pages_of(number);
    for_each_unit(p, [&](const Unit& unit) {
        const int page = next_page;
        number = walk.next(p, from, to);
        if (number >= 0) next_page = pages_of(number);
        const int full = unit.length / PAGE, rest = unit.length % PAGE;  // pages, and tokens of the one behind them
        // A lane's box: a page, 64 columns, keys or values.
        constexpr int BOXES = BLOCK / PAGE * S::PARTS;
        const int part = lane / 4 % S::PARTS;
        const bool of_values = lane >= BOXES;
#pragma unroll 1
        for (int block = 0; block < unit.blocks; ++block) {
            const int slot = places.of(block);
            mbarrier_wait(shared_address(&shared.block_empty[slot]), places.parity(slot) ^ 1);
            const uint32_t barrier = shared_address(of_values ? &shared.values_full[slot] : &shared.keys_full[slot]);
            if (lane == 0 || lane == BOXES) mbarrier_arrive_expect_tx(barrier, S::SLOT_BYTES);
            const int index = block * (BLOCK / PAGE) + lane % 4, held = __shfl_sync(~0u, page, index) * PAGE;
            const int row = index < full + (rest > 0) ? held : OUTSIDE;
            __syncwarp();
            if (lane < 2 * BOXES && !(of_values && rest && index == full)) {
                const uint32_t to = shared_address(of_values ? shared.values[slot] : shared.keys[slot]) +
                                    part * PART_BYTES + lane % 4 * PAGE * 128;
                tma_load_box(to, of_values ? values : keys, part * 64, unit.kv_head, row, barrier);
            }
            if (rest && full / (BLOCK / PAGE) == block)
                load_part_of_page<S>(shared_address(shared.values[slot]) + full % (BLOCK / PAGE) * PAGE * 128,
                                     value_quads, value_rows, unit.kv_head, __shfl_sync(~0u, page, full) * PAGE, rest,
                                     shared_address(&shared.values_full[slot]));
            __syncwarp();
        }
        places.advance(unit.blocks);
    });
}

// The warp that brings query tiles, in the order in which the consumers take them.
template <typename S>
__device__ __forceinline__ void load_queries(const Parameters& p, Shared<S>& shared, const CUtensorMap* queries) {
    if (threadIdx.x % WARP) return;
    constexpr int QUERY_SLOTS = S::QUERY_SLOTS;
    int step = 0;
    const int bytes = p.tile_heads * p.tile_tokens * S::HEAD_DIM * 2;
    for_each_unit(p, [&](const Unit& unit) {
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
                tma_load_box(to + part * PART_BYTES, queries, part * 64, head, row, barrier);
        }
    });
}

// The warp that stores finished tiles, which lie where their queries lay: whole ones as TMA boxes, the last of a
// sequence row by row, since the rows after its end are not ours.
template <typename S>
__device__ __forceinline__ void store_outputs(const Parameters& p, Shared<S>& shared, const CUtensorMap* outputs) {
    constexpr int QUERY_SLOTS = S::QUERY_SLOTS;
    const int lane = threadIdx.x % WARP;
    int step = 0;
    for_each_unit(p, [&](const Unit& unit) {
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
                        tma_store_box(outputs, part * 64, head, unit.first_row + token, from + part * PART_BYTES);
                    bulk_commit_group();
                    bulk_wait_group_read();
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
    if (lane == 0) bulk_wait_group();
}

}  // namespace derby_short
