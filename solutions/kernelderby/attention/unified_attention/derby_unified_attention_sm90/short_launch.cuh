// Short attention, the host's side: which calls it takes, how the work is cut, tensor maps, the launch.
#pragma once
#include "launch.cuh"
#include "once_a_device.cuh"
#include "short_attention.cuh"

namespace derby_short {

using derby::EncodeTensorMap;

// A tensor map of bfloat16 [rows, heads, head_dim]: boxes of box_rows rows, box_heads heads and 64 columns.
static inline bool encode_map(EncodeTensorMap encode, CUtensorMap* map, const void* tensor, int64_t rows, int heads,
                              int head_dim, int box_rows, int box_heads) {
    const cuuint64_t sizes[3] = {cuuint64_t(head_dim), cuuint64_t(heads), cuuint64_t(rows)};
    const cuuint64_t strides[2] = {cuuint64_t(head_dim) * 2, cuuint64_t(heads) * head_dim * 2};
    const cuuint32_t box[3] = {64, cuuint32_t(box_heads), cuuint32_t(box_rows)}, steps[3] = {1, 1, 1};
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(tensor), sizes, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Heads and tokens of a query tile: the choice that fills most of its 64 rows, and among these the one with most heads
// (the rows of heads lie beside each other, and the tile's tokens see nearly the same keys).
static inline void choose_tile(int group, int max_query_len, int* heads, int* tokens) {
    int most = 0;
    for (int h = 1; h <= group && h <= TILE_ROWS; ++h) {
        if (group % h) continue;
        const int t = TILE_ROWS / h < max_query_len ? TILE_ROWS / h : max_query_len;
        if (h * t >= most) most = h * t, *heads = h, *tokens = t;
    }
}

// Shares the call's units out among its CTAs, and returns the number of CTAs. As many full rounds as there are give
// each CTA a whole unit. The units that are left are either each cut evenly among as many CTAs as a unit can get, or
// all laid end to end and cut evenly. A tile costs 3, and 2 more for each block that it needs; loading a unit's keys
// costs as much as a tile that needs 2.5 blocks.
static inline int share_out(Parameters& p, int units, int max_query_len, int processors) {
    const int ctas = processors < MOST_CTAS ? processors : MOST_CTAS, groups = p.head_groups.number;
    const int tiles = p.by_tokens.divide(max_query_len + p.tile_tokens - 1), most = tiles * groups;
    const int rest = units % ctas;
    p.by_most.set(most);
    p.whole = units - rest;
    if (rest == 0) return ctas;
    double before[257] = {}, longest = 0;  // costs before each tile of one group of heads, the longest first
    for (int tile = 0; tile < tiles; ++tile) {
        const double cost = 3 + 2 * (((tiles - tile) * p.tile_tokens + BLOCK - 1) / BLOCK);
        before[tile + 1] = before[tile] + cost * groups;
        longest = cost > longest ? cost : longest;
    }
    const double all = before[tiles], keys = 8;
    const int pieces = ctas / rest < most ? ctas / rest : most;
    const double apart = all / pieces > longest ? all / pieces : longest;
    const double together = rest * all / ctas > longest ? rest * all / ctas : longest;
    const int count = together + 2 * keys < apart + keys ? ctas : rest * pieces;
    for (int cut = 0; cut <= ctas; ++cut) {
        if (cut >= count) {
            p.cuts[cut] = rest * most;
            continue;
        }
        const double share = rest * all * cut / count;
        const int unit = int(share / all);
        int tile = 0;
        while (tile + 1 < tiles && before[tile + 1] <= share - unit * all) ++tile;
        const double part = (share - unit * all - before[tile]) / (before[tile + 1] - before[tile]);
        p.cuts[cut] = unit * most + tile * groups + int(part * groups + 0.5);
    }
    return p.whole ? ctas : count;
}

struct Call {
    // bfloat16 [num_tokens, query_heads, head_dim], the caches [num_blocks, 16, kv_heads, head_dim]
    const void *query, *key_cache, *value_cache;
    const int *cu_seqlens_q, *seq_lens, *block_table;  // [num_seqs + 1], [num_seqs], [num_seqs, table_width]
    void* output;                                      // like query
    int num_tokens, num_seqs, num_blocks, table_width, query_heads, kv_heads, max_query_len;
    float sm_scale;
    int processors;  // multiprocessors of the GPU
    cudaStream_t stream;
};

// Whether a tile's blocks of keys are computed together. They are not if a multiprocessor has five tiles or fewer,
// since reading that much code takes too long then, nor if a unit has no more tiles than there are warpgroups, since
// each would wait for all of the unit's keys to arrive.
template <int HEAD_DIM>
static bool goes_together(int units, int tiles_of_unit, const Call& call) {
    using S = Sizes<HEAD_DIM>;
    return units * tiles_of_unit > 5 * call.processors && tiles_of_unit > S::CONSUMERS;
}

template <int HEAD_DIM>
static int launch(const Call& call) {
    using S = Sizes<HEAD_DIM>;
    static const EncodeTensorMap encode = derby::find_encode();
    if (call.num_tokens == 0 || call.num_seqs == 0) return 0;
    const int group = call.query_heads / call.kv_heads;
    Parameters p = {call.cu_seqlens_q, call.seq_lens, call.block_table, static_cast<__nv_bfloat16*>(call.output),
                    call.table_width, call.query_heads, call.kv_heads};
    choose_tile(group, call.max_query_len, &p.tile_heads, &p.tile_tokens);
    p.head_groups.set(group / p.tile_heads);
    p.by_tokens.set(p.tile_tokens);
    p.by_tile_heads.set(p.tile_heads);
    p.by_heads.set(call.kv_heads);
    const int units = call.num_seqs * call.kv_heads;
    p.early = EARLY;
    const int ctas = share_out(p, units, min(call.max_query_len, S::MOST_TOKENS), call.processors);
    p.scale = call.sm_scale * 1.4426950408889634f;
    CUtensorMap queries, keys, values, value_quads, value_rows, outputs;
    const int64_t slots = int64_t(call.num_blocks) * PAGE;
    if (!encode ||
        !encode_map(encode, &queries, call.query, call.num_tokens, call.query_heads, HEAD_DIM, p.tile_tokens,
                    p.tile_heads) ||
        !encode_map(encode, &keys, call.key_cache, slots, call.kv_heads, HEAD_DIM, PAGE, 1) ||
        !encode_map(encode, &values, call.value_cache, slots, call.kv_heads, HEAD_DIM, PAGE, 1) ||
        !encode_map(encode, &value_quads, call.value_cache, slots, call.kv_heads, HEAD_DIM, QUAD, 1) ||
        !encode_map(encode, &value_rows, call.value_cache, slots, call.kv_heads, HEAD_DIM, 1, 1) ||
        !encode_map(encode, &outputs, call.output, call.num_tokens, call.query_heads, HEAD_DIM, p.tile_tokens,
                    p.tile_heads))
        return -1;
    const auto start = [&](auto kernel, OnceADevice& ready) {
        const cudaError_t error = ready([&] {
            return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES<S>);
        });
        if (error != cudaSuccess) return error;
        kernel<<<ctas, S::THREADS, SHARED_BYTES<S>, call.stream>>>(queries, keys, values, value_quads, value_rows,
                                                                   outputs, p);
        return cudaGetLastError();
    };
    static OnceADevice apart, together;
    if constexpr (S::RING > 2)  // with head_dim 256 registers are too few for it
        if (goes_together<HEAD_DIM>(units, p.by_most.number, call))
            return start(derby_short_attention<HEAD_DIM, true>, together);
    return start(derby_short_attention<HEAD_DIM, false>, apart);
}

// Runs a call of a head size below whose sequences fit Sizes<head_dim>::MOST_TOKENS. Returns 0, a cudaError_t, or -1
// where a tensor map could not be encoded.
static inline int run(const Call& call, int head_dim) {
    switch (head_dim) {
        case 64: return launch<64>(call);
        case 128: return launch<128>(call);
        case 256: return launch<256>(call);
        default: return cudaErrorInvalidValue;
    }
}

}  // namespace derby_short
