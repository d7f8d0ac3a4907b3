// Launches a kernel of long attention: tensor maps and the grid.
#pragma once
#include <algorithm>

#include "launch.cuh"
#include "long_attention.cuh"
#include "once_a_device.cuh"

namespace derby {

// Boxes of `columns` columns of `box_heads` heads and `rows` tokens of a [tokens, heads, dim] tensor. With page > 0 the
// tensor is [blocks, page, heads, dim] and a box is one block.
inline bool encode_heads(EncodeTensorMap encode, CUtensorMap* map, const void* data, long long tokens, int heads, int dim,
                         int columns, int box_heads, int rows, int page) {
    const cuuint64_t row = 2ull * dim;
    const cuuint64_t sizes[4] = {cuuint64_t(dim), cuuint64_t(heads), cuuint64_t(page ? page : tokens),
                                 cuuint64_t(tokens)};
    const cuuint64_t strides[3] = {row, row * heads, row * heads * (page ? page : 1)};
    const cuuint32_t box[4] = {cuuint32_t(columns), cuuint32_t(box_heads), cuuint32_t(page ? page : rows), 1};
    const cuuint32_t steps[4] = {1, 1, 1, 1};
    return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, page ? 4 : 3, const_cast<void*>(data), sizes, strides, box,
                  steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

struct AttentionTensors {
    const void *query, *key, *value;
    long long num_tokens, kv_tokens;  // kv_tokens: rows of key (packed) or blocks of the cache (paged)
};

template <typename S>
static cudaError_t start_long_attention(const AttentionMaps& maps, const AttentionCall& call, int processors,
                                        cudaStream_t stream) {
    static OnceADevice ready;
    const cudaError_t error = ready.allow_shared_memory<derby_long_attention<S>, S::SHARED>();
    if (error != cudaSuccess) return error;
    derby_long_attention<S><<<std::min(call.items, processors), S::THREADS, S::SHARED, stream>>>(maps, call);
    return cudaGetLastError();
}

template <typename S>
static cudaError_t start_in_shares(const AttentionMaps& maps, const SharesCall& call, cudaStream_t stream) {
    static OnceADevice ready;
    const cudaError_t error = ready.allow_shared_memory<derby_long_attention_in_shares<S>, S::SHARED>();
    if (error != cudaSuccess) return error;
    const cudaError_t started = launch(derby_long_attention_in_shares<S>, {call.shares, S::THREADS, S::SHARED}, stream,
                                       maps, call);
    if (started != cudaSuccess) return started;
    return launch(derby_combine_chunks<S>, {2 * call.shares, COMBINE_THREADS, sizeof(CombineShared), 1, true}, stream,
                  call);
}

// sorted: several sequences are ordered by their number of keys, most first, if shared memory has room for their order
// and there is more than one item for each multiprocessor.
template <typename S, typename Call>
static cudaError_t launch_long_attention(const AttentionTensors& tensors, Call call, bool sorted,
                                         int processors, cudaStream_t stream) {
    static const EncodeTensorMap encode = find_encode();
    if (encode == nullptr) return cudaErrorNotSupported;
    call.tile_tokens = S::M / call.pack;
    call.all_heads = call.heads / call.pack;
    call.by_pack = divisor(call.pack);
    call.by_tile_tokens = divisor(call.tile_tokens);
    call.by_group = divisor(call.heads / call.kv_heads);
    call.by_chunks = divisor(call.chunks);
    call.by_chunk_blocks = divisor(call.chunk_blocks);
    call.num_tokens = tensors.num_tokens;
    call.kv_tokens = tensors.kv_tokens;
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
    if constexpr (S::IN_SHARES) {
        return start_in_shares<S>(maps, call, stream);
    } else {
        call.query_blocks = call.num_seqs == 1 ? int((tensors.num_tokens + call.tile_tokens - 1) / call.tile_tokens)
                                               : int(tensors.num_tokens / call.tile_tokens) + call.num_seqs;
        call.by_section = divisor(call.query_blocks * call.section_heads);
        call.by_section_heads = divisor(call.section_heads);
        call.by_last_heads = divisor((call.all_heads - 1) % call.section_heads + 1);
        const int tiles = call.query_blocks * call.all_heads;
        call.cut_tiles = std::max(0, std::min(call.cut_tiles, tiles - call.first_cut));  // the plan's are an upper bound
        call.items = tiles + call.cut_tiles * (call.chunks - 1);
        if constexpr (!S::SPLIT)
            if (sorted && call.cut_tiles == 0 && call.num_seqs <= Sorted<S>::MOST_SORTED && call.items > processors)
                return start_long_attention<Sorted<S>>(maps, call, processors, stream);
        return start_long_attention<S>(maps, call, processors, stream);
    }
}

constexpr float LOG2_E = 1.4426950408889634f;

// The head size of the kernel that takes `head_dim`; 0 if no kernel takes it.
inline int rounded_head_dim(int head_dim) {
    if (head_dim <= 0 || head_dim % 8 != 0) return 0;
    for (const int size : {64, 72, 80, 96, 128, 192, 256})
        if (head_dim <= size) return size;
    return 0;
}

}  // namespace derby

// The cases of a switch over rounded_head_dim(): launch(ShapeOf) of the head size's kernel; where `split`, of the one for
// few rows.
#define DERBY_HEAD_DIM(D, split, launch, ...) \
    case D: return split ? launch(ShapeOf<D, true, __VA_ARGS__>{}) : launch(ShapeOf<D, false, __VA_ARGS__>{});
#define DERBY_WIDE_HEAD_DIM(D, split, launch, ...) \
    case D: return split ? int(cudaErrorInvalidValue) : launch(ShapeOf<D, false, __VA_ARGS__>{});
#define DERBY_SMALL_HEAD_DIMS(...) \
    DERBY_HEAD_DIM(64, __VA_ARGS__) DERBY_HEAD_DIM(72, __VA_ARGS__) DERBY_HEAD_DIM(80, __VA_ARGS__) \
    DERBY_HEAD_DIM(96, __VA_ARGS__) DERBY_HEAD_DIM(128, __VA_ARGS__)
#define DERBY_HEAD_DIMS(...) \
    DERBY_SMALL_HEAD_DIMS(__VA_ARGS__) DERBY_WIDE_HEAD_DIM(192, __VA_ARGS__) DERBY_WIDE_HEAD_DIM(256, __VA_ARGS__)
#define DERBY_HEAD_DIMS_IN_SHARES(...) \
    DERBY_SMALL_HEAD_DIMS(__VA_ARGS__) DERBY_HEAD_DIM(192, __VA_ARGS__) DERBY_HEAD_DIM(256, __VA_ARGS__)
