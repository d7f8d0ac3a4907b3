// unified_attention for batches of short sequences: one call of short_launch.cuh.
#include "short_launch.cuh"

// Shapes as in the definition, head_dim 64, 128 or 256, no sequence longer than Sizes<head_dim>::MOST_TOKENS.
// processors: multiprocessors of the GPU.
extern "C" int derby_short_attention_run(const void* query, const void* key_cache, const void* value_cache,
                                         const int* cu_seqlens_q, const int* seq_lens, const int* block_table,
                                         void* output, int num_tokens, int num_seqs, int num_blocks, int table_width,
                                         int heads, int kv_heads, int head_dim, int max_query_len, float sm_scale,
                                         int processors, cudaStream_t stream) {
    return derby_short::run({query, key_cache, value_cache, cu_seqlens_q, seq_lens, block_table, output, num_tokens,
                             num_seqs, num_blocks, table_width, heads, kv_heads, max_query_len, sm_scale, processors,
                             stream}, head_dim);
}
