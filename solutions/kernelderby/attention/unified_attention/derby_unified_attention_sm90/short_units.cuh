// Short attention: sizes, what a call's CTAs share out among themselves, and what they keep in shared memory.
#pragma once
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include "dynamic_shared.cuh"
#include "lanes.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

namespace derby_short {

using namespace derby;

// Returns the same value, which the compiler then knows to be the same in all lanes, so it can compute with it once a
// warp.
__device__ __forceinline__ uint32_t uniform(uint32_t value) { return __shfl_sync(~0u, value, 0); }

constexpr int PAGE = 16, BLOCK = 64, TILE_ROWS = 64, WARP = 32, WARPGROUP = 128;
constexpr int MOST_CTAS = 160;
constexpr int EARLY = 4;  // more makes units of few tiles slower, since they are more even longest first
constexpr int PART_BYTES = 64 * 128;  // 64 rows of 64 columns

// PARTS: of a row, 64 columns each. RING: blocks of keys, and of values, that shared memory holds.
template <int HEAD_DIM_>
struct Sizes {
    static constexpr int HEAD_DIM = HEAD_DIM_, PARTS = HEAD_DIM / 64, SLOT_BYTES = PARTS * PART_BYTES;
    static constexpr int RING = HEAD_DIM == 256 ? 2 : 4, QUERY_SLOTS = HEAD_DIM == 256 ? 3 : 6;
    static constexpr int MOST_TOKENS = RING * BLOCK;
    static constexpr int CONSUMERS = HEAD_DIM == 256 ? 2 : 3, THREADS = (CONSUMERS + 1) * WARPGROUP;
    static constexpr int CONSUMER_REGISTERS = CONSUMERS == 3 ? 144 : 208;
    static constexpr int PRODUCER_REGISTERS = CONSUMERS == 3 ? 80 : 88;
    static_assert(HEAD_DIM % 64 == 0 && HEAD_DIM <= 256, "whole parts; wgmma has 256 columns at most");
    static_assert(CONSUMERS * CONSUMER_REGISTERS + PRODUCER_REGISTERS <= (CONSUMERS + 1) * (65536 / THREADS / 8 * 8),
                  "no more than the CTA has at its start, or who asks for more waits for ever");
};

// Hardware barriers, by what their threads wait for; 0 is __syncthreads's.
enum ShortBarrier { QUERIES_READ = 1 };  // one warpgroup, number 1 + its index: all its warps have read the queries

// Divides by a number that the host knows, as the upper half of a product; right for dividends below 2^32 / number.
struct Divider {
    uint32_t number, multiplier;  // ceil(2^32 / number), 0 for 1

    void set(int by) {
        number = by;
        multiplier = by > 1 ? uint32_t(((uint64_t(1) << 32) + by - 1) / by) : 0;
    }
    __host__ __device__ int divide(int value) const {
        return multiplier ? int(uint64_t(uint32_t(value)) * multiplier >> 32) : value;
    }
    __host__ __device__ int rest(int value) const { return value - divide(value) * number; }
};

struct Parameters {
    const int *first_rows, *lengths, *table;  // cu_seqlens_q, seq_lens, block_table
    __nv_bfloat16* output;
    int table_width, query_heads, kv_heads;
    int tile_heads, tile_tokens;     // of a query tile: heads divide the group, heads * tokens <= 64
    Divider head_groups, by_tokens, by_tile_heads;  // group / tile_heads; tile_tokens; tile_heads
    Divider by_heads, by_most;       // kv_heads; tiles of a unit that has max_query_len tokens
    float scale;                     // of the scores, times log2(e)
    int early;                       // EARLY: of a CTA's first unit, so many of the shortest tiles come first
    int whole;                       // units dealt out whole, one a CTA and round; the others are cut
    int cuts[MOST_CTAS + 1];         // CTA c's share of the others: from cuts[c] to cuts[c + 1], tiles, by_most a unit
};

// What the consumers need of a unit. Shared memory holds as many of these as there are places for blocks: each unit
// takes at least one place, so the place that becomes free for the next unit's block 0 was given back with the oldest
// of these units or a later one.
struct alignas(8) Summary {
    int count, blocks;           // as in Unit; count 0: no more units
    int first_position, length;  // position of the first query token, tokens of the sequence
    int tiles, begin, early;     // as in Unit
};

// announced: a summary is there. full: a TMA box has arrived. empty: all readers are done. output_full: a tile's output
// is in its queries' place.
template <typename S>
struct alignas(1024) Shared {
    static constexpr int RING = S::RING, SLOT_BYTES = S::SLOT_BYTES, QUERY_SLOTS = S::QUERY_SLOTS;
    uint8_t keys[RING][SLOT_BYTES];
    uint8_t values[RING][SLOT_BYTES];
    uint8_t queries[QUERY_SLOTS][SLOT_BYTES];
    Summary summaries[RING];
    uint64_t announced[RING], keys_full[RING], values_full[RING], block_empty[RING];
    uint64_t query_full[QUERY_SLOTS], output_full[QUERY_SLOTS], query_empty[QUERY_SLOTS];
};
template <typename S>
constexpr int SHARED_BYTES = sizeof(Shared<S>);

// What all warps of a CTA need of a unit: the CTA's share, from tile `begin` on. Tiles come longest first, so every
// later tile needs the same blocks or fewer. Only a CTA's first unit begins with `early` of its shortest tiles, which
// wait for a single block of keys and values while the others are on their way.
struct Unit {
    int sequence, kv_head, from, to, first_row, queries, length, tiles, begin, count, blocks, early;

    __device__ void load(const Parameters& p, int unit) {
        sequence = p.by_heads.divide(unit);
        kv_head = unit - sequence * p.kv_heads;
        first_row = __ldg(p.first_rows + sequence);
        queries = __ldg(p.first_rows + sequence + 1);
        length = __ldg(p.lengths + sequence);
    }
    // Called after load, when the values are needed: the tiles of this share and the blocks that they need. A sequence
    // that is shorter than max_query_len is cut in proportion.
    __device__ void finish(const Parameters& p) {
        queries -= first_row;
        tiles = p.by_tokens.divide(queries + p.tile_tokens - 1);
        const int all = tiles * p.head_groups.number;
        begin = p.by_most.divide(from * all);
        count = p.by_most.divide(to * all) - begin;
        early = 0;
        blocks = count ? blocks_of(p, tile_of(p, 0)) : 0;
    }
    // Which of a share's `count` tiles, numbered longest first, is computed as the index-th.
    __host__ __device__ static int order(int index, int count, int early) {
        return index < early ? count - 1 - index : index - early;
    }
    __device__ int tile_of(const Parameters& p, int index) const {
        return tiles - 1 - p.head_groups.divide(begin + order(index, count, early));
    }
    __device__ int head_of(const Parameters& p, int index) const {
        const int tile = begin + order(index, count, early);
        return (kv_head * p.head_groups.number + p.head_groups.rest(tile)) * p.tile_heads;
    }
    __device__ int visible(const Parameters& p, int tile) const {
        return min(length, length - queries + (tile + 1) * p.tile_tokens);
    }
    __device__ int blocks_of(const Parameters& p, int tile) const { return (visible(p, tile) + BLOCK - 1) / BLOCK; }
};

// The units of this CTA, one after the other.
struct Walk {
    int unit, at, end;

    __device__ explicit Walk(const Parameters& p)
        : unit(blockIdx.x), at(p.cuts[blockIdx.x]), end(p.cuts[blockIdx.x + 1]) {}
    // Number of the next unit, and its share; -1: no more.
    __device__ int next(const Parameters& p, int& from, int& to) {
        if (unit < p.whole) {
            from = 0, to = p.by_most.number;
            unit += gridDim.x;
            return unit - gridDim.x;
        }
        if (at >= end) return -1;
        const int skipped = p.by_most.divide(at);
        from = at - skipped * p.by_most.number, to = min(int(p.by_most.number), from + end - at);
        at += to - from;
        return p.whole + skipped;
    }
};

// This CTA's first unit, whose data are loaded while the CTA sets itself up. number -1: it has none.
struct Start {
    Walk walk;
    Unit unit;
    int number;

    __device__ explicit Start(const Parameters& p) : walk(p) {
        number = walk.next(p, unit.from, unit.to);
        if (number >= 0) unit.load(p, number);
    }
};

// Calls what(unit) for every unit of this CTA while the next one's data are loaded.
template <typename What>
__device__ __forceinline__ void for_each_unit(const Parameters& p, const Start& start, What what) {
    Walk walk = start.walk;
    Unit next = start.unit;
    bool first = true;
    int number = start.number;
#pragma unroll 1
    while (number >= 0) {
        Unit unit = next;
        number = walk.next(p, next.from, next.to);
        if (number >= 0) next.load(p, number);
        unit.finish(p);
        if (first) unit.early = p.early;
        first = false;
        what(unit);
    }
}

// Which places of keys and values the blocks of a unit get, and the parity of each place's mbarriers. A unit gives its
// last block back first and block 0 last, and the next unit takes the places in that order, so its first blocks are
// loaded while the end of this one is computed.
template <int COUNT>
struct Places {
    uint32_t order = 0x3210 & ((1u << (4 * COUNT)) - 1);  // four bits a place, in the order in which they come free
    uint32_t parities = 0;                                // one bit a place

    __host__ __device__ int of(int block) const { return order >> (4 * block) & 3; }
    __host__ __device__ int parity(int place) const { return parities >> place & 1; }
    __host__ __device__ void advance(int blocks) {
        uint32_t next = order >> (4 * blocks);
        int at = COUNT - blocks;
#pragma unroll 1
        for (int block = blocks - 1; block >= 0; --block, ++at) {
            next |= uint32_t(of(block)) << (4 * at);
            parities ^= 1u << of(block);
        }
        order = next & ((1u << (4 * COUNT)) - 1);
    }
};

}  // namespace derby_short
