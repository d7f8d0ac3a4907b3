// Long attention: the forms of its kernels, the arguments of a call, and the layout of shared memory.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "tma.cuh"

namespace derby {

constexpr int PAGE = 16;            // tokens in a block of the cache
constexpr int SLAB_COLUMNS = 64;    // bf16 columns in a 128-byte swizzled row of shared memory
constexpr int ROW_BYTES = 128;

// Boxes of 64 columns, and those of the narrower last slab.
struct AttentionMaps {
    CUtensorMap q, k, v, q_tail, k_tail, v_tail;
};

// A divisor that the host knows: the kernel divides 0 <= x < 2^31 by it with a multiplication and a shift, since an
// item's place takes up to eight divisions, one after the other.
struct Divisor {
    uint32_t factor;
    int shift;
};

inline Divisor divisor(int number) {
    int shift = 0;
    while (1ll << shift < number) ++shift;
    return {static_cast<uint32_t>(((1ull << 32) * ((1ll << shift) - number)) / number + 1), shift};
}

__device__ __forceinline__ int divide(int x, Divisor by) {
    return static_cast<int>((__umulhi(x, by.factor) + x) >> by.shift);
}

struct AttentionCall {
    const int* cu_seqlens_q;  // [num_seqs + 1]
    const int* key_lengths;   // paged: seq_lens [num_seqs]; packed: cu_seqlens_k [num_seqs + 1]
    const int* block_table;   // paged: [num_seqs, table_width]
    __nv_bfloat16* output;    // [num_tokens, heads, head_dim]
    // Counters, zero before the call and zero again after it: items given out, CTAs that have ended, then, for each
    // warpgroup of each tile that is cut, the chunks that are done.
    int* counters;
    float* partials;          // [tiles that are cut, chunks, warpgroups with rows of their own, 128 * (D / 2 + 4)]
    int num_seqs, table_width, heads, kv_heads;
    int head_dim;             // a multiple of 8, at most D of the kernel: columns past it are zeros
    int pack;                 // query heads of one key head that share a tile: the rows of a tile are tokens x pack
    // The keys of cut_tiles tiles, from number first_cut on, are cut into at most `chunks` chunks of chunk_blocks
    // blocks. Each chunk is an item of work of its own; the one that ends last puts their results together.
    int first_cut, cut_tiles, chunks, chunk_blocks;
    int section_heads;        // heads / pack of them at a time: their keys and values fit the L2
    float scale_log2;         // sm_scale * log2(e)
    int trusting;             // 0: weights are those of the largest score so far. 1: of one that is near (Softmax)
    long long num_tokens, kv_tokens;  // rows of query; rows of key (packed) or blocks of the cache (paged)
    int query_blocks;         // tiles of query rows, an upper bound where there are several sequences
    int tile_tokens;          // M / pack
    int all_heads;            // heads / pack
    int items;                // items of work, an upper bound as query_blocks is
    // section: all tiles of section_heads; last_heads: heads of the last section; group: heads / kv_heads.
    Divisor by_pack, by_tile_tokens, by_section, by_section_heads, by_last_heads, by_group, by_chunks, by_chunk_blocks;
};

// SPLIT: all warpgroups work on the same 64 rows, each on every WARPGROUPS-th tile of keys, and merge at the end.
template <int HEAD_DIM, int KEYS, int GROUPS, int STAGES_, bool SPLIT_, bool CAUSAL_, bool PAGED_>
struct AttentionShape {
    static constexpr int D = HEAD_DIM, N = KEYS, WARPGROUPS = GROUPS, STAGES = STAGES_;
    static constexpr bool SPLIT = SPLIT_, CAUSAL = CAUSAL_, PAGED = PAGED_;
    static constexpr int M = SPLIT ? 64 : 64 * WARPGROUPS;
    static constexpr int OWNERS = SPLIT ? 1 : WARPGROUPS;     // warpgroups with rows of their own
    static constexpr int READERS = SPLIT ? 1 : WARPGROUPS;    // warpgroups that read a tile of keys
    static constexpr int LOADERS = PAGED ? 4 : 1;             // producer warps
    static constexpr bool UNSEEN = !SPLIT && D <= 128;        // there are registers to make scores once more
    static constexpr int STRIDE = SPLIT ? WARPGROUPS : 1;     // tiles of keys from one of a warpgroup to its next
    static constexpr int STEPS = (D + 15) / 16;  // of k in the first product; columns past D are zeros
    // Slabs of 64 columns, the last one possibly narrower: its rows keep their 128 bytes of shared memory.
    static constexpr int WHOLE = D / SLAB_COLUMNS, SLABS = (D + SLAB_COLUMNS - 1) / SLAB_COLUMNS;
    static constexpr int K_TAIL = STEPS * 16 - WHOLE * SLAB_COLUMNS, V_TAIL = D - WHOLE * SLAB_COLUMNS;
    static constexpr int K_ROW = 2 * STEPS * 16, V_ROW = 2 * D;  // bytes that are loaded of a row
    static constexpr int THREADS = 128 * (WARPGROUPS + 1);
    // A multiprocessor has 512 registers for each of 128 threads; the warpgroups share them out.
    static constexpr int PRODUCER_REGISTERS = WARPGROUPS == 3 ? 32 : 24;
    static constexpr int CONSUMER_REGISTERS = WARPGROUPS <= 2 ? 240 : WARPGROUPS == 3 ? 160 : 112;
    static constexpr int Q_SLAB = M * ROW_BYTES, KV_SLAB = N * ROW_BYTES;
    static constexpr int Q_BYTES = SLABS * Q_SLAB, KV_BYTES = SLABS * KV_SLAB;
    // Keys stay until their weights are seen to be right, which may take a stage more.
    static constexpr int K_STAGES = UNSEEN && WARPGROUPS == 3 ? STAGES + 1 : STAGES;
    static constexpr int BARRIERS = 2 + 2 * (K_STAGES + STAGES);
    static constexpr int TILE_BYTES = 2 * 48 + 16 + 8;  // two tiles, a flag for each warpgroup, two tickets
    static constexpr int MERGE_BYTES = SPLIT ? (WARPGROUPS - 1) * 128 * 4 * (D / 2 + 4) : 0;
    static constexpr int SHARED =
        1024 + Q_BYTES + (K_STAGES + STAGES) * KV_BYTES + MERGE_BYTES + TILE_BYTES + 8 * BARRIERS;
    static constexpr bool SORTED = false, IN_SHARES = false;
    static_assert(N % 16 == 0, "the second product takes 16 keys at a time; a page has as many");
    static_assert(D % 8 == 0 && D <= 256, "whole 16-byte vectors; wgmma has 256 columns at most");
    static_assert(STAGES % STRIDE == 0, "a warpgroup finds its tiles of keys at the same stages each time round");
    static_assert(WARPGROUPS <= 3, "a named barrier for each warpgroup's turn");
    static_assert(D / 2 + N / 2 + N / 4 + 24 <= CONSUMER_REGISTERS, "sums, scores, weights, and what goes on beside them");
    static_assert(SHARED <= 232448, "shared memory of a CTA of sm_90");
};

// The kernels by head size: keys of a tile, warpgroups, stages. attention_planning.py has their speeds.
struct AttentionForm {
    int head_dim, keys, warpgroups, stages;
};

// For many rows of queries: two stages, and as many keys as a thread has registers for, with their scores and weights
// beside its sums. Three warpgroups where that leaves room for about 128 keys; from 192 columns on, shared memory is
// the limit.
constexpr AttentionForm WIDE_FORMS[] = {{64, 128, 3, 2}, {72, 128, 3, 2}, {80, 112, 3, 2}, {96, 96, 3, 2},
                                        {128, 128, 2, 2}, {192, 112, 2, 2}, {256, 80, 2, 2}};
// SPLIT, for few rows: small tiles of keys, so that both warpgroups have some. The last two are for equal shares alone.
constexpr AttentionForm SPLIT_FORMS[] = {{64, 64, 2, 4}, {72, 64, 2, 4},  {80, 64, 2, 4}, {96, 64, 2, 4},
                                         {128, 64, 2, 4}, {192, 64, 1, 4}, {256, 64, 1, 3}};

template <int HEAD_DIM, size_t COUNT>
constexpr AttentionForm form_of(const AttentionForm (&forms)[COUNT]) {
    for (const AttentionForm& form : forms)
        if (form.head_dim == HEAD_DIM) return form;
    return {};
}

template <int HEAD_DIM, bool SPLIT, bool CAUSAL, bool PAGED>
struct ShapeOf {
    static constexpr AttentionForm FORM = SPLIT ? form_of<HEAD_DIM>(SPLIT_FORMS) : form_of<HEAD_DIM>(WIDE_FORMS);
    using Shape = AttentionShape<HEAD_DIM, FORM.keys, FORM.warpgroups, FORM.stages, SPLIT, CAUSAL, PAGED>;
};

// Hardware barriers, by what their threads wait for; 0 is __syncthreads's.
enum AttentionBarrier {
    TURN = 1,          // a warpgroup's turn on the tensor cores: 1 + its index
    MERGE_READY = 5,   // SPLIT: another warpgroup's results are in shared memory
    MERGE_TAKEN = 6,   // SPLIT: there is room for them
    TICKET_READY = 7,  // of the producer warps: the next item of work
    COMBINE = 8,       // one warpgroup, 8 + its index
};

// A shape for several sequences, taken with most keys first (attention_order.cuh). Their order takes two words of
// shared memory for each sequence, and one more for the tiles of all.
template <typename S>
struct Sorted : S {
    static constexpr bool SORTED = true;
    static constexpr int MOST_SORTED = (232448 - S::SHARED) / 8 - 1 < 256 ? (232448 - S::SHARED) / 8 - 1 : 256;
    static constexpr int SHARED = S::SHARED + 8 * (MOST_SORTED + 1);
    static_assert(MOST_SORTED > 0, "no room for a sequence");
};

// Shared memory, at a multiple of 1024 bytes: Q, K_STAGES of K, STAGES of V, what is merged, two tiles, barriers.
template <typename S>
struct SharedMap {
    uint32_t base;
    __device__ __forceinline__ uint32_t q() const { return base; }
    __device__ __forceinline__ uint32_t k(int stage) const { return base + S::Q_BYTES + stage * S::KV_BYTES; }
    __device__ __forceinline__ uint32_t v(int stage) const { return k(S::K_STAGES + stage); }
    __device__ __forceinline__ uint32_t merge() const { return k(S::K_STAGES + S::STAGES); }
    __device__ __forceinline__ uint32_t tile(int slot) const { return merge() + S::MERGE_BYTES + 48 * slot; }
    __device__ __forceinline__ uint32_t flag(int warpgroup) const { return tile(2) + 4 * warpgroup; }
    __device__ __forceinline__ uint32_t ticket(int slot) const { return tile(2) + 16 + 4 * slot; }
    __device__ __forceinline__ uint32_t barrier(int index) const { return tile(0) + S::TILE_BYTES + 8 * index; }
    // For each place in the order: the tiles of the sequences before it (behind the last place, the tiles of all), and
    // the sequence's number.
    __device__ __forceinline__ uint32_t before(int place) const { return barrier(S::BARRIERS) + 4 * place; }
    __device__ __forceinline__ uint32_t in_order(int place) const { return before(S::MOST_SORTED + 1 + place); }
    __device__ __forceinline__ uint32_t q_full() const { return barrier(0); }
    __device__ __forceinline__ uint32_t q_empty() const { return barrier(1); }
    __device__ __forceinline__ uint32_t k_full(int stage) const { return barrier(2 + stage); }
    __device__ __forceinline__ uint32_t k_empty(int stage) const { return barrier(2 + S::K_STAGES + stage); }
    __device__ __forceinline__ uint32_t v_full(int stage) const { return barrier(2 + 2 * S::K_STAGES + stage); }
    __device__ __forceinline__ uint32_t v_empty(int stage) const {
        return barrier(2 + 2 * S::K_STAGES + S::STAGES + stage);
    }
};

// A ring of buffers, counted through.
template <int STAGES>
struct Ring {
    int turn = 0;
    __device__ __forceinline__ int stage() const { return turn % STAGES; }
    __device__ __forceinline__ uint32_t parity() const { return turn / STAGES & 1; }
};

}  // namespace derby
