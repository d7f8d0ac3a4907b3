// derby_gated_delta_rule_varlen_sm90: the launches.
#include "delta_rule_carry.cuh"
#include "delta_rule_recurrent.cuh"

using namespace derby;

// Sequences of up to few_tokens tokens go token by token. scratch: as launch_chunked wants it, or nullptr: all do.
extern "C" int derby_gated_delta_rule_varlen_run(const __nv_bfloat16* q, const __nv_bfloat16* k, const __nv_bfloat16* v,
                                                 const __nv_bfloat16* a, const __nv_bfloat16* b,
                                                 const __nv_bfloat16* dt_bias, const float* A_log, const float* initial,
                                                 const int* slots, const int* offsets, __nv_bfloat16* output, float* final,
                                                 void* scratch, int tokens, int sequences, int q_heads, int v_heads,
                                                 int states, int few_tokens, int segment_chunks,
                                                 cudaStream_t stream) {
    const DeltaRule problem = {q,      k,     v,      a,         b,       dt_bias, A_log, initial, slots, offsets,
                               output, final, tokens, sequences, q_heads, v_heads, states};
    if (!scratch) return launch_recurrent<false>(problem, 1 << 30, true, stream);
    const cudaError_t error = launch_chunked<false>(problem, scratch, few_tokens, segment_chunks, stream);
    return error == cudaSuccess ? launch_recurrent<false>(problem, few_tokens, false, stream) : error;
}
