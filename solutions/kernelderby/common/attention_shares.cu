// unified_attention for ragged batches: the kernels of long_attention.cuh, cut on the device (attention_shares.cuh).
#include "attention_launch.cuh"

using namespace derby;

// Shapes as in the definition; at most 256 sequences. The plan, as attention_sharing.py makes it: split: which of the
// head size's two kernels; pack, trusting: as in AttentionCall; overhead, again, least: as in SharesCall. counters:
// int32 [2], zeros, and left as zeros. partials: float32 [2 processors, owners, 128 (D / 2 + 4)], where owners are the
// warpgroups with rows of their own, and 12 more for each processor. processors: multiprocessors of the GPU, at most 256.
extern "C" int derby_attention_in_shares_run(
    const void* query, const void* key_cache, const void* value_cache, const int* cu_seqlens_q, const int* seq_lens,
    const int* block_table, void* output, int* counters, float* partials, long long num_tokens, long long num_blocks,
    int num_seqs, int table_width, int heads, int kv_heads, int head_dim, float sm_scale, int split, int pack,
    int overhead, int again, int least, int trusting, int processors, cudaStream_t stream) {
    if (num_seqs > MOST_SHARED_SEQUENCES || processors > MOST_SHARES) return cudaErrorInvalidValue;
    const AttentionTensors tensors{query, key_cache, value_cache, num_tokens, num_blocks};
    AttentionCall call{cu_seqlens_q, seq_lens, block_table, static_cast<__nv_bfloat16*>(output), counters, partials,
                       num_seqs, table_width, heads, kv_heads, head_dim, pack, 0, 0, 1, 1, 1, sm_scale * LOG2_E,
                       trusting};
    call.items = processors;  // none are given out
    const SharesCall shared{call, overhead, again, least, processors};
    const auto start = [&](auto kernel) {
        using S = InShares<typename decltype(kernel)::Shape>;
        return int(launch_long_attention<S>(tensors, shared, false, processors, stream));
    };
    switch (rounded_head_dim(head_dim)) { DERBY_HEAD_DIMS_IN_SHARES(split, start, true, true) }  // CAUSAL, PAGED
    return cudaErrorInvalidValue;
}
