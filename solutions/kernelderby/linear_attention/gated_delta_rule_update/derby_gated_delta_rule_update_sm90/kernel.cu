// derby_gated_delta_rule_update_sm90: the launches.
#include "delta_rule_carry.cuh"
#include "delta_rule_recurrent.cuh"

using namespace derby;

// scratch: as launch_chunked wants it, or nullptr: token by token.
extern "C" int derby_gated_delta_rule_update_run(const __nv_bfloat16* q, const __nv_bfloat16* k, const __nv_bfloat16* v,
                                                 const __nv_bfloat16* a, const __nv_bfloat16* b,
                                                 const __nv_bfloat16* dt_bias, const float* A_log, const float* initial,
                                                 const int* slots, __nv_bfloat16* output, float* final, void* scratch,
                                                 int tokens, int q_heads, int v_heads, int states, int segment_chunks,
                                                 cudaStream_t stream) {
    const DeltaRule problem = {q, k, v, a, b, dt_bias, A_log, initial, slots, nullptr, output, final, tokens, 1, q_heads,
                               v_heads, states};
    return scratch ? launch_chunked<true>(problem, scratch, -1, segment_chunks, stream)
                   : launch_recurrent<true>(problem, 1 << 30, true, stream);
}
