// unified_attention: causal attention over a cache in pages of 16 tokens, for sm_90a.
#include "long_attention.cuh"

using namespace derby;

namespace {

template <int D, int KEYS, int GROUPS, int STAGES, bool SPLIT>
using Paged = AttentionShape<D, KEYS, GROUPS, STAGES, SPLIT, true, true>;

}  // namespace

// Shapes as in the definition. counters: int32 [2], zeros, and left as zeros. processors: multiprocessors of the GPU.
extern "C" int derby_unified_attention_sm90_run(
    const void* query, const void* key_cache, const void* value_cache, const int* cu_seqlens_q, const int* seq_lens,
    const int* block_table, void* output, int* counters, long long num_tokens, long long num_blocks, int num_seqs,
    int table_width, int heads, int kv_heads, int head_dim, int max_query_len, int max_seq_len, float sm_scale,
    int processors, cudaStream_t stream) {
    const AttentionTensors tensors{query, key_cache, value_cache, num_tokens, num_blocks};
    AttentionCall call{};
    call.cu_seqlens_q = cu_seqlens_q;
    call.key_lengths = seq_lens;
    call.block_table = block_table;
    call.output = static_cast<__nv_bfloat16*>(output);
    call.counters = counters;
    call.num_seqs = num_seqs;
    call.table_width = table_width;
    call.heads = heads;
    call.kv_heads = kv_heads;
    call.head_dim = head_dim;
    call.scale_log2 = sm_scale * LOG2_E;
    const Launch launch{tensors, call, max_query_len, max_seq_len, processors, stream};
    switch (rounded_head_dim(head_dim)) {
        case 64: return launch.best<Paged<64, 128, 3, 2, false>, Paged<64, 64, 2, 4, true>>();
        case 72: return launch.best<Paged<72, 128, 3, 2, false>, Paged<72, 64, 2, 4, true>>();
        case 80: return launch.best<Paged<80, 112, 3, 2, false>, Paged<80, 64, 2, 4, true>>();
        case 96: return launch.best<Paged<96, 112, 3, 2, false>, Paged<96, 64, 2, 4, true>>();
        case 128: return launch.best<Paged<128, 128, 2, 2, false>, Paged<128, 64, 2, 4, true>>();
        case 192: return launch.best<Paged<192, 112, 2, 2, false>, Paged<192, 64, 2, 2, true>>();
        case 256: return launch.best<Paged<256, 80, 2, 2, false>, Paged<256, 48, 2, 2, true>>();
    }
    return cudaErrorInvalidValue;
}
