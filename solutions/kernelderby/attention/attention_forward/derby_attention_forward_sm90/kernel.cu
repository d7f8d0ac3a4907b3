// attention_forward: full attention over packed sequences, for sm_90a.
#include "attention_launch.cuh"

using namespace derby;

// Shapes as in the definition.
// The plan, as planning.py makes it: split: which of the head size's two kernels; first_cut, cut_tiles, chunks,
// chunk_blocks, section_heads, trusting: as in AttentionCall; sorted: as launch_long_attention() takes it. counters:
// zeros, and left as zeros. processors: multiprocessors of the GPU.
extern "C" int derby_attention_forward_sm90_run(
    const void* query, const void* key, const void* value, const int* cu_seqlens_q, const int* cu_seqlens_k,
    void* output, int* counters, float* partials, long long num_tokens, long long num_keys, int num_seqs, int heads,
    int head_dim, float sm_scale, int split, int section_heads, int first_cut, int cut_tiles, int chunks,
    int chunk_blocks, int sorted, int trusting, int processors, cudaStream_t stream) {
    const AttentionTensors tensors{query, key, value, num_tokens, num_keys};
    const AttentionCall call{cu_seqlens_q, cu_seqlens_k, nullptr, static_cast<__nv_bfloat16*>(output), counters,
                             partials, num_seqs, 0, heads, heads, head_dim, 1, first_cut, cut_tiles, chunks,
                             chunk_blocks, section_heads, sm_scale * LOG2_E, trusting};
    const auto launch = [&](auto kernel) {
        return int(launch_long_attention<typename decltype(kernel)::Shape>(tensors, call, sorted, processors, stream));
    };
    switch (rounded_head_dim(head_dim)) { DERBY_HEAD_DIMS(split, launch, false, false) }  // CAUSAL, PAGED
    return cudaErrorInvalidValue;
}
