// The gated delta rule token by token: for decode, and for sequences of a few tokens.
//
// A block has 32 columns of one head's state in registers, 16 values a thread. With S the state before a token, the
// new one is exp(g) S + k c, c = beta (v - exp(g) k S), and the output is exp(g) q S + (q k) c: both sums over the keys
// are of the old state, so a token takes one pass over it and one reduction.
// Constraints: key_dim and value_dim 128; q, k, v and the states at addresses that 16 divides.
#pragma once
#include "delta_rule_gates.cuh"

namespace derby {

constexpr int RECURRENT_THREADS = 256, RECURRENT_COLUMNS = 32, RECURRENT_TOKENS = 16;

struct RecurrentShared {
    float4 q[RECURRENT_TOKENS][DELTA_DIM / 4], k[RECURRENT_TOKENS][DELTA_DIM / 4];  // of length one; q scaled
    float v[RECURRENT_TOKENS][RECURRENT_COLUMNS];
    float q_k[RECURRENT_TOKENS], decay[RECURRENT_TOKENS], beta[RECURRENT_TOKENS];
    float2 sums[2][RECURRENT_THREADS / 32][RECURRENT_COLUMNS];  // k S and q S over a warp's keys
};

__device__ __forceinline__ float4 widened(uint2 words) {
    return make_float4(__uint_as_float(words.x << 16), __uint_as_float(words.x & 0xffff0000u),
                       __uint_as_float(words.y << 16), __uint_as_float(words.y & 0xffff0000u));
}
__device__ __forceinline__ float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }

// Sum over the lanes that differ in the bits of `from` to `to`, halving.
template <int FROM, int TO>
__device__ __forceinline__ float sum_lanes(float x) {
#pragma unroll
    for (int apart = FROM; apart >= TO; apart /= 2) x += __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
}

// What a lane brings of a token: four values of q and k, one of v.
struct RecurrentToken {
    uint2 q, k;
    __nv_bfloat16 v, a, b;
};
__device__ __forceinline__ RecurrentToken fetch_token(const DeltaRule& problem, int head, int column0, size_t token) {
    const int lane = threadIdx.x % 32;
    const size_t row = (token * problem.q_heads + head / (problem.v_heads / problem.q_heads)) * DELTA_DIM;
    const size_t at = token * problem.v_heads + head;
    return {reinterpret_cast<const uint2*>(problem.q + row)[lane], reinterpret_cast<const uint2*>(problem.k + row)[lane],
            problem.v[at * DELTA_DIM + column0 + lane], problem.a[at], problem.b[at]};
}

// Its queries and keys of length one, and its gates, into shared memory as token t. By a warp.
__device__ __forceinline__ void place_token(RecurrentShared& shared, const RecurrentToken& token, int t, float rate,
                                            float bias) {
    const int lane = threadIdx.x % 32;
    float4 q = widened(token.q), k = widened(token.k);
    const float of_q = DELTA_SCALE * rsqrtf(sum_lanes<16, 1>(dot(q, q)) + DELTA_EPS);
    const float of_k = rsqrtf(sum_lanes<16, 1>(dot(k, k)) + DELTA_EPS);
    const float q_k = of_q * of_k * sum_lanes<16, 1>(dot(q, k));
    shared.q[t][lane] = make_float4(q.x * of_q, q.y * of_q, q.z * of_q, q.w * of_q);
    shared.k[t][lane] = make_float4(k.x * of_k, k.y * of_k, k.z * of_k, k.w * of_k);
    shared.v[t][lane] = __bfloat162float(token.v);
    if (lane == 0) {
        shared.q_k[t] = q_k;
        shared.decay[t] = __expf(log_decay(rate, bias, token.a));
        shared.beta[t] = sigmoid(__bfloat162float(token.b));
    }
}

// KEY_MAJOR: a state lies [key_dim, value_dim]; else [value_dim, key_dim]. Blocks: sequence, head, columns; those beyond
// the sequences copy a state each, where the pools differ. longest: longer sequences are another kernel's.
template <bool KEY_MAJOR>
__global__ void __launch_bounds__(RECURRENT_THREADS) derby_delta_rule_recurrent(const DeltaRule problem, int longest) {
    auto& shared = dynamic_shared<RecurrentShared>();
    constexpr int SLICES = DELTA_DIM / RECURRENT_COLUMNS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int part = blockIdx.x % (SLICES * problem.v_heads), sequence = blockIdx.x / (SLICES * problem.v_heads);
    const int head = part / SLICES, column0 = part % SLICES * RECURRENT_COLUMNS;
    if (sequence >= problem.sequences) {
        copy_unused<RECURRENT_THREADS>(problem, sequence - problem.sequences, part);
        return;
    }
    // All loads that no other depends on are on their way before the state's, which wait for its slot.
    const int slot = problem.slots[sequence];
    const int2 bounds = problem.bounds(sequence);
    if (bounds.y - bounds.x > longest) return;
    const float rate = problem.A_log[head], bias = __bfloat162float(problem.dt_bias[head]);
    RecurrentToken token = {};
    if (bounds.x + warp < bounds.y) token = fetch_token(problem, head, column0, bounds.x + warp);
    const size_t place = (size_t(slot) * problem.v_heads + head) * DELTA_DIM * DELTA_DIM;
    // This thread's 4 groups of 4 values. Key-major: keys group() to group() + 96 by 32, columns 4 (lane % 8). Else column
    // group(), keys 4 (lane % 8) and on by 32.
    const int group = warp * 4 + lane / 8, four = lane % 8 * 4;
    const size_t mine = place + (KEY_MAJOR ? group * DELTA_DIM + column0 + four : (column0 + group) * DELTA_DIM + four);
    constexpr int APART = KEY_MAJOR ? 32 * DELTA_DIM : 32, WARPS = RECURRENT_THREADS / 32;
    float4 state[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) state[i] = __ldcs(reinterpret_cast<const float4*>(problem.initial + mine + i * APART));
    int turn = 0;
    for (int first = bounds.x; first < bounds.y; first += RECURRENT_TOKENS) {
        const int count = min(RECURRENT_TOKENS, bounds.y - first);
        if (first > bounds.x) {
            __syncthreads();
            if (warp < count) token = fetch_token(problem, head, column0, first + warp);
        }
        if (warp < count) place_token(shared, token, warp, rate, bias);
        for (int t = warp + WARPS; t < count; t += WARPS)
            place_token(shared, fetch_token(problem, head, column0, first + t), t, rate, bias);
        __syncthreads();
        for (int t = 0; t < count; ++t, turn ^= 1) {
            const float decay = shared.decay[t], beta = shared.beta[t], q_k = shared.q_k[t];
            const size_t values = ((size_t(first) + t) * problem.v_heads + head) * DELTA_DIM + column0;
            if constexpr (KEY_MAJOR) {
                const float* q = reinterpret_cast<const float*>(shared.q[t]);
                const float* k = reinterpret_cast<const float*>(shared.k[t]);
                float of_k[4], k_s[4] = {}, q_s[4] = {};
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    of_k[i] = k[group + 32 * i];
                    const float of_q = q[group + 32 * i];
                    const float row[4] = {state[i].x, state[i].y, state[i].z, state[i].w};
#pragma unroll
                    for (int c = 0; c < 4; ++c) {
                        k_s[c] = fmaf(of_k[i], row[c], k_s[c]);
                        q_s[c] = fmaf(of_q, row[c], q_s[c]);
                    }
                }
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    k_s[c] = sum_lanes<16, 8>(k_s[c]), q_s[c] = sum_lanes<16, 8>(q_s[c]);
                    if (lane < 8) shared.sums[turn][warp][four + c] = make_float2(k_s[c], q_s[c]);
                }
                __syncthreads();
                const float* of_v = &shared.v[t][four];
                float correction[4], output[4];
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
                    for (int w = 0; w < RECURRENT_THREADS / 32; ++w) {
                        const float2 part = shared.sums[turn][w][four + c];
                        sum.x += part.x, sum.y += part.y;
                    }
                    correction[c] = beta * (of_v[c] - decay * sum.x);
                    output[c] = decay * sum.y + q_k * correction[c];
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    state[i] = make_float4(fmaf(of_k[i], correction[0], decay * state[i].x),
                                           fmaf(of_k[i], correction[1], decay * state[i].y),
                                           fmaf(of_k[i], correction[2], decay * state[i].z),
                                           fmaf(of_k[i], correction[3], decay * state[i].w));
                }
                if (group == 0) {
                    *reinterpret_cast<uint2*>(problem.output + values + four) =
                        make_uint2(pack_bf16(output[0], output[1]), pack_bf16(output[2], output[3]));
                }
            } else {
                const float v = shared.v[t][group];
                float4 k[4];
                float k_s = 0.0f, q_s = 0.0f;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    k[i] = shared.k[t][lane % 8 + 8 * i];
                    k_s += dot(k[i], state[i]), q_s += dot(shared.q[t][lane % 8 + 8 * i], state[i]);
                }
                k_s = sum_lanes<4, 1>(k_s), q_s = sum_lanes<4, 1>(q_s);
                const float correction = beta * (v - decay * k_s);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    state[i] = make_float4(
                        fmaf(k[i].x, correction, decay * state[i].x), fmaf(k[i].y, correction, decay * state[i].y),
                        fmaf(k[i].z, correction, decay * state[i].z), fmaf(k[i].w, correction, decay * state[i].w));
                }
                if (lane % 8 == 0) problem.output[values + group] = __float2bfloat16(decay * q_s + q_k * correction);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) __stcs(reinterpret_cast<float4*>(problem.final + mine + i * APART), state[i]);
}

// One launch. longest: see above; copies are left out where the pools are one, and where another kernel makes them.
template <bool KEY_MAJOR>
cudaError_t launch_recurrent(const DeltaRule& problem, int longest, bool copies, cudaStream_t stream) {
    const int all = problem.sequences + (copies && problem.initial != problem.final ? problem.states : 0);
    if (all == 0 || problem.v_heads == 0) return cudaSuccess;
    return launch(derby_delta_rule_recurrent<KEY_MAJOR>,
                  {all * problem.v_heads * (DELTA_DIM / RECURRENT_COLUMNS), RECURRENT_THREADS, sizeof(RecurrentShared)},
                  stream, problem, longest);
}

}  // namespace derby
