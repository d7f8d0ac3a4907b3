// What the kernels of the gated delta rule get, and the gates of a token.
#pragma once
#include <cuda_bf16.h>

#include "delta_rule_tiles.cuh"

namespace derby {

constexpr int DELTA_DIM = 128;                       // key_dim and value_dim
constexpr float DELTA_SCALE = 0.08838834764831845f;  // 1 / sqrt(128), of the queries
constexpr float DELTA_EPS = 1e-6f;                   // of the length of queries and keys

// q, k [tokens, q_heads, 128], v, output [tokens, v_heads, 128], a, b [tokens, v_heads], A_log, dt_bias [v_heads],
// initial, final [slots, v_heads, 128, 128], slots [sequences], offsets [sequences + 1] or nullptr: one sequence of all
// tokens. final may be initial.
struct DeltaRule {
    const __nv_bfloat16 *q, *k, *v, *a, *b, *dt_bias;
    const float *A_log, *initial;
    const int *slots, *offsets;
    __nv_bfloat16* output;
    float* final;
    int tokens, sequences, q_heads, v_heads, states;

    // First token of a sequence, and the one after its last.
    __device__ __forceinline__ int2 bounds(int sequence) const {
        return offsets ? make_int2(offsets[sequence], offsets[sequence + 1]) : make_int2(0, tokens);
    }
};

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }

// Log of the share of the state that a token keeps: -exp(A_log) softplus(a + dt_bias), softplus(x) being x above 20. At
// least -128: in float32 exp(-128) is already 0, and sums of minus infinity would have no differences.
__device__ __forceinline__ float log_decay(float A_log, float dt_bias, __nv_bfloat16 a) {
    const float x = __bfloat162float(a) + dt_bias, log = -__expf(A_log) * (x > 20.0f ? x : log1pf(__expf(x)));
    return log < -128.0f ? -128.0f : log;
}

// Copies a quarter of a head's state (`part`: counted over all heads) from the initial to the final pool, unless a
// sequence has that slot. By a block of THREADS.
template <int THREADS>
__device__ __forceinline__ void copy_unused(const DeltaRule& problem, int slot, int part) {
    bool used = false;
    for (int n = threadIdx.x; n < problem.sequences; n += THREADS) used |= problem.slots[n] == slot;
    const size_t first = (size_t(slot) * problem.v_heads * 4 + part) * (DELTA_DIM * DELTA_DIM / 16) + threadIdx.x;
    constexpr int EACH = DELTA_DIM * DELTA_DIM / 16 / THREADS;
    static_assert(EACH * THREADS * 16 == DELTA_DIM * DELTA_DIM, "a quarter of a state is shared out evenly");
    float4 values[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) values[i] = __ldcs(reinterpret_cast<const float4*>(problem.initial) + first + i * THREADS);
    if (__syncthreads_or(used)) return;
#pragma unroll
    for (int i = 0; i < EACH; ++i) __stcs(reinterpret_cast<float4*>(problem.final) + first + i * THREADS, values[i]);
}

}  // namespace derby
