// The gated delta rule token by token: for decode, and for sequences of a few tokens.
//
// A warp holds 8 columns of one head's state in registers: each lane has 4 columns of 8 keys. With S the state before a
// token, the new one is exp(g) S + k c, c = beta (v - exp(g) k S), and the output is exp(g) q S + (q k) c: all sums
// over the keys use only the old state and loaded values, so a token takes a single reduction among 16 lanes, and warps
// never synchronise.
// Constraints: key_dim and value_dim 128; q, k, v and the states at addresses that 16 divides.
#pragma once
#include "delta_rule_gates.cuh"

namespace derby {

constexpr int RECURRENT_THREADS = 128, RECURRENT_COLUMNS = 32;  // of a block

// Sum over the 16 lanes that differ in bits 1 to 4: those of the same columns.
__device__ __forceinline__ float sum_of_keys(float x) {
#pragma unroll
    for (int apart = 16; apart >= 2; apart /= 2) x += __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
}

// A lane's part of a token: 8 keys of q and k, 4 columns of v, and the gates.
struct RecurrentToken {
    uint2 q[2], k[2], v;
    __nv_bfloat16 a, b;
};

// KEY_MAJOR: a state lies [key_dim, value_dim], and a lane's 8 keys begin at 8 (lane / 2). Else it lies [value_dim,
// key_dim], and a lane has the 4 keys from 4 (lane / 2) on and the 4 that lie 64 further.
template <bool KEY_MAJOR>
struct RecurrentLane {
    static constexpr int KEYS = KEY_MAJOR ? 8 : 4, APART = KEY_MAJOR ? 4 : 64;  // of the first four keys from the others
    int key, column;

    __device__ __forceinline__ explicit RecurrentLane(int column0)
        : key(threadIdx.x % 32 / 2 * KEYS), column(column0 + threadIdx.x / 32 * 8 + threadIdx.x % 2 * 4) {}

    __device__ __forceinline__ RecurrentToken fetch(const DeltaRule& problem, int head, size_t token) const {
        const size_t row = (token * problem.q_heads + head / (problem.v_heads / problem.q_heads)) * DELTA_DIM + key;
        const size_t at = token * problem.v_heads + head;
        auto four = [](const __nv_bfloat16* from) { return *reinterpret_cast<const uint2*>(from); };
        return {{four(problem.q + row), four(problem.q + row + APART)}, {four(problem.k + row), four(problem.k + row + APART)},
                four(problem.v + at * DELTA_DIM + column), problem.a[at], problem.b[at]};
    }

    // Calls move(column c, key i, place in a state) for the lane's 4 x 8 values; four in a row lie beside each other.
    template <class Move>
    __device__ __forceinline__ void for_vectors(Move move) const {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if constexpr (KEY_MAJOR) move(i, (key + i) * DELTA_DIM + column);  // key i of all columns
            else move(i, (column + i / 2) * DELTA_DIM + key + i % 2 * APART);  // four keys of column i / 2
        }
    }
};

// Values of four bf16.
__device__ __forceinline__ void widen(float* to, uint2 words) {
    to[0] = low_half(words.x), to[1] = high_half(words.x), to[2] = low_half(words.y), to[3] = high_half(words.y);
}

// One token: the lane's part of the state (column c, key i at 8 c + i) from before it to after it. Returns 4 outputs.
__device__ __forceinline__ uint2 step_state(float (&state)[32], const RecurrentToken& token, float rate, float bias) {
    float q[8], k[8], v[4], k_s[4] = {}, q_s[4] = {}, q_q = 0.0f, k_k = 0.0f, q_k = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) widen(q + 4 * i, token.q[i]), widen(k + 4 * i, token.k[i]);
    widen(v, token.v);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        q_q = fmaf(q[i], q[i], q_q), k_k = fmaf(k[i], k[i], k_k), q_k = fmaf(q[i], k[i], q_k);
#pragma unroll
        for (int c = 0; c < 4; ++c) {
            k_s[c] = fmaf(k[i], state[8 * c + i], k_s[c]);
            q_s[c] = fmaf(q[i], state[8 * c + i], q_s[c]);
        }
    }
    const float of_q = DELTA_SCALE * rsqrtf(sum_of_keys(q_q) + DELTA_EPS), of_k = rsqrtf(sum_of_keys(k_k) + DELTA_EPS);
    const float decay = __expf(log_decay(rate, bias, token.a)), beta = sigmoid(__bfloat162float(token.b));
    const float of_correction = of_q * of_k * sum_of_keys(q_k);
    float correction[4], output[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        correction[c] = beta * (v[c] - decay * of_k * sum_of_keys(k_s[c]));
        output[c] = decay * of_q * sum_of_keys(q_s[c]) + of_correction * correction[c];
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
        const float added = of_k * correction[c];
#pragma unroll
        for (int i = 0; i < 8; ++i) state[8 * c + i] = fmaf(k[i], added, decay * state[8 * c + i]);
    }
    return make_uint2(pack_bf16(output[0], output[1]), pack_bf16(output[2], output[3]));
}

// Blocks: sequence, head, columns. If the pools differ, the blocks behind the last sequence copy a state each. longest:
// longer sequences are left to another kernel.
template <bool KEY_MAJOR>
__global__ void __launch_bounds__(RECURRENT_THREADS) derby_delta_rule_recurrent(const DeltaRule problem, int longest) {
    constexpr int SLICES = DELTA_DIM / RECURRENT_COLUMNS;
    const int part = blockIdx.x % (SLICES * problem.v_heads), sequence = blockIdx.x / (SLICES * problem.v_heads);
    if (sequence >= problem.sequences) {
        copy_unused<RECURRENT_THREADS>(problem, sequence - problem.sequences, part);
        return;
    }
    // All loads whose addresses are known are issued before those of the state, which wait for its slot.
    const int slot = problem.slots[sequence], head = part / SLICES;
    const int2 bounds = problem.bounds(sequence);
    if (bounds.y - bounds.x > longest) return;
    const RecurrentLane<KEY_MAJOR> lane(part % SLICES * RECURRENT_COLUMNS);
    const float rate = problem.A_log[head], bias = __bfloat162float(problem.dt_bias[head]);
    RecurrentToken token = {};
    if (bounds.x < bounds.y) token = lane.fetch(problem, head, bounds.x);
    const size_t place = (size_t(slot) * problem.v_heads + head) * DELTA_DIM * DELTA_DIM;
    float state[32];
    lane.for_vectors([&](int i, int at) {
        const float4 four = __ldcs(reinterpret_cast<const float4*>(problem.initial + place + at));
        if constexpr (KEY_MAJOR) state[i] = four.x, state[8 + i] = four.y, state[16 + i] = four.z, state[24 + i] = four.w;
        else state[4 * i] = four.x, state[4 * i + 1] = four.y, state[4 * i + 2] = four.z, state[4 * i + 3] = four.w;
    });
    for (int at = bounds.x; at < bounds.y; ++at) {
        const RecurrentToken now = token;
        if (at + 1 < bounds.y) token = lane.fetch(problem, head, at + 1);
        const uint2 output = step_state(state, now, rate, bias);
        if (threadIdx.x % 32 < 2) {
            *reinterpret_cast<uint2*>(problem.output + (size_t(at) * problem.v_heads + head) * DELTA_DIM + lane.column) =
                output;
        }
    }
    lane.for_vectors([&](int i, int at) {
        const float4 four = KEY_MAJOR ? make_float4(state[i], state[8 + i], state[16 + i], state[24 + i])
                                      : make_float4(state[4 * i], state[4 * i + 1], state[4 * i + 2], state[4 * i + 3]);
        *reinterpret_cast<float4*>(problem.final + place + at) = four;
    });
}

// One launch. longest: see above. No state is copied if both pools are the same or another kernel copies.
template <bool KEY_MAJOR>
cudaError_t launch_recurrent(const DeltaRule& problem, int longest, bool copies, cudaStream_t stream) {
    const int all = problem.sequences + (copies && problem.initial != problem.final ? problem.states : 0);
    if (all == 0 || problem.v_heads == 0) return cudaSuccess;
    return launch(derby_delta_rule_recurrent<KEY_MAJOR>,
                  {all * problem.v_heads * (DELTA_DIM / RECURRENT_COLUMNS), RECURRENT_THREADS, 0}, stream, problem, longest);
}

}  // namespace derby
