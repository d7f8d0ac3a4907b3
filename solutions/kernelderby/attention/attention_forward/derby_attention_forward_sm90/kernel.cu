// attention_forward: full attention over packed sequences, for sm_90a.
#include "long_attention.cuh"

using namespace derby;

namespace {

template <int D, int KEYS, int GROUPS, int STAGES, bool SPLIT>
using Packed = AttentionShape<D, KEYS, GROUPS, STAGES, SPLIT, false, false>;

}  // namespace

// Shapes as in the definition. counters: int32 [2], zeros, and left as zeros. processors: multiprocessors of the GPU.
extern "C" int derby_attention_forward_sm90_run(
    const void* query, const void* key, const void* value, const int* cu_seqlens_q, const int* cu_seqlens_k,
    void* output, int* counters, long long num_tokens, long long num_keys, int num_seqs, int heads, int head_dim,
    int max_seqlen, float sm_scale, int processors, cudaStream_t stream) {
    const AttentionTensors tensors{query, key, value, num_tokens, num_keys};
    AttentionCall call{};
    call.cu_seqlens_q = cu_seqlens_q;
    call.key_lengths = cu_seqlens_k;
    call.output = static_cast<__nv_bfloat16*>(output);
    call.counters = counters;
    call.num_seqs = num_seqs;
    call.heads = heads;
    call.kv_heads = heads;
    call.head_dim = head_dim;
    call.scale_log2 = sm_scale * LOG2_E;
    const Launch launch{tensors, call, max_seqlen, max_seqlen, processors, stream};
    switch (rounded_head_dim(head_dim)) {
        case 64: return launch.best<Packed<64, 128, 3, 2, false>, Packed<64, 64, 2, 4, true>>();
        case 72: return launch.best<Packed<72, 128, 3, 2, false>, Packed<72, 64, 2, 4, true>>();
        case 80: return launch.best<Packed<80, 112, 3, 2, false>, Packed<80, 64, 2, 4, true>>();
        case 96: return launch.best<Packed<96, 112, 3, 2, false>, Packed<96, 64, 2, 4, true>>();
        case 128: return launch.best<Packed<128, 176, 2, 2, false>, Packed<128, 64, 2, 4, true>>();
        case 192: return launch.best<Packed<192, 112, 2, 2, false>, Packed<192, 64, 2, 2, true>>();
        case 256: return launch.best<Packed<256, 80, 2, 2, false>, Packed<256, 48, 2, 2, true>>();
    }
    return cudaErrorInvalidValue;
}
