// Attention of long sequences for sm_90a: one producer warp, two or three consumer warpgroups of 64 query rows each.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "attention_hopper.cuh"
#include "wgmma_bf16.cuh"

namespace derby {

constexpr int PAGE = 16;            // tokens in a block of the cache
constexpr int SLAB_COLUMNS = 64;    // bf16 columns in a 128-byte swizzled row of shared memory
constexpr int ROW_BYTES = 128;

// Boxes of 64 columns, and those of the narrower last slab.
struct AttentionMaps {
    CUtensorMap q, k, v, q_tail, k_tail, v_tail;
};

struct AttentionCall {
    const int* cu_seqlens_q;  // [num_seqs + 1]
    const int* key_lengths;   // paged: seq_lens [num_seqs]; packed: cu_seqlens_k [num_seqs + 1]
    const int* block_table;   // paged: [num_seqs, table_width]
    __nv_bfloat16* output;    // [num_tokens, heads, head_dim]
    // Zeros, and zeros again after the call: items given out, CTAs that have ended, then for each warpgroup of each tile
    // the chunks that are done.
    int* counters;
    float* partials;          // [tiles that are cut, chunks, warpgroups with rows of their own, 128 * (D / 2 + 4)]
    int num_seqs, table_width, heads, kv_heads;
    int head_dim;             // a multiple of 8, at most D of the kernel: columns past it are zeros
    int pack;                 // query heads of one key head that share a tile: the rows of a tile are tokens x pack
    // From tile number whole_tiles on, a tile's keys are cut into chunks of chunk_blocks blocks, `chunks` at most: items
    // of work of their own, whose results are put together by the last one.
    int whole_tiles, chunks, chunk_blocks;
    int section_heads;        // tiles' heads (heads / pack) worked on at the same time: their keys and values fit the L2
    float scale_log2;         // sm_scale * log2(e)
    int query_blocks;         // tiles of query rows, an upper bound where there are several sequences
    int tile_tokens;          // M / pack
};

// SPLIT: all warpgroups work on the same 64 rows, each on every WARPGROUPS-th tile of keys, and merge at the end.
template <int HEAD_DIM, int KEYS, int GROUPS, int STAGES_, bool SPLIT_, bool CAUSAL_, bool PAGED_>
struct AttentionShape {
    static constexpr int D = HEAD_DIM, N = KEYS, WARPGROUPS = GROUPS, STAGES = STAGES_;
    static constexpr bool SPLIT = SPLIT_, CAUSAL = CAUSAL_, PAGED = PAGED_;
    static constexpr int M = SPLIT ? 64 : 64 * WARPGROUPS;
    static constexpr int OWNERS = SPLIT ? 1 : WARPGROUPS;     // warpgroups with rows of their own
    static constexpr int READERS = SPLIT ? 1 : WARPGROUPS;    // warpgroups that read a tile of keys
    static constexpr int STRIDE = SPLIT ? WARPGROUPS : 1;     // tiles of keys from one of a warpgroup to its next
    static constexpr int STEPS = (D + 15) / 16;  // of k in the first product; columns past D are zeros
    // Slabs of 64 columns, the last one possibly narrower: its rows keep their 128 bytes of shared memory.
    static constexpr int WHOLE = D / SLAB_COLUMNS, SLABS = (D + SLAB_COLUMNS - 1) / SLAB_COLUMNS;
    static constexpr int K_TAIL = STEPS * 16 - WHOLE * SLAB_COLUMNS, V_TAIL = D - WHOLE * SLAB_COLUMNS;
    static constexpr int K_ROW = 2 * STEPS * 16, V_ROW = 2 * D;  // bytes that are loaded of a row
    static constexpr int THREADS = 128 * (WARPGROUPS + 1);
    // 512 registers a thread of each multiprocessor's 128, shared out by warpgroups.
    static constexpr int PRODUCER_REGISTERS = WARPGROUPS == 3 ? 32 : 24;
    static constexpr int CONSUMER_REGISTERS = WARPGROUPS <= 2 ? 240 : WARPGROUPS == 3 ? 160 : 112;
    static constexpr int Q_SLAB = M * ROW_BYTES, KV_SLAB = N * ROW_BYTES;
    static constexpr int Q_BYTES = SLABS * Q_SLAB, KV_BYTES = SLABS * KV_SLAB;
    static constexpr int BARRIERS = 2 + 4 * STAGES;
    static constexpr int TILE_BYTES = 2 * 48 + 16;  // two tiles and a flag for each warpgroup
    static constexpr int MERGE_BYTES = SPLIT ? (WARPGROUPS - 1) * 128 * 4 * (D / 2 + 4) : 0;
    static constexpr int SHARED = 1024 + Q_BYTES + 2 * STAGES * KV_BYTES + MERGE_BYTES + TILE_BYTES + 8 * BARRIERS;
    static_assert(N % 16 == 0 && STAGES % STRIDE == 0 && SHARED <= 232448, "tile");
};

// Shared memory, at a multiple of 1024 bytes: Q, STAGES of K, STAGES of V, what is merged, two tiles, barriers.
template <typename S>
struct SharedMap {
    uint32_t base;
    __device__ __forceinline__ uint32_t q() const { return base; }
    __device__ __forceinline__ uint32_t k(int stage) const { return base + S::Q_BYTES + stage * S::KV_BYTES; }
    __device__ __forceinline__ uint32_t v(int stage) const { return k(S::STAGES + stage); }
    __device__ __forceinline__ uint32_t merge() const { return k(2 * S::STAGES); }
    __device__ __forceinline__ uint32_t tile(int slot) const { return merge() + S::MERGE_BYTES + 48 * slot; }
    __device__ __forceinline__ uint32_t flag(int warpgroup) const { return tile(2) + 4 * warpgroup; }
    __device__ __forceinline__ uint32_t barrier(int index) const { return tile(0) + S::TILE_BYTES + 8 * index; }
    __device__ __forceinline__ uint32_t q_full() const { return barrier(0); }
    __device__ __forceinline__ uint32_t q_empty() const { return barrier(1); }
    __device__ __forceinline__ uint32_t k_full(int stage) const { return barrier(2 + stage); }
    __device__ __forceinline__ uint32_t v_full(int stage) const { return barrier(2 + S::STAGES + stage); }
    __device__ __forceinline__ uint32_t k_empty(int stage) const { return barrier(2 + 2 * S::STAGES + stage); }
    __device__ __forceinline__ uint32_t v_empty(int stage) const { return barrier(2 + 3 * S::STAGES + stage); }
};

// One work item: rows of one sequence for the query heads head .. head + pack - 1.
struct __align__(16) Tile {
    int sequence, head;
    int first_query, queries;  // of the sequence: row in query, count
    int first_key, keys;       // of the sequence: row in key (packed), count
    int token;                 // first query token of the tile, in the sequence
    int blocks;                // tiles of keys of this chunk; 0: the rows are zeros; negative: no more work
    int first_block;           // its first tile of keys
    int chunk, chunks;         // this one of so many that share the rows
    int slot;                  // of the rows among the tiles that are cut
};
static_assert(sizeof(Tile) == 48, "TILE_BYTES");

__device__ __forceinline__ void put_tile(uint32_t to, const Tile& tile) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(tile.sequence), "r"(tile.head),
                 "r"(tile.first_query), "r"(tile.queries) : "memory");
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + 16), "r"(tile.first_key), "r"(tile.keys),
                 "r"(tile.token), "r"(tile.blocks) : "memory");
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + 32), "r"(tile.first_block), "r"(tile.chunk),
                 "r"(tile.chunks), "r"(tile.slot) : "memory");
}

__device__ __forceinline__ Tile get_tile(uint32_t from) {
    Tile tile;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(tile.sequence), "=r"(tile.head),
                 "=r"(tile.first_query), "=r"(tile.queries) : "r"(from) : "memory");
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(tile.first_key), "=r"(tile.keys), "=r"(tile.token),
                 "=r"(tile.blocks) : "r"(from + 16) : "memory");
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(tile.first_block), "=r"(tile.chunk),
                 "=r"(tile.chunks), "=r"(tile.slot) : "r"(from + 32) : "memory");
    return tile;
}

// Work item `index`: in sections of heads; inside, the last query rows first, since they see most. False: nothing to do.
template <typename S>
__device__ __forceinline__ bool find_tile(const AttentionCall& call, int index, int lane, Tile& tile) {
    const int cut = index - call.whole_tiles;
    tile.slot = cut / call.chunks;
    tile.chunk = 0;
    if (cut >= 0) {
        tile.chunk = cut - tile.slot * call.chunks;
        index = call.whole_tiles + tile.slot;
    }
    const int all_heads = call.heads / call.pack;
    const int per_section = call.query_blocks * call.section_heads;
    const int section = index / per_section, inside = index - section * per_section;
    const int heads = min(call.section_heads, all_heads - section * call.section_heads);
    const int from_last = inside / heads;
    tile.head = (section * call.section_heads + inside - from_last * heads) * call.pack;
    int block = call.query_blocks - 1 - from_last;
    tile.sequence = 0;
    if (call.num_seqs > 1) {
        // Sequence s has the blocks from cu_seqlens_q[s] / tile_tokens + s on: at least as many as it needs.
        // The warp looks at 32 places at once.
        int low = 0, count = call.num_seqs;
        while (count > 1) {
            const int step = (count + 31) / 32, place = low + lane * step;
            const bool before = lane * step < count && call.cu_seqlens_q[place] / call.tile_tokens + place <= block;
            const int last = 31 - __clz(__ballot_sync(0xffffffff, before) | 1);
            count = min(step, count - last * step);
            low += last * step;
        }
        tile.sequence = low;
    }
    tile.first_query = call.cu_seqlens_q[tile.sequence];
    tile.queries = call.cu_seqlens_q[tile.sequence + 1] - tile.first_query;
    if (call.num_seqs > 1) block -= tile.first_query / call.tile_tokens + tile.sequence;
    if (S::PAGED) {
        tile.first_key = 0;
        tile.keys = call.key_lengths[tile.sequence];
    } else {
        tile.first_key = call.key_lengths[tile.sequence];
        tile.keys = call.key_lengths[tile.sequence + 1] - tile.first_key;
    }
    tile.token = block * call.tile_tokens;
    int visible = tile.keys;
    if (S::CAUSAL) visible = min(visible, tile.keys - tile.queries + tile.token + call.tile_tokens);
    const int blocks = (max(visible, 0) + S::N - 1) / S::N;
    tile.chunks = cut < 0 ? 1 : max(1, min(call.chunks, (blocks + call.chunk_blocks - 1) / call.chunk_blocks));
    tile.first_block = blocks * tile.chunk / tile.chunks;
    tile.blocks = blocks * (tile.chunk + 1) / tile.chunks - tile.first_block;
    return tile.token < tile.queries && tile.chunk < tile.chunks;
}

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

// A ring of buffers, counted through.
template <int STAGES>
struct Ring {
    int turn = 0;
    __device__ __forceinline__ int stage() const { return turn % STAGES; }
    __device__ __forceinline__ uint32_t parity() const { return turn / STAGES & 1; }
};

template <typename S>
__device__ __forceinline__ void produce(const AttentionCall& call, const AttentionMaps& maps, SharedMap<S> shared, int items,
                                        int lane) {
    Ring<S::STAGES> k_ring, v_ring;
    int tiles = 0;
    const int group = call.heads / call.kv_heads;
    int item = blockIdx.x;
    while (item < items) {
        // The next item's number comes while this one is loaded.
        int next = items;
        if (items > static_cast<int>(gridDim.x) && lane == 0) next = gridDim.x + atomicAdd(call.counters, 1);
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
        item = __shfl_sync(0xffffffff, next, 0);
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

// Descriptor of a 128-byte swizzled operand: 8-row groups 1024 bytes apart; leading: bytes from one 64-column slab to the
// next where the 64 columns run along M or N.
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t address, int leading) {
    return static_cast<uint64_t>((address >> 4) & 0x3FFF) | (static_cast<uint64_t>(leading >> 4) << 16) |
           (static_cast<uint64_t>(1024 >> 4) << 32) | (1ull << 62);
}

template <typename S>
__device__ __forceinline__ void multiply_keys(float (&s)[S::N / 2], uint32_t q, uint32_t k) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < S::STEPS; ++step) {
        const int slab = step / 4, inside = step % 4;
        Wgmma<S::N>::ss(s, matrix_descriptor(q + slab * S::Q_SLAB + inside * 32, 16),
                        matrix_descriptor(k + slab * S::KV_SLAB + inside * 32, 16), step > 0);
    }
    wgmma_commit();
}

template <typename S>
__device__ __forceinline__ void multiply_values(float (&o)[S::D / 2], const uint32_t (&p)[S::N / 4], uint32_t v,
                                                bool add) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < S::N / 16; ++step)
        Wgmma<S::D>::rs(o, p + 4 * step, matrix_descriptor(v + step * 16 * ROW_BYTES, S::KV_SLAB), add || step > 0);
    wgmma_commit();
}

// The assembler would wait for the tensor cores first and weigh afterwards. A branch on a value that needs all weights
// (never taken: x is not negative) keeps it from that.
__device__ __forceinline__ void after(float x) {
    if (x < 0.0f) __trap();
}

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

#ifndef LA_POLY
#define LA_POLY 0
#endif
#ifndef LA_TURNS
#define LA_TURNS 1
#endif
#ifndef LA_LAZY
#define LA_LAZY 8.0f
#endif

// 2^x for x <= 0 without the special function unit: 2^round(x) times a polynomial of the rest, 1e-4 off at most.
__device__ __forceinline__ float exp2_polynomial(float x) {
    constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: the sum's lowest bits are the rounded x
    x = fmaxf(x, -126.0f);
    const float shifted = x + ROUND, rest = x - (shifted - ROUND);
    float y = fmaf(rest, 0.05517165f, 0.24261114f);
    y = fmaf(rest, y, 0.69326099f);
    y = fmaf(rest, y, 0.99992807f);
    return __int_as_float(__float_as_int(y) + (__float_as_int(shifted) << 23));
}

// Of one thread's two rows. Weights are 2^(score scale - origin). The origin follows the largest score only when a
// score has outgrown it by 2^LAZY: until then weights above 1 do no harm, and sums and products need no rescaling.
struct Softmax {
    float largest[2], origin[2], sum[2], rescale[2];

    __device__ __forceinline__ void set_largest(int half, float top, float scale) {
        largest[half] = top;
        origin[half] = top == -INFINITY ? 0.0f : top * scale;  // a row that has seen no key: its weights are 0
    }

    // Scores to weights, in place. True where earlier sums (done here) and products (not here) are to be rescaled.
    template <int COUNT, bool FIRST>
    __device__ __forceinline__ bool weigh(float (&s)[COUNT], float scale) {
        float top[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float even = fmaxf(s[2 * half], s[2 * half + 4]), odd = fmaxf(s[2 * half + 1], s[2 * half + 5]);
#pragma unroll
            for (int i = 8; i < COUNT; i += 4) {
                even = fmaxf(even, s[i + 2 * half]);
                odd = fmaxf(odd, s[i + 2 * half + 1]);
            }
            top[half] = fmaxf(even, odd);
        }
        bool grown = false;
        if constexpr (FIRST) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                set_largest(half, quad_max(top[half]), scale);
                sum[half] = 0.0f;
            }
        } else {
            const bool outgrown = (top[0] - largest[0]) * scale > LA_LAZY || (top[1] - largest[1]) * scale > LA_LAZY;
            grown = __any_sync(0xffffffff, outgrown);
            if (grown) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const float before = largest[half] * scale;
                    set_largest(half, fmaxf(quad_max(top[half]), largest[half]), scale);
                    rescale[half] = exp2_fast(before - origin[half]);
                    sum[half] *= rescale[half];
                }
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float even = 0.0f, odd = 0.0f;
#pragma unroll
            for (int i = 0; i < COUNT; i += 4) {
                float& a = s[i + 2 * half];
                float& b = s[i + 2 * half + 1];
                a = fmaf(a, scale, -origin[half]);
                b = fmaf(b, scale, -origin[half]);
                a = exp2_fast(a);
                b = i / 4 % 4 < LA_POLY ? exp2_polynomial(b) : exp2_fast(b);
                even += a;
                odd += b;
            }
            sum[half] += even + odd;
        }
        return grown;
    }
};

// Scores of keys that a row does not see become -inf. positions: of the thread's two rows among the keys.
template <typename S>
__device__ __forceinline__ void mask_scores(float (&s)[S::N / 2], const Tile& tile, int block, int position,
                                            int position_low, int lane) {
    const int first = block * S::N + 2 * (lane & 3);
    const int low = S::CAUSAL ? min(tile.keys, position + 1) - first : tile.keys - first;
    const int high = S::CAUSAL ? min(tile.keys, position_low + 1) - first : tile.keys - first;
#pragma unroll
    for (int i = 0; i < S::N / 2; i += 4) {
        const int column = 2 * i;  // 8 columns for 4 values
        if (column >= low) s[i] = -INFINITY;
        if (column + 1 >= low) s[i + 1] = -INFINITY;
        if (column >= high) s[i + 2] = -INFINITY;
        if (column + 1 >= high) s[i + 3] = -INFINITY;
    }
}

template <typename S>
__device__ __forceinline__ void pack_weights(uint32_t (&p)[S::N / 4], const float (&s)[S::N / 2]) {
#pragma unroll
    for (int i = 0; i < S::N / 4; ++i) p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

// Four words of four lanes of a quad, transposed: lane l gets word l of every lane, in the lanes' order.
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4], int lane) {
    const bool odd = lane & 1, upper = lane & 2;
    uint32_t give, got;
    give = odd ? w[0] : w[1];
    got = __shfl_xor_sync(0xffffffff, give, 1);
    if (odd) w[0] = got; else w[1] = got;
    give = odd ? w[2] : w[3];
    got = __shfl_xor_sync(0xffffffff, give, 1);
    if (odd) w[2] = got; else w[3] = got;
    give = upper ? w[0] : w[2];
    got = __shfl_xor_sync(0xffffffff, give, 2);
    if (upper) w[0] = got; else w[2] = got;
    give = upper ? w[1] : w[3];
    got = __shfl_xor_sync(0xffffffff, give, 2);
    if (upper) w[1] = got; else w[3] = got;
}

// row: of the thread in the tile, and row + 8.
template <typename S>
__device__ __forceinline__ void store_rows(const AttentionCall& call, const Tile& tile, const float (&o)[S::D / 2],
                                           const float (&factor)[2], int row, int lane) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int inside = row + 8 * half, token = inside / call.pack;
        const bool wanted = token < call.tile_tokens && tile.token + token < tile.queries;
        const long long query = tile.first_query + tile.token + token;
        __nv_bfloat16* to = call.output + (query * call.heads + tile.head + inside - token * call.pack) * call.head_dim;
#pragma unroll
        for (int j = 0; j + 4 <= S::D / 8; j += 4) {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                w[i] = pack_bf16(o[4 * (j + i) + 2 * half] * factor[half], o[4 * (j + i) + 2 * half + 1] * factor[half]);
            transpose_quad(w, lane);
            if (wanted && 8 * (j + (lane & 3)) < call.head_dim)
                *reinterpret_cast<uint4*>(to + 8 * (j + (lane & 3))) = make_uint4(w[0], w[1], w[2], w[3]);
        }
#pragma unroll
        for (int j = S::D / 32 * 4; j < S::D / 8; ++j)
            if (wanted && 8 * j < call.head_dim)
                *reinterpret_cast<uint32_t*>(to + 8 * j + 2 * (lane & 3)) =
                    pack_bf16(o[4 * j + 2 * half] * factor[half], o[4 * j + 2 * half + 1] * factor[half]);
    }
}

// Warpgroups take turns: `turn` waits for this one's, `pass` gives it to the next.
template <typename S>
__device__ __forceinline__ void turn(int warpgroup) {
    if constexpr (LA_TURNS && S::WARPGROUPS > 1 && !S::SPLIT) named_barrier_sync(1 + warpgroup, 256);
}

template <typename S>
__device__ __forceinline__ void pass(int warpgroup) {
    if constexpr (LA_TURNS && S::WARPGROUPS > 1 && !S::SPLIT)
        named_barrier_arrive(1 + (warpgroup + 1 == S::WARPGROUPS ? 0 : warpgroup + 1), 256);
}

constexpr int MERGE_READY = 5, MERGE_TAKEN = 6;  // hardware barriers of SPLIT

// SPLIT: the other warpgroups' sums and products into the first one's. False in warpgroups that have given theirs away.
template <typename S>
__device__ __forceinline__ bool merge(float (&o)[S::D / 2], Softmax& softmax, SharedMap<S> shared, int warpgroup,
                                      float scale) {
    constexpr int THREADS = 128 * S::WARPGROUPS;
    const uint32_t mine = shared.merge() + 4 * (threadIdx.x & 127);
    if (warpgroup > 0) {
        const uint32_t to = mine + (warpgroup - 1) * 128 * 4 * (S::D / 2 + 4);
        named_barrier_sync(MERGE_TAKEN, THREADS);
#pragma unroll
        for (int i = 0; i < S::D / 2; ++i) asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + 512 * i), "f"(o[i]) : "memory");
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + 512 * (S::D / 2 + half)), "f"(softmax.largest[half]) : "memory");
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + 512 * (S::D / 2 + 2 + half)), "f"(softmax.sum[half]) : "memory");
        }
        named_barrier_arrive(MERGE_READY, THREADS);
        return false;
    }
    named_barrier_arrive(MERGE_TAKEN, THREADS);
    named_barrier_sync(MERGE_READY, THREADS);
    for (int other = 1; other < S::WARPGROUPS; ++other) {
        const uint32_t from = mine + (other - 1) * 128 * 4 * (S::D / 2 + 4);
        float ours[2], theirs[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float largest, sum;
            asm volatile("ld.shared.f32 %0, [%1];" : "=f"(largest) : "r"(from + 512 * (S::D / 2 + half)) : "memory");
            asm volatile("ld.shared.f32 %0, [%1];" : "=f"(sum) : "r"(from + 512 * (S::D / 2 + 2 + half)) : "memory");
            const float top = fmaxf(largest, softmax.largest[half]);
            const float origin = top == -INFINITY ? 0.0f : top * scale;
            ours[half] = exp2_fast(softmax.largest[half] * scale - origin);
            theirs[half] = exp2_fast(largest * scale - origin);
            softmax.largest[half] = top;
            softmax.sum[half] = softmax.sum[half] * ours[half] + sum * theirs[half];
        }
#pragma unroll
        for (int i = 0; i < S::D / 2; ++i) {
            float value;
            asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from + 512 * i) : "memory");
            o[i] = o[i] * ours[i >> 1 & 1] + value * theirs[i >> 1 & 1];
        }
    }
    return true;
}

constexpr int COMBINE = 8;  // hardware barrier of the first warpgroup

// A chunk's sums and products go to memory. True in the warpgroup that ends last among the chunks: it has them all
// together in o and softmax, added in the order of the chunks whichever that is.
template <typename S>
__device__ __forceinline__ bool combine(const AttentionCall& call, const Tile& tile, float (&o)[S::D / 2],
                                        Softmax& softmax, SharedMap<S> shared, int warpgroup) {
    constexpr int VECTORS = S::D / 8 + 1, FLOATS = 128 * 4 * VECTORS;
    const int thread = threadIdx.x & 127;
    const auto place = [&](int chunk) {
        const long long slot = (1ll * tile.slot * call.chunks + chunk) * S::OWNERS + warpgroup;
        return reinterpret_cast<float4*>(call.partials + slot * FLOATS) + thread;
    };
    float4* mine = place(tile.chunk);
#pragma unroll
    for (int i = 0; i < S::D / 8; ++i)
        __stcg(mine + 128 * i, make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]));
    __stcg(mine + 128 * (S::D / 8),
           make_float4(softmax.largest[0], softmax.largest[1], softmax.sum[0], softmax.sum[1]));
    __threadfence();
    named_barrier_sync(COMBINE + warpgroup, 128);
    const uint32_t flag = shared.flag(warpgroup);
    if (thread == 0) {
        const unsigned before = atomicInc(
            reinterpret_cast<unsigned*>(call.counters + 2 + tile.slot * S::OWNERS + warpgroup), tile.chunks - 1);
        __threadfence();
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(flag), "r"(before) : "memory");
    }
    named_barrier_sync(COMBINE + warpgroup, 128);
    unsigned before;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(before) : "r"(flag) : "memory");
    if (before != unsigned(tile.chunks - 1)) return false;
    float top[2] = {-INFINITY, -INFINITY};
    for (int chunk = 0; chunk < tile.chunks; ++chunk) {
        const float4 state = __ldcg(place(chunk) + 128 * (S::D / 8));
        top[0] = fmaxf(top[0], state.x);
        top[1] = fmaxf(top[1], state.y);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        softmax.set_largest(half, top[half], call.scale_log2);
        softmax.sum[half] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < S::D / 2; ++i) o[i] = 0.0f;
    for (int chunk = 0; chunk < tile.chunks; ++chunk) {
        const float4* from = place(chunk);
        const float4 state = __ldcg(from + 128 * (S::D / 8));
        const float low = exp2_fast(state.x * call.scale_log2 - softmax.origin[0]);
        const float high = exp2_fast(state.y * call.scale_log2 - softmax.origin[1]);
        softmax.sum[0] += state.z * low;
        softmax.sum[1] += state.w * high;
#pragma unroll
        for (int i = 0; i < S::D / 8; ++i) {
            const float4 part = __ldcg(from + 128 * i);
            o[4 * i] += part.x * low;
            o[4 * i + 1] += part.y * low;
            o[4 * i + 2] += part.z * high;
            o[4 * i + 3] += part.w * high;
        }
    }
    return true;
}

template <typename S>
__device__ __forceinline__ void consume(const AttentionCall& call, SharedMap<S> shared, int warpgroup) {
    const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
    const int group_row = S::SPLIT ? 0 : warpgroup * 64, row = group_row + warp * 16 + (lane >> 2);
    const uint32_t q = shared.q() + group_row * ROW_BYTES;
    int first_turn = 0;  // of the tile's blocks in the rings
    if (warpgroup == S::WARPGROUPS - 1) pass<S>(warpgroup);
    for (int tiles = 0;; ++tiles) {
        mbarrier_wait(shared.q_full(), tiles & 1);
        Tile tile = get_tile(shared.tile(tiles & 1));
        if (tile.blocks < 0) break;
        float o[S::D / 2], s[S::N / 2];
        uint32_t p[S::N / 4];
        Softmax softmax;
        // Where the thread's first row and the warpgroup's first row stand among the keys.
        const int context = tile.keys - tile.queries + tile.token;
        const int position = context + row / call.pack, position_low = context + (row + 8) / call.pack;
        int first_masked = tile.keys / S::N;
        if (S::CAUSAL) first_masked = min(first_masked, (context + group_row / call.pack + 1) / S::N);
        int mine = 0;  // of the tile's blocks, the first of this warpgroup
        if constexpr (S::SPLIT) mine = (warpgroup + S::WARPGROUPS - first_turn % S::WARPGROUPS) % S::WARPGROUPS;
        Ring<S::STAGES> k_ring{first_turn + mine}, v_ring{first_turn + mine};
        first_turn += tile.blocks;
        int block = tile.first_block + tile.blocks - 1 - mine;
        bool add = false;
        if (block >= tile.first_block) {
            mbarrier_wait(shared.k_full(k_ring.stage()), k_ring.parity());
            turn<S>(warpgroup);
            multiply_keys<S>(s, q, shared.k(k_ring.stage()));
            pass<S>(warpgroup);
            wgmma_wait<0>();
            if (lane == 0) mbarrier_arrive(shared.k_empty(k_ring.stage()));
            k_ring.turn += S::STRIDE;
            if (block >= first_masked) mask_scores<S>(s, tile, block, position, position_low, lane);
            softmax.weigh<S::N / 2, true>(s, call.scale_log2);
            pack_weights<S>(p, s);
            for (block -= S::STRIDE; block >= tile.first_block; block -= S::STRIDE) {
                mbarrier_wait(shared.k_full(k_ring.stage()), k_ring.parity());
                turn<S>(warpgroup);
                multiply_keys<S>(s, q, shared.k(k_ring.stage()));
                mbarrier_wait(shared.v_full(v_ring.stage()), v_ring.parity());
                multiply_values<S>(o, p, shared.v(v_ring.stage()), add);
                add = true;
                pass<S>(warpgroup);
                wgmma_wait<1>();
                if (lane == 0) mbarrier_arrive(shared.k_empty(k_ring.stage()));
                k_ring.turn += S::STRIDE;
                if (block >= first_masked) mask_scores<S>(s, tile, block, position, position_low, lane);
                const bool grown = softmax.weigh<S::N / 2, false>(s, call.scale_log2);
                after(softmax.sum[0] + softmax.sum[1]);
                wgmma_wait<0>();
                if (lane == 0) mbarrier_arrive(shared.v_empty(v_ring.stage()));
                v_ring.turn += S::STRIDE;
                if (grown) {
#pragma unroll
                    for (int i = 0; i < S::D / 2; ++i) o[i] *= softmax.rescale[i >> 1 & 1];
                }
                pack_weights<S>(p, s);
            }
            if (lane == 0) mbarrier_arrive(shared.q_empty());
            mbarrier_wait(shared.v_full(v_ring.stage()), v_ring.parity());
            multiply_values<S>(o, p, shared.v(v_ring.stage()), add);
#pragma unroll
            for (int half = 0; half < 2; ++half) softmax.sum[half] = quad_sum(softmax.sum[half]);
            wgmma_wait<0>();
            if (lane == 0) mbarrier_arrive(shared.v_empty(v_ring.stage()));
        } else {
            if (lane == 0) mbarrier_arrive(shared.q_empty());
#pragma unroll
            for (int i = 0; i < S::D / 2; ++i) o[i] = 0.0f;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                softmax.sum[half] = 0.0f;
                softmax.largest[half] = -INFINITY;
            }
        }
        if constexpr (S::SPLIT && S::WARPGROUPS > 1)
            if (!merge<S>(o, softmax, shared, warpgroup, call.scale_log2)) continue;
        tile = get_tile(shared.tile(tiles & 1));  // again, so that no register holds it meanwhile
        if (tile.chunks > 1 && !combine<S>(call, tile, o, softmax, shared, S::SPLIT ? 0 : warpgroup)) continue;
        float factor[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) factor[half] = softmax.sum[half] > 0.0f ? 1.0f / softmax.sum[half] : 0.0f;
        store_rows<S>(call, tile, o, factor, row, lane);
    }
    // Takes back the turn that is left over, so that no barrier has threads waiting at the end.
    if (warpgroup == 0) turn<S>(0);
}

template <typename S>
__global__ void __launch_bounds__(S::THREADS, 1)
    derby_long_attention(const __grid_constant__ AttentionMaps maps, const AttentionCall call) {
    extern __shared__ uint8_t raw[];
    const SharedMap<S> shared{(shared_address(raw) + 1023) & ~1023u};
    const int tiles = call.query_blocks * (call.heads / call.pack);
    const int items = call.whole_tiles + (tiles - call.whole_tiles) * call.chunks;
    if (threadIdx.x == 0) {
        mbarrier_init(shared.q_full(), 1);
        mbarrier_init(shared.q_empty(), 4 * S::WARPGROUPS);
        for (int stage = 0; stage < S::STAGES; ++stage) {
            mbarrier_init(shared.k_full(stage), 1);
            mbarrier_init(shared.v_full(stage), 1);
            mbarrier_init(shared.k_empty(stage), 4 * S::READERS);
            mbarrier_init(shared.v_empty(stage), 4 * S::READERS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        tma_prefetch_map(&maps.q);
        tma_prefetch_map(&maps.k);
        tma_prefetch_map(&maps.v);
    }
    __syncthreads();
    const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    if (warpgroup == 0) {
        setmaxnreg_dec<S::PRODUCER_REGISTERS>();
        if (threadIdx.x < 32) produce<S>(call, maps, shared, items, threadIdx.x);
    } else {
        setmaxnreg_inc<S::CONSUMER_REGISTERS>();
        consume<S>(call, shared, warpgroup - 1);
    }
}

using EncodeMap = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                               const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                               CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

inline EncodeMap find_encode() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found) !=
            cudaSuccess || found != cudaDriverEntryPointSuccess)
        return nullptr;
    return reinterpret_cast<EncodeMap>(function);
}

// Boxes of `columns` columns of `box_heads` heads and `rows` tokens of a [tokens, heads, dim] tensor. With page > 0 the
// tensor is [blocks, page, heads, dim] and a box is one block.
inline bool encode_heads(EncodeMap encode, CUtensorMap* map, const void* data, long long tokens, int heads, int dim,
                         int columns, int box_heads, int rows, int page) {
    const cuuint64_t row = 2ull * dim;
    const cuuint64_t sizes[4] = {cuuint64_t(dim), cuuint64_t(heads), cuuint64_t(page ? page : tokens), cuuint64_t(tokens)};
    const cuuint64_t strides[3] = {row, row * heads, row * heads * (page ? page : 1)};
    const cuuint32_t box[4] = {cuuint32_t(columns), cuuint32_t(box_heads), cuuint32_t(page ? page : rows), 1};
    const cuuint32_t steps[4] = {1, 1, 1, 1};
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, page ? 4 : 3, const_cast<void*>(data), sizes, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

struct AttentionTensors {
    const void *query, *key, *value;
    long long num_tokens, kv_tokens;  // kv_tokens: rows of key (packed) or blocks of the cache (paged)
};

template <typename S>
cudaError_t launch_long_attention(const AttentionTensors& tensors, AttentionCall call, int processors,
                                  cudaStream_t stream) {
    static const EncodeMap encode = find_encode();
    if (encode == nullptr) return cudaErrorNotSupported;
    call.tile_tokens = S::M / call.pack;
    AttentionMaps maps;
    const auto encoded = [&](CUtensorMap* map, CUtensorMap* tail, const void* data, long long tokens, int heads,
                             int tail_columns, int box_heads, int rows, int page) {
        return encode_heads(encode, map, data, tokens, heads, call.head_dim, SLAB_COLUMNS, box_heads, rows, page) &&
               (tail_columns == 0 ||
                encode_heads(encode, tail, data, tokens, heads, call.head_dim, tail_columns, box_heads, rows, page));
    };
    const int page = S::PAGED ? PAGE : 0;
    if (!encoded(&maps.q, &maps.q_tail, tensors.query, tensors.num_tokens, call.heads, S::K_TAIL, call.pack,
                 call.tile_tokens, 0) ||
        !encoded(&maps.k, &maps.k_tail, tensors.key, tensors.kv_tokens, call.kv_heads, S::K_TAIL, 1, S::N, page) ||
        !encoded(&maps.v, &maps.v_tail, tensors.value, tensors.kv_tokens, call.kv_heads, S::V_TAIL, 1, S::N, page))
        return cudaErrorInvalidValue;
    call.query_blocks = call.num_seqs == 1 ? int((tensors.num_tokens + call.tile_tokens - 1) / call.tile_tokens)
                                           : int(tensors.num_tokens / call.tile_tokens) + call.num_seqs;
    static const cudaError_t sized = cudaFuncSetAttribute(
        derby_long_attention<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED);
    if (sized != cudaSuccess) return sized;
    const long long tiles = 1ll * call.query_blocks * (call.heads / call.pack);
    if (call.whole_tiles > tiles) call.whole_tiles = int(tiles);
    const long long items = call.whole_tiles + (tiles - call.whole_tiles) * call.chunks;
    const int ctas = int(items < processors ? items : processors);
    derby_long_attention<S><<<ctas, S::THREADS, S::SHARED, stream>>>(maps, call);
    return cudaGetLastError();
}

constexpr float LOG2_E = 1.4426950408889634f;

// The head size of the kernel that takes `head_dim`; 0: none does.
inline int rounded_head_dim(int head_dim) {
    if (head_dim <= 0 || head_dim % 8 != 0) return 0;
    for (const int size : {64, 72, 80, 96, 128, 192, 256})
        if (head_dim <= size) return size;
    return 0;
}

}  // namespace derby
