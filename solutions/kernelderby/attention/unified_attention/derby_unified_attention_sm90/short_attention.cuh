// Causal attention of short sequences (at most 256 tokens with their context) over a paged cache, head_dim 128, in one
// persistent kernel for sm_90a.
//
// A unit is one sequence and one key/value head (or a part of its query tiles). Keys and values are read once into
// shared memory, in blocks of 64 tokens of 16-token pages, by TMA boxes; a query tile is up to 64 rows, some query heads
// of the group times some tokens. Warps 0 to 2 of the last warpgroup are the loader of keys and values, the loader of
// queries and the one that stores outputs; each consumer warpgroup takes every third tile. Outputs go through the
// queries' own place in shared memory.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include "short_hopper.cuh"

#ifndef SHORT_CONSUMERS
#define SHORT_CONSUMERS 3
#endif
#ifndef SHORT_TRIM
#define SHORT_TRIM 0
#endif
#ifndef SHORT_DIRECT
#define SHORT_DIRECT 0
#endif
#ifdef SHORT_CLOCKS
__device__ unsigned long long short_clocks[8];
#define CLOCKED(which, ...) do { const unsigned at = clock(); __VA_ARGS__; clocks[which] += clock() - at; } while (0)
#else
#define CLOCKED(which, ...) do { __VA_ARGS__; } while (0)
#endif
#ifndef SHORT_OVERLAP
#define SHORT_OVERLAP 0
#endif

namespace derby_short {

constexpr int PAGE = 16, BLOCK = 64, TILE_ROWS = 64, WARP = 32, WARPGROUP = 128;
constexpr int PART_BYTES = 64 * 128;  // 64 rows of 64 columns

template <int HEAD_DIM_>
struct Sizes {
    static constexpr int HEAD_DIM = HEAD_DIM_, PARTS = HEAD_DIM / 64, SLOT_BYTES = PARTS * PART_BYTES;
    static constexpr int RING = HEAD_DIM == 256 ? 2 : 4, QUERY_SLOTS = HEAD_DIM == 256 ? 3 : 6;
    static constexpr int MOST_TOKENS = RING * BLOCK;
    static constexpr int CONSUMERS = HEAD_DIM == 256 ? 2 : SHORT_CONSUMERS, THREADS = (CONSUMERS + 1) * WARPGROUP;
    static constexpr int CONSUMER_REGISTERS = CONSUMERS == 3 ? 160 : 240, PRODUCER_REGISTERS = CONSUMERS == 3 ? 32 : 24;
};

// Division of numbers below 2^16 by one that the host knows: the upper half of a product.
struct Divider {
    uint32_t number, multiplier;  // ceil(2^32 / number), 0 for 1

    void set(int by) {
        number = by;
        multiplier = by > 1 ? uint32_t(((uint64_t(1) << 32) + by - 1) / by) : 0;
    }
    __device__ int divide(int value) const { return multiplier ? __umulhi(value, multiplier) : value; }
    __device__ int rest(int value) const { return value - divide(value) * number; }
};

struct Parameters {
    const int* first_rows;   // cu_seqlens_q
    const int* lengths;      // seq_lens
    const int* table;
    __nv_bfloat16* output;
    int table_width, query_heads, kv_heads;
    int tile_heads, tile_tokens;  // of a query tile: heads divide the group, heads * tokens <= 64
    Divider head_groups, by_tokens;  // group / tile_heads; tile_tokens
    int parts, units;             // units = num_seqs * kv_heads * parts
    float scale;                  // of the scores, times log2(e)
};

template <typename S>
struct alignas(1024) Shared {
    static constexpr int RING = S::RING, SLOT_BYTES = S::SLOT_BYTES, QUERY_SLOTS = S::QUERY_SLOTS;
    uint8_t keys[RING][SLOT_BYTES];
    uint8_t values[RING][SLOT_BYTES];
    uint8_t queries[QUERY_SLOTS][SLOT_BYTES];
    uint64_t keys_full[RING], values_full[RING], block_empty[RING];
    uint64_t query_full[QUERY_SLOTS], output_full[QUERY_SLOTS], query_empty[QUERY_SLOTS];
};
template <typename S>
constexpr int SHARED_BYTES = sizeof(Shared<S>) + 1024;  // + what aligning it may cost

// What a unit's roles need to know of it. Its tiles come longest first: every later one needs the same blocks or fewer.
struct Unit {
    int sequence, kv_head, part, first_row, queries, length, tiles, count, blocks;

    __device__ void load(const Parameters& p, int unit) {
        part = unit % p.parts;
        const int rest = unit / p.parts;
        kv_head = rest % p.kv_heads;
        sequence = rest / p.kv_heads;
        first_row = __ldg(p.first_rows + sequence);
        queries = __ldg(p.first_rows + sequence + 1);
        length = __ldg(p.lengths + sequence);
    }
    // After load, once the values are wanted: tiles of this part and the blocks that they need.
    __device__ void finish(const Parameters& p) {
        queries -= first_row;
        tiles = p.by_tokens.divide(queries + p.tile_tokens - 1);
        const int all = tiles * p.head_groups.number;
        count = all > part ? (all - part + p.parts - 1) / p.parts : 0;
        blocks = count ? blocks_of(p, tile_of(p, 0)) : 0;
    }
    __device__ int tile_of(const Parameters& p, int index) const {
        return tiles - 1 - p.head_groups.divide(part + index * p.parts);
    }
    __device__ int head_of(const Parameters& p, int index) const {
        return (kv_head * p.head_groups.number + p.head_groups.rest(part + index * p.parts)) * p.tile_heads;
    }
    __device__ int visible(const Parameters& p, int tile) const {
        return min(length, length - queries + (tile + 1) * p.tile_tokens);
    }
    __device__ int blocks_of(const Parameters& p, int tile) const { return (visible(p, tile) + BLOCK - 1) / BLOCK; }
};

// Calls what(unit) for every unit of this CTA; the next one's numbers are on their way meanwhile.
template <typename What>
__device__ __forceinline__ void for_each_unit(const Parameters& p, What what) {
    Unit next;
    if (blockIdx.x < p.units) next.load(p, blockIdx.x);
    for (int index = blockIdx.x; index < p.units; index += gridDim.x) {
        Unit unit = next;
        if (index + gridDim.x < p.units) next.load(p, index + gridDim.x);
        unit.finish(p);
        what(unit);
    }
}

// Which places of keys and values the blocks of a unit get, and the parity that each place's mbarriers are at. A unit
// gives its last block back first and block 0 last, so the next unit takes the places in that order: its first blocks
// are on their way while the tail of this one is computed.
template <int COUNT>
struct Places {
    uint32_t order = 0x3210 & ((1u << (4 * COUNT)) - 1), parities = 0;  // four bits a place in the order in which they come free; one bit a place

    __device__ int of(int block) const { return order >> (4 * block) & 3; }
    __device__ int parity(int place) const { return parities >> place & 1; }
    __device__ void advance(int blocks) {
        uint32_t next = order >> (4 * blocks);
        int at = COUNT - blocks;
        for (int block = blocks - 1; block >= 0; --block, ++at) {
            next |= uint32_t(of(block)) << (4 * at);
            parities ^= 1u << of(block);
        }
        order = next & ((1u << (4 * COUNT)) - 1);
    }
};

template <typename S>
__device__ __forceinline__ void load_blocks(const Parameters& p, Shared<S>& shared, const CUtensorMap* keys,
                                            const CUtensorMap* values) {
    const int lane = threadIdx.x % WARP;
    Places<S::RING> places;
    int next_page = 0;
    auto pages_of = [&](int index) {  // lane i: page i of the unit's sequence, or 0 past the table
        const int sequence = index / p.parts / p.kv_heads;
        return lane < S::MOST_TOKENS / PAGE && lane < p.table_width
                   ? __ldg(p.table + int64_t(sequence) * p.table_width + lane) : 0;
    };
    int index = blockIdx.x;
    if (index < p.units) next_page = pages_of(index);
    for_each_unit(p, [&](const Unit& unit) {
        const int page = next_page;
        index += gridDim.x;
        if (index < p.units) next_page = pages_of(index);
        const int last = (unit.length - 1) / PAGE;
        // A lane's box: a page, 64 columns, keys or values.
        constexpr int BOXES = BLOCK / PAGE * S::PARTS;
        const int part = lane / 4 % S::PARTS;
        const bool of_values = lane >= BOXES;
        for (int block = 0; block < unit.blocks; ++block) {
            const int slot = places.of(block);
            mbarrier_wait(shared_address(&shared.block_empty[slot]), places.parity(slot) ^ 1);
            const uint32_t barrier = shared_address(of_values ? &shared.values_full[slot] : &shared.keys_full[slot]);
            if (lane == 0 || lane == BOXES) mbarrier_arrive_expect_tx(barrier, S::SLOT_BYTES);
            // Past the last page comes that page again: what no token holds must be finite.
            const int row = __shfl_sync(~0u, page, min(block * (BLOCK / PAGE) + lane % 4, last)) * PAGE;
            __syncwarp();
            if (lane < 2 * BOXES) {
                const uint32_t to = shared_address(of_values ? shared.values[slot] : shared.keys[slot]) +
                                    part * PART_BYTES + lane % 4 * PAGE * 128;
                tma_load_box(to, of_values ? values : keys, part * 64, unit.kv_head, row, barrier);
            }
            __syncwarp();
        }
        places.advance(unit.blocks);
    });
}

template <typename S>
__device__ __forceinline__ void load_queries(const Parameters& p, Shared<S>& shared, const CUtensorMap* queries) {
    if (threadIdx.x % WARP) return;
    constexpr int QUERY_SLOTS = S::QUERY_SLOTS;
    int step = 0;
    const int bytes = p.tile_heads * p.tile_tokens * S::HEAD_DIM * 2;
    for_each_unit(p, [&](const Unit& unit) {
        for (int i = 0; i < unit.count; ++i, ++step) {
            const int slot = step % QUERY_SLOTS;
            mbarrier_wait(shared_address(&shared.query_empty[slot]), (step / QUERY_SLOTS + 1) & 1);
            const uint32_t barrier = shared_address(&shared.query_full[slot]), to = shared_address(shared.queries[slot]);
            const int head = unit.head_of(p, i), row = unit.first_row + unit.tile_of(p, i) * p.tile_tokens;
            mbarrier_arrive_expect_tx(barrier, bytes);
#pragma unroll
            for (int part = 0; part < S::PARTS; ++part)
                tma_load_box(to + part * PART_BYTES, queries, part * 64, head, row, barrier);
        }
    });
}

template <typename S>
__device__ __forceinline__ void store_outputs(const Parameters& p, Shared<S>& shared, const CUtensorMap* outputs) {
    constexpr int QUERY_SLOTS = S::QUERY_SLOTS;
    const int lane = threadIdx.x % WARP;
    int step = 0;
    for_each_unit(p, [&](const Unit& unit) {
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
            } else {  // the sequence's last tile: the rows after its end are not ours
                constexpr int CHUNKS = S::HEAD_DIM / 8;
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

// A consumer thread's part of a tile: rows (thread / 32) * 16 + lane / 4 and 8 more, as wgmma lays them out.
template <int HEAD_DIM>
struct Tile {
    float output[HEAD_DIM / 2];
    float highest[2], sum[2];
};

template <int HEAD_DIM, int N>
__device__ __forceinline__ void multiply_scores(float* scores, uint32_t queries, uint32_t keys) {
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; ++k) {
        const uint32_t offset = (k / 4 * PART_BYTES + k % 4 * 32) >> 4;
        wgmma_scores<N>(scores, descriptor(queries + offset), descriptor(keys + offset), k > 0);
    }
}

// Scores of N tokens from `column` on -> weights in bfloat16, and the sums. Where a row's highest score grows by a
// factor of up to 2^8 its weights grow beyond 1 instead of the output being scaled: the quotient stays the same.
template <int HEAD_DIM, int N>
__device__ __forceinline__ void soften(float* scores, uint32_t* weights, Tile<HEAD_DIM>& tile, bool first, bool masked,
                                       int column, const int* limit, float scale) {
    if (masked) {
#pragma unroll
        for (int j = 0; j < N / 2; ++j)
            if (column + j / 4 * 8 + j % 2 > limit[j / 2 % 2]) scores[j] = -INFINITY;
    }
    float highest[2] = {scores[0], scores[2]};
#pragma unroll
    for (int j = 0; j < N / 2; ++j) highest[j / 2 % 2] = fmaxf(highest[j / 2 % 2], scores[j]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        highest[r] = fmaxf(highest[r], __shfl_xor_sync(~0u, highest[r], 1));
        highest[r] = fmaxf(highest[r], __shfl_xor_sync(~0u, highest[r], 2)) * scale;
    }
    if (first) {
        tile.highest[0] = highest[0];
        tile.highest[1] = highest[1];
    } else if (__any_sync(~0u, highest[0] > tile.highest[0] + 8.f || highest[1] > tile.highest[1] + 8.f)) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float now = fmaxf(highest[r], tile.highest[r]), factor = exp2_fast(tile.highest[r] - now);
            tile.highest[r] = now;
            tile.sum[r] *= factor;
#pragma unroll
            for (int j = 0; j < HEAD_DIM / 2; ++j)
                if (j / 2 % 2 == r) tile.output[j] *= factor;
        }
    }
#pragma unroll
    for (int j = 0; j < N / 2; j += 2) {
        const int r = j / 2 % 2;
        const float a = exp2_fast(fmaf(scores[j], scale, -tile.highest[r]));
        const float b = exp2_fast(fmaf(scores[j + 1], scale, -tile.highest[r]));
        tile.sum[r] += a + b;
        weights[j / 2] = pack_bf16(a, b);
    }
}

template <int HEAD_DIM, int N>
__device__ __forceinline__ void multiply_values(Tile<HEAD_DIM>& tile, const uint32_t* weights, uint32_t values,
                                                bool first) {
    constexpr int COLUMNS = HEAD_DIM < 128 ? HEAD_DIM : 128;  // at once
#pragma unroll
    for (int k = 0; k < N / 16; ++k)
#pragma unroll
        for (int c = 0; c < HEAD_DIM / COLUMNS; ++c)
            wgmma_values<COLUMNS>(tile.output + c * COLUMNS / 2, weights + 4 * k,
                                  descriptor(values + ((c * 2 * PART_BYTES + k * 2048) >> 4)), !first || k > 0);
}

template <int N>
struct Width {
    static constexpr int value = N;
};

template <typename S>
__device__ __forceinline__ void consume(const Parameters& p, Shared<S>& shared) {
    constexpr int QUERY_SLOTS = S::QUERY_SLOTS, CONSUMERS = S::CONSUMERS;
    const int group = threadIdx.x / WARPGROUP, thread = threadIdx.x % WARPGROUP, lane = threadIdx.x % WARP;
    const int row = thread / WARP * 16 + lane / 4;
    const int row_token[2] = {row / p.tile_heads, (row + 8) / p.tile_heads};
    const int row_head[2] = {row % p.tile_heads, (row + 8) % p.tile_heads};
#ifdef SHORT_CLOCKS
    unsigned clocks[8] = {};
    const unsigned begin = clock();
#endif
    // Where this lane's row of an 8 x 8 matrix goes in the output's place (stmatrix).
    const int matrix_row = thread / WARP * 16 + lane / 8 % 2 * 8 + lane % 8;
    int step = 0;  // tiles of the CTA so far
    Places<S::RING> places;
    for_each_unit(p, [&](const Unit& unit) {
        int held = unit.blocks;  // blocks of the unit that this warpgroup has not given back
        auto hold = [&](int needed) {
            while (held > needed) {
                const int slot = places.of(--held);
                mbarrier_wait(shared_address(&shared.keys_full[slot]), places.parity(slot));
                mbarrier_wait(shared_address(&shared.values_full[slot]), places.parity(slot));
                if (lane == 0) mbarrier_arrive(shared_address(&shared.block_empty[slot]));
            }
        };
        const int first = (group + CONSUMERS - step % CONSUMERS) % CONSUMERS;
        if (first >= unit.count) hold(0);
        for (int i = first; i < unit.count; i += CONSUMERS) {
            const int slot = (step + i) % QUERY_SLOTS, index = unit.tile_of(p, i);
            const int position = unit.length - unit.queries + index * p.tile_tokens;  // of the tile's first token
            const int blocks = unit.blocks_of(p, index);
            const int limit[2] = {min(unit.length - 1, position + row_token[0]),
                                  min(unit.length - 1, position + row_token[1])};
            const uint32_t place = shared_address(shared.queries[slot]);
            const uint32_t queries = uniform(descriptor_low(place, 16));
            Tile<S::HEAD_DIM> tile;
            tile.sum[0] = tile.sum[1] = 0;
            float scores[32];
            uint32_t weights[16];
            CLOCKED(0, mbarrier_wait(shared_address(&shared.query_full[slot]), (step + i) / QUERY_SLOTS & 1));
            auto keys_of = [&](int block) {
                const int place = places.of(block);
                CLOCKED(1, mbarrier_wait(shared_address(&shared.keys_full[place]), places.parity(place)));
                return uniform(descriptor_low(shared_address(shared.keys[place]), 16));
            };
            auto values_of = [&](int block) {
                const int place = places.of(block);
                CLOCKED(2, mbarrier_wait(shared_address(&shared.values_full[place]), places.parity(place)));
                return uniform(descriptor_low(shared_address(shared.values[place]), PART_BYTES));
            };
#if SHORT_OVERLAP
            uint32_t keys = keys_of(0);
            wgmma_fence();
            multiply_scores<S::HEAD_DIM, BLOCK>(scores, queries, keys);
            wgmma_commit_group();
            wgmma_wait_group<0>();
            if (SHORT_DIRECT && blocks == 1 && lane == 0) mbarrier_arrive(shared_address(&shared.query_empty[slot]));
            for (int block = 0; block + 1 < blocks; ++block) {
                soften<S::HEAD_DIM, BLOCK>(scores, weights, tile, block == 0, block * BLOCK + BLOCK - 1 > position,
                                           block * BLOCK + lane % 4 * 2, limit, p.scale);
                const uint32_t values = values_of(block);
                keys = keys_of(block + 1);
                wgmma_fence();
                multiply_values<S::HEAD_DIM, BLOCK>(tile, weights, values, block == 0);
                multiply_scores<S::HEAD_DIM, BLOCK>(scores, queries, keys);
                wgmma_commit_group();
                wgmma_wait_group<0>();
                if (SHORT_DIRECT && block + 2 == blocks && lane == 0)
                    mbarrier_arrive(shared_address(&shared.query_empty[slot]));
            }
            soften<S::HEAD_DIM, BLOCK>(scores, weights, tile, blocks == 1, blocks * BLOCK - 1 > position,
                                       (blocks - 1) * BLOCK + lane % 4 * 2, limit, p.scale);
            const uint32_t values = values_of(blocks - 1);
            wgmma_fence();
            multiply_values<S::HEAD_DIM, BLOCK>(tile, weights, values, blocks == 1);
            wgmma_commit_group();
            wgmma_wait_group<0>();
#else
            for (int block = 0; block < blocks; ++block) {
                auto step_of = [&](auto width) {
                    constexpr int N = decltype(width)::value;
                    const uint32_t keys = keys_of(block);
                    wgmma_fence();
                    multiply_scores<S::HEAD_DIM, N>(scores, queries, keys);
                    wgmma_commit_group();
                    CLOCKED(3, wgmma_wait_group<0>());
                    if (SHORT_DIRECT && block + 1 == blocks && lane == 0)
                        mbarrier_arrive(shared_address(&shared.query_empty[slot]));
                    soften<S::HEAD_DIM, N>(scores, weights, tile, block == 0, block * BLOCK + N - 1 > position,
                                           block * BLOCK + lane % 4 * 2, limit, p.scale);
                    const uint32_t values = values_of(block);
                    wgmma_fence();
                    multiply_values<S::HEAD_DIM, N>(tile, weights, values, block == 0);
                    wgmma_commit_group();
                    CLOCKED(4, wgmma_wait_group<0>());
                };
#if SHORT_TRIM == 2
                if (unit.visible(p, index) - block * BLOCK > 32) step_of(Width<64>{});
                else step_of(Width<32>{});
#elif SHORT_TRIM
                const int width = unit.visible(p, index) - block * BLOCK;
                if (width > 48) step_of(Width<64>{});
                else if (width > 32) step_of(Width<48>{});
                else if (width > 16) step_of(Width<32>{});
                else step_of(Width<16>{});
#else
                step_of(Width<64>{});
#endif
            }
#endif
            CLOCKED(5, hold(i + CONSUMERS < unit.count ? unit.blocks_of(p, unit.tile_of(p, i + CONSUMERS)) : 0));
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                tile.sum[r] += __shfl_xor_sync(~0u, tile.sum[r], 1);
                tile.sum[r] += __shfl_xor_sync(~0u, tile.sum[r], 2);
                tile.sum[r] = __fdividef(1.f, tile.sum[r]);
            }
#if SHORT_DIRECT
            // Two lanes exchange so that each has four columns beside each other, and a quad 16 of a row.
            const int odd = lane % 2;
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int token = index * p.tile_tokens + row_token[r];
                const bool there = row + 8 * r < p.tile_heads * p.tile_tokens && token < unit.queries;
                __nv_bfloat16* const to =
                    p.output + (int64_t(unit.first_row + token) * p.query_heads + unit.head_of(p, i) + row_head[r]) *
                                   S::HEAD_DIM + odd * 8 + lane % 4 / 2 * 4;
#pragma unroll
                for (int j = 0; j < S::HEAD_DIM / 8; j += 2) {
                    const float* o = tile.output + 4 * j + 2 * r;
                    const uint32_t a = pack_bf16(o[0] * tile.sum[r], o[1] * tile.sum[r]);
                    const uint32_t b = pack_bf16(o[4] * tile.sum[r], o[5] * tile.sum[r]);
                    const uint32_t other = __shfl_xor_sync(~0u, odd ? a : b, 1);
                    if (there) *reinterpret_cast<uint2*>(to + 8 * j) = odd ? make_uint2(other, b) : make_uint2(a, other);
                }
            }
#else
            named_barrier_sync(1 + group, WARPGROUP);  // all four warps have read the queries
#pragma unroll
            for (int k = 0; k < S::HEAD_DIM / 16; ++k) {
                const int chunk = 2 * k + lane / 16;
                const float* o = tile.output + 8 * k;
                stmatrix_x4(place + chunk / 8 * PART_BYTES + matrix_row * 128 + ((chunk % 8) ^ (matrix_row % 8)) * 16,
                            pack_bf16(o[0] * tile.sum[0], o[1] * tile.sum[0]),
                            pack_bf16(o[2] * tile.sum[1], o[3] * tile.sum[1]),
                            pack_bf16(o[4] * tile.sum[0], o[5] * tile.sum[0]),
                            pack_bf16(o[6] * tile.sum[1], o[7] * tile.sum[1]));
            }
            fence_async_proxy();
            __syncwarp();
            if (lane == 0) mbarrier_arrive(shared_address(&shared.output_full[slot]));
#endif
        }
        step += unit.count;
        places.advance(unit.blocks);
    });
#ifdef SHORT_CLOCKS
    clocks[6] = clock() - begin;
    clocks[7] = step / CONSUMERS;
    if (thread == 0)
        for (int i = 0; i < 8; ++i) atomicAdd(&short_clocks[i], (unsigned long long)clocks[i]);
#endif
}

template <int HEAD_DIM>
__global__ void __launch_bounds__(Sizes<HEAD_DIM>::THREADS, 1)
    derby_short_attention(const __grid_constant__ CUtensorMap queries, const __grid_constant__ CUtensorMap keys,
                          const __grid_constant__ CUtensorMap values, const __grid_constant__ CUtensorMap outputs,
                          const __grid_constant__ Parameters p) {
    using S = Sizes<HEAD_DIM>;
    extern __shared__ uint8_t raw[];
    Shared<S>& shared = *reinterpret_cast<Shared<S>*>((reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t(1023));
    if (threadIdx.x == 0) {
        for (const CUtensorMap* map : {&queries, &keys, &values, &outputs}) prefetch_map(map);
        for (int i = 0; i < S::RING; ++i) {
            mbarrier_init(shared_address(&shared.keys_full[i]), 1);
            mbarrier_init(shared_address(&shared.values_full[i]), 1);
            mbarrier_init(shared_address(&shared.block_empty[i]), S::CONSUMERS * 4);
        }
        for (int i = 0; i < S::QUERY_SLOTS; ++i) {
            mbarrier_init(shared_address(&shared.query_full[i]), 1);
            mbarrier_init(shared_address(&shared.output_full[i]), 4);
            mbarrier_init(shared_address(&shared.query_empty[i]), SHORT_DIRECT ? 4 : 1);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= S::CONSUMERS * WARPGROUP) {
        setmaxnreg_dec<S::PRODUCER_REGISTERS>();
        const int warp = threadIdx.x / WARP % 4;
        if (warp == 0) load_blocks<S>(p, shared, &keys, &values);
        else if (warp == 1) load_queries<S>(p, shared, &queries);
        else if (warp == 2 && !SHORT_DIRECT) store_outputs<S>(p, shared, &outputs);
    } else {
        setmaxnreg_inc<S::CONSUMER_REGISTERS>();
        consume<S>(p, shared);
    }
}

// Host ---------------------------------------------------------------------------------------------------------------

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static inline Encode find_encode() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found) !=
            cudaSuccess || found != cudaDriverEntryPointSuccess)
        return nullptr;
    return reinterpret_cast<Encode>(function);
}

// A tensor map of bfloat16 [rows, heads, head_dim]: boxes of box_rows rows, box_heads heads and 64 columns.
static inline bool encode_map(Encode encode, CUtensorMap* map, const void* tensor, int64_t rows, int heads, int head_dim,
                       int box_rows, int box_heads) {
    const cuuint64_t sizes[3] = {cuuint64_t(head_dim), cuuint64_t(heads), cuuint64_t(rows)};
    const cuuint64_t strides[2] = {cuuint64_t(head_dim) * 2, cuuint64_t(heads) * head_dim * 2};
    const cuuint32_t box[3] = {64, cuuint32_t(box_heads), cuuint32_t(box_rows)}, steps[3] = {1, 1, 1};
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(tensor), sizes, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Whether the kernel above takes such a call: shapes and host numbers only.
static inline bool takes(int head_dim, int page, int query_heads, int kv_heads, int max_seq_len, float sm_scale) {
    const int most = head_dim == 64    ? Sizes<64>::MOST_TOKENS
                     : head_dim == 128 ? Sizes<128>::MOST_TOKENS
                     : head_dim == 256 ? Sizes<256>::MOST_TOKENS
                                       : 0;
    return page == PAGE && max_seq_len <= most && sm_scale > 0;
}

// Heads and tokens of a query tile: as many rows of 64 as can be, and of those as many heads as can be (their rows lie
// beside each other, and the tile's tokens see nearly the same keys).
static inline void choose_tile(int group, int max_query_len, int* heads, int* tokens) {
    int most = 0;
    for (int h = 1; h <= group && h <= TILE_ROWS; ++h) {
        if (group % h) continue;
        const int t = TILE_ROWS / h < max_query_len ? TILE_ROWS / h : max_query_len;
        if (h * t >= most) most = h * t, *heads = h, *tokens = t;
    }
}

// Into how many parts a unit's tiles go, so that the CTAs share the work evenly: a part costs its tiles and its keys.
static inline int choose_parts(int64_t units, int tiles, int ctas) {
    int best = 1;
    double least = 1e30;
    for (int parts = 1; parts <= tiles; ++parts) {
        const int64_t rounds = (units * parts + ctas - 1) / ctas;
        const double cost = rounds * (1.0 + (tiles + parts - 1) / parts);
        if (cost < least * 0.995) least = cost, best = parts;
    }
    return best;
}

struct Call {
    const void *query, *key_cache, *value_cache;  // bfloat16 [num_tokens, query_heads, head_dim], [num_blocks, 16, kv_heads, head_dim]
    const int *cu_seqlens_q, *seq_lens, *block_table;  // [num_seqs + 1], [num_seqs], [num_seqs, table_width]
    void* output;                                      // like query
    int num_tokens, num_seqs, num_blocks, table_width, query_heads, kv_heads, max_query_len;
    float sm_scale;
    int parts, tile_heads;  // 0: chosen here
    int ctas;
    cudaStream_t stream;
};

template <int HEAD_DIM>
static int launch(const Call& call) {
    using S = Sizes<HEAD_DIM>;
    static const Encode encode = find_encode();
    if (call.num_tokens == 0 || call.num_seqs == 0) return 0;
    const int group = call.query_heads / call.kv_heads;
    Parameters p = {};
    p.first_rows = call.cu_seqlens_q;
    p.lengths = call.seq_lens;
    p.table = call.block_table;
    p.output = static_cast<__nv_bfloat16*>(call.output);
    p.table_width = call.table_width;
    p.query_heads = call.query_heads;
    p.kv_heads = call.kv_heads;
    choose_tile(group, call.max_query_len, &p.tile_heads, &p.tile_tokens);
    if (call.tile_heads > 0) {
        p.tile_heads = call.tile_heads;
        p.tile_tokens = min(TILE_ROWS / call.tile_heads, call.max_query_len);
    }
    p.head_groups.set(group / p.tile_heads);
    p.by_tokens.set(p.tile_tokens);
    const int tiles = (call.max_query_len + p.tile_tokens - 1) / p.tile_tokens * p.head_groups.number;
    p.parts = call.parts > 0 ? call.parts : choose_parts(int64_t(call.num_seqs) * call.kv_heads, tiles, call.ctas);
    p.units = call.num_seqs * call.kv_heads * p.parts;
    p.scale = call.sm_scale * 1.4426950408889634f;
    CUtensorMap queries, keys, values, outputs;
    const int64_t slots = int64_t(call.num_blocks) * PAGE;
    if (!encode ||
        !encode_map(encode, &queries, call.query, call.num_tokens, call.query_heads, HEAD_DIM, p.tile_tokens,
                    p.tile_heads) ||
        !encode_map(encode, &keys, call.key_cache, slots, call.kv_heads, HEAD_DIM, PAGE, 1) ||
        !encode_map(encode, &values, call.value_cache, slots, call.kv_heads, HEAD_DIM, PAGE, 1) ||
        !encode_map(encode, &outputs, call.output, call.num_tokens, call.query_heads, HEAD_DIM, p.tile_tokens,
                    p.tile_heads))
        return -1;
    static bool allowed[64] = {};
    int device = 0;
    cudaGetDevice(&device);
    if (device >= 64 || !allowed[device]) {
        const cudaError_t error = cudaFuncSetAttribute(derby_short_attention<HEAD_DIM>,
                                                       cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES<S>);
        if (error != cudaSuccess) return error;
        if (device < 64) allowed[device] = true;
    }
    derby_short_attention<HEAD_DIM><<<min(p.units, call.ctas), S::THREADS, SHARED_BYTES<S>, call.stream>>>(
        queries, keys, values, outputs, p);
    return cudaGetLastError();
}

// Runs a call that takes() is true of. Returns 0, a cudaError_t, or -1 where a tensor map could not be encoded.
static inline int run(const Call& call, int head_dim) {
    switch (head_dim) {
        case 64: return launch<64>(call);
        case 128: return launch<128>(call);
        case 256: return launch<256>(call);
        default: return cudaErrorInvalidValue;
    }
}

}  // namespace derby_short
