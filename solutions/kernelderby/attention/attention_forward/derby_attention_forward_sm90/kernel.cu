// attention_forward: full attention over packed sequences, for sm_90a.
#include "attention_launch.cuh"

using namespace derby;

namespace {

template <int D, int KEYS, int GROUPS, int STAGES, bool SPLIT>
using Packed = AttentionShape<D, KEYS, GROUPS, STAGES, SPLIT, false, false>;

}  // namespace

// Shapes as in the definition.
// The plan, as planning.py makes it: split: which of the head size's two kernels; whole_tiles, chunks, chunk_blocks,
// section_heads: as in AttentionCall. counters: zeros, and left as zeros. processors: multiprocessors of the GPU.
extern "C" int derby_attention_forward_sm90_run(
    const void* query, const void* key, const void* value, const int* cu_seqlens_q, const int* cu_seqlens_k,
    void* output, int* counters, float* partials, long long num_tokens, long long num_keys, int num_seqs, int heads,
    int head_dim, float sm_scale, int split, int section_heads, int whole_tiles, int chunks, int chunk_blocks,
    int processors, cudaStream_t stream) {
    const AttentionTensors tensors{query, key, value, num_tokens, num_keys};
    AttentionCall call{};
    call.cu_seqlens_q = cu_seqlens_q;
    call.key_lengths = cu_seqlens_k;
    call.output = static_cast<__nv_bfloat16*>(output);
    call.counters = counters;
    call.partials = partials;
    call.num_seqs = num_seqs;
    call.heads = heads;
    call.kv_heads = heads;
    call.head_dim = head_dim;
    call.scale_log2 = sm_scale * LOG2_E;
    call.pack = 1;
    call.section_heads = section_heads;
    call.whole_tiles = whole_tiles;
    call.chunks = chunks;
    call.chunk_blocks = chunk_blocks;
    switch (rounded_head_dim(head_dim)) {
        case 64: return split ? launch_long_attention<Packed<64, 64, 2, 4, true>>(tensors, call, processors, stream)
                           : launch_long_attention<Packed<64, 128, 3, 2, false>>(tensors, call, processors, stream);
        case 72: return split ? launch_long_attention<Packed<72, 64, 2, 4, true>>(tensors, call, processors, stream)
                           : launch_long_attention<Packed<72, 128, 3, 2, false>>(tensors, call, processors, stream);
        case 80: return split ? launch_long_attention<Packed<80, 64, 2, 4, true>>(tensors, call, processors, stream)
                           : launch_long_attention<Packed<80, 112, 3, 2, false>>(tensors, call, processors, stream);
        case 96: return split ? launch_long_attention<Packed<96, 64, 2, 4, true>>(tensors, call, processors, stream)
                           : launch_long_attention<Packed<96, 96, 3, 2, false>>(tensors, call, processors, stream);
        case 128: return split ? launch_long_attention<Packed<128, 64, 2, 4, true>>(tensors, call, processors, stream)
                           : launch_long_attention<Packed<128, 128, 2, 2, false>>(tensors, call, processors, stream);
        case 192: return split ? launch_long_attention<Packed<192, 64, 2, 2, true>>(tensors, call, processors, stream)
                           : launch_long_attention<Packed<192, 112, 2, 2, false>>(tensors, call, processors, stream);
        case 256: return split ? launch_long_attention<Packed<256, 48, 2, 2, true>>(tensors, call, processors, stream)
                           : launch_long_attention<Packed<256, 80, 2, 2, false>>(tensors, call, processors, stream);
    }
    return cudaErrorInvalidValue;
}
