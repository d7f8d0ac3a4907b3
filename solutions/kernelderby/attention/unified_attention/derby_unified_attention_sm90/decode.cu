// unified_attention for few query tokens a sequence: one call of decode_attention.cuh.
#include "decode_launch.cuh"

using namespace derby_decode;

// Shapes as in the definition, head_dim 128; max_query_len times heads a key head at most 16.
// together: neighbouring key heads that a CTA reads, a divisor of 8 and of kv_heads. counters: int32 [3 processors], zeros,
// and left as zeros. partials: float32 [2 processors, together, 8 or 16 (so many that those rows fit), head_dim + 4].
// processors: multiprocessors of the GPU.
extern "C" int derby_decode_attention_run(const void* query, const void* key_cache, const void* value_cache,
                                          const int* cu_seqlens_q, const int* seq_lens, const int* block_table,
                                          void* output, int* counters, float* partials, int num_seqs, int table_width,
                                          int heads, int kv_heads, int head_dim, int max_query_len, float sm_scale,
                                          int together, int processors, cudaStream_t stream) {
    const int rows = max_query_len * (heads / kv_heads);
    if (rows > 16 || head_dim != 128 || processors > MOST_PARTS * NEIGHBOURS) return cudaErrorInvalidValue;
    const Arguments given{static_cast<const __nv_bfloat16*>(query), static_cast<const __nv_bfloat16*>(key_cache),
                          static_cast<const __nv_bfloat16*>(value_cache), cu_seqlens_q, seq_lens, block_table,
                          static_cast<__nv_bfloat16*>(output), counters, partials, num_seqs, table_width, kv_heads,
                          heads / kv_heads, together, sm_scale * LOG2E};
    return rows > 8 ? launch<128, 2, 8, 2>(given, processors, stream) : launch<128, 1, 8, 2>(given, processors, stream);
}
