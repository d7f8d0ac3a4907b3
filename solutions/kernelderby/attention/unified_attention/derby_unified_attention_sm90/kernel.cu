// unified_attention: causal attention over a cache in pages of 16 tokens, for sm_90a.
#include "attention_launch.cuh"

using namespace derby;

// Shapes as in the definition.
// The plan, as planning.py makes it: split: which of the head size's two kernels; first_cut, cut_tiles, chunks,
// chunk_blocks, section_heads, pack, trusting: as in AttentionCall; sorted: as launch_long_attention() takes it.
// counters: zeros, and left as zeros. processors: multiprocessors of the GPU.
extern "C" int derby_unified_attention_sm90_run(
    const void* query, const void* key_cache, const void* value_cache, const int* cu_seqlens_q, const int* seq_lens,
    const int* block_table, void* output, int* counters, float* partials, long long num_tokens, long long num_blocks,
    int num_seqs, int table_width, int heads, int kv_heads, int head_dim, float sm_scale, int split, int pack,
    int section_heads, int first_cut, int cut_tiles, int chunks, int chunk_blocks, int sorted, int trusting,
    int processors, cudaStream_t stream) {
    const AttentionTensors tensors{query, key_cache, value_cache, num_tokens, num_blocks};
    const AttentionCall call{cu_seqlens_q, seq_lens, block_table, static_cast<__nv_bfloat16*>(output), counters,
                             partials, num_seqs, table_width, heads, kv_heads, head_dim, pack, first_cut, cut_tiles,
                             chunks, chunk_blocks, section_heads, sm_scale * LOG2_E, trusting};
    const auto launch = [&](auto kernel) {
        return int(launch_long_attention<typename decltype(kernel)::Shape>(tensors, call, sorted, processors, stream));
    };
    switch (rounded_head_dim(head_dim)) { DERBY_HEAD_DIMS(split, launch, true, true) }  // CAUSAL, PAGED
    return cudaErrorInvalidValue;
}
