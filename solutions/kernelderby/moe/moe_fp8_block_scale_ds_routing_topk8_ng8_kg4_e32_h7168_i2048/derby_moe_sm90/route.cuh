// Routing: each warp takes a token and puts it into the buckets of its experts. Of 256 experts in 8 groups of 32, the
// best 4 groups are chosen, and in these the best 8 experts.
// Constraints: sm_90a; 256 experts in 8 groups, 32 of them local from local_expert_offset on, top_k 8 of 4 groups;
// logits float32, bias bf16. Source: DeepSeek-V3, arXiv:2412.19437, 2.1.2.
#pragma once
#include <cuda_bf16.h>
#include "experts_schedule.cuh"
#include "ptx.cuh"

namespace derby {

constexpr int LOCAL_EXPERTS = 32;
constexpr int EXPERTS = 256, GROUPS = 8, GROUP_SIZE = EXPERTS / GROUPS, TOP_GROUPS = 4, TOP_K = 8;
constexpr int ROUTE_WARPS = 8;
static_assert(EXPERTS == 8 * 32, "a lane looks at 8 experts");
static_assert(GROUP_SIZE == 4 * 8, "a group is four lanes");
static_assert(TOP_GROUPS * GROUP_SIZE == 4 * 32, "the experts of the chosen groups: four a lane");
static_assert(TOP_K <= 32, "a chosen expert a lane");
static_assert(LOCAL_EXPERTS == 32, "a local expert a lane, and a bit of 32");

// Floats as unsigned integers of the same order.
__device__ __forceinline__ uint32_t ordered(float value) {
    const uint32_t bits = __float_as_uint(value);
    return bits ^ ((bits >> 31) ? 0xFFFFFFFFu : 0x80000000u);
}

// 1 / (1 + exp(-x)) without a branch, rounded as the division rounds it; x below -87 counts as -87.
__device__ __forceinline__ float sigmoid(float x) {
    const float d = 1.0f + fminf(expf(-x), 0x1p126f);
    const float r = reciprocal_approx(d);
    return fmaf(fmaf(-d, r, 1.0f), r, r);
}

// Largest first.
__device__ __forceinline__ void sort(uint64_t (&v)[4]) {
    constexpr int PAIRS[5][2] = {{0, 1}, {2, 3}, {0, 2}, {1, 3}, {1, 2}};
#pragma unroll
    for (int i = 0; i < 5; ++i) {
        const uint64_t a = v[PAIRS[i][0]], b = v[PAIRS[i][1]];
        v[PAIRS[i][0]] = a > b ? a : b;
        v[PAIRS[i][1]] = a > b ? b : a;
    }
}

// What a warp keeps of its token's 256 experts.
struct Scores {
    alignas(16) float affinity[EXPERTS];
    alignas(16) uint32_t selection[EXPERTS];  // affinity plus bias, as ordered integers
};

// The token's chosen expert of rank `lane` for lanes 0..7 and its weight before normalisation; the lower index wins a
// tie. expert is -1 in all lanes where no chosen group has an expert of first_local..first_local + LOCAL_EXPERTS - 1.
__device__ __forceinline__ void choose_experts(const float* logits, const __nv_bfloat16* bias, Scores& scores, int lane,
                                               int first_local, int& expert, float& affinity_of_expert) {
    expert = -1;
    affinity_of_expert = 0.0f;
    // Lane l looks at experts 8l..8l+7.
    float affinity[8], selection[8];
    const float4* logits4 = reinterpret_cast<const float4*>(logits) + lane * 2;
    const uint4 biases = reinterpret_cast<const uint4*>(bias)[lane];
    const uint32_t bias_pairs[4] = {biases.x, biases.y, biases.z, biases.w};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float4 x = logits4[half];
        affinity[4 * half] = sigmoid(x.x), affinity[4 * half + 1] = sigmoid(x.y);
        affinity[4 * half + 2] = sigmoid(x.z), affinity[4 * half + 3] = sigmoid(x.w);
    }
    float best = -INFINITY, second = -INFINITY;
#pragma unroll
    for (int i = 0; i < 8; ++i) {  // a bf16 is the upper half of a float
        const uint32_t pair = bias_pairs[i / 2];
        selection[i] = affinity[i] + __uint_as_float(i % 2 ? pair & 0xFFFF0000u : pair << 16);
        second = fmaxf(second, fminf(best, selection[i]));
        best = fmaxf(best, selection[i]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int i = 4 * half;
        reinterpret_cast<float4*>(scores.affinity)[lane * 2 + half] =
            make_float4(affinity[i], affinity[i + 1], affinity[i + 2], affinity[i + 3]);
        reinterpret_cast<uint4*>(scores.selection)[lane * 2 + half] =
            make_uint4(ordered(selection[i]), ordered(selection[i + 1]), ordered(selection[i + 2]),
                       ordered(selection[i + 3]));
    }
#pragma unroll
    for (int step = 1; step <= 2; step *= 2) {  // a group is four lanes
        const float other_best = __shfl_xor_sync(~0u, best, step), other_second = __shfl_xor_sync(~0u, second, step);
        second = fmaxf(fminf(best, other_best), fmaxf(second, other_second));
        best = fmaxf(best, other_best);
    }
    const float score = best + second;
    const int group = lane / 4;
    int ahead = 0;
#pragma unroll
    for (int other = 0; other < GROUPS; ++other) {
        const float theirs = __shfl_sync(~0u, score, other * 4);
        ahead += theirs > score || (theirs == score && other < group);
    }
    const bool is_chosen = ahead < TOP_GROUPS;
    const int in_group = first_local - group * GROUP_SIZE;
    if (!__any_sync(~0u, is_chosen && in_group < GROUP_SIZE && in_group > -LOCAL_EXPERTS)) return;

    // The 128 experts of the chosen groups, four a lane, in order. A key holds the value by which experts are chosen,
    // and below it the place in the lane, so that no two keys of a lane are equal. Each lane's largest come first.
    uint32_t groups = __ballot_sync(~0u, is_chosen) & 0x11111111u;
#pragma unroll
    for (int i = 0; i < TOP_GROUPS - 1; ++i)
        if (lane / 8 > i) groups &= groups - 1;
    const int begin = (__ffs(groups) - 1) / 4 * GROUP_SIZE + lane % 8 * 4;
    __syncwarp();
    const uint4 chosen_by = *reinterpret_cast<const uint4*>(&scores.selection[begin]);
    uint64_t key[4] = {uint64_t(chosen_by.x) << 32 | 3, uint64_t(chosen_by.y) << 32 | 2,
                       uint64_t(chosen_by.z) << 32 | 1, uint64_t(chosen_by.w) << 32};
    sort(key);
#pragma unroll 1
    for (int rank = 0; rank < TOP_K; ++rank) {
        const uint32_t mine = key[0] >> 32, top = __reduce_max_sync(~0u, mine);
        const int owner = __ffs(__ballot_sync(~0u, mine == top)) - 1;
        const int chosen = __shfl_sync(~0u, begin + 3 - int(uint32_t(key[0])), owner);
        if (lane == rank) expert = chosen;
#pragma unroll
        for (int i = 0; i < 3; ++i) key[i] = lane == owner ? key[i + 1] : key[i];
        if (lane == owner) key[3] = 0;
    }
    if (expert >= 0) affinity_of_expert = scores.affinity[expert];
}

// The local expert that the token chose as its `lane`-th, or -1, and its routing weight.
__device__ __forceinline__ int route_token(const float* logits, const __nv_bfloat16* bias, Scores& scores, int token,
                                           int lane, int first_local, float scaling_factor, float& weight) {
    int expert;
    float affinity;
    choose_experts(logits + size_t(token) * EXPERTS, bias, scores, lane, first_local, expert, affinity);
    float sum = affinity;
#pragma unroll
    for (int step = 1; step < TOP_K; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    weight = affinity / sum * scaling_factor;
    const int local = expert - first_local;
    return expert >= 0 && local >= 0 && local < LOCAL_EXPERTS ? local : -1;
}

// bucket[local expert][slot] = (token, bits of the routing weight); count[local expert] = pairs of it.
// A block counts in shared memory first, so that one atomic a block and expert goes to device memory.
__global__ void __launch_bounds__(ROUTE_WARPS * 32)
derby_route(const float* __restrict__ logits, const __nv_bfloat16* __restrict__ bias, int2* __restrict__ bucket,
            int* __restrict__ count, int seq_len, int first_local, float scaling_factor) {
    __shared__ int block_count[LOCAL_EXPERTS], block_base[LOCAL_EXPERTS];
    __shared__ Scores scores[ROUTE_WARPS];
    let_next_kernel_start();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x < LOCAL_EXPERTS) block_count[threadIdx.x] = 0;
    __syncthreads();
    const int token = blockIdx.x * ROUTE_WARPS + warp;
    int local = -1, slot = 0;
    float weight = 0.0f;
    if (token < seq_len) {
        local = route_token(logits, bias, scores[warp], token, lane, first_local, scaling_factor, weight);
        if (local >= 0) slot = atomicAdd(&block_count[local], 1);
    }
    __syncthreads();
    if (threadIdx.x < LOCAL_EXPERTS) {
        const int mine = block_count[threadIdx.x];
        block_base[threadIdx.x] = mine ? atomicAdd(&count[threadIdx.x], mine) : 0;
    }
    __syncthreads();
    if (local >= 0)
        bucket[size_t(local) * seq_len + block_base[local] + slot] =
            make_int2(token, __float_as_int(weight));
}

// With few tokens every CTA of the first GEMM does the routing for itself, one token a warp at a time, so no kernel has
// to run before it. A token's pairs have different experts, so one bit for each token and expert is enough.
constexpr int MOST_ROUTED = 16;
static_assert(MOST_ROUTED <= 32, "tokens_of() has a bit for each");

struct Routed {
    uint32_t experts[MOST_ROUTED];     // of a token: the local experts that it chose
    int8_t local[MOST_ROUTED][TOP_K];  // or -1
    float weight[MOST_ROUTED][TOP_K];
};

// Warps 0..warps-1, all lanes.
__device__ __forceinline__ void route_tokens(const float* logits, const __nv_bfloat16* bias, Scores& scores,
                                             Routed& routed, int seq_len, int first_local, float scaling_factor,
                                             int warp, int warps, int lane) {
    for (int token = warp; token < MOST_ROUTED; token += warps) {
        float weight = 0.0f;
        int local = -1;
        if (token < seq_len)
            local = route_token(logits, bias, scores, token, lane, first_local, scaling_factor, weight);
        const uint32_t experts = __reduce_or_sync(~0u, local >= 0 ? 1u << local : 0u);
        if (lane == 0) routed.experts[token] = experts;
        if (lane < TOP_K) {
            routed.local[token][lane] = int8_t(local);
            routed.weight[token][lane] = weight;
        }
        __syncwarp();  // before the next token's scores
    }
}

// Bit t: whether token t chose the expert.
__device__ __forceinline__ uint32_t tokens_of(const Routed& routed, int expert) {
    uint32_t tokens = 0;
#pragma unroll
    for (int t = 0; t < MOST_ROUTED; ++t) tokens |= (routed.experts[t] >> expert & 1u) << t;
    return tokens;
}

// The token of an expert's pair `slot`.
__device__ __forceinline__ int token_at(const Routed& routed, int expert, int slot) {
    uint32_t tokens = tokens_of(routed, expert);
    for (; slot > 0; --slot) tokens &= tokens - 1;
    return __ffs(tokens) - 1;
}

// Writes what derby_route would leave, with one warp of one CTA.
__device__ __forceinline__ void publish(const Routed& routed, int2* bucket, int* count, int seq_len, int lane) {
    count[lane] = __popc(tokens_of(routed, lane));
    for (int i = lane; i < seq_len * TOP_K; i += 32) {
        const int token = i / TOP_K, local = routed.local[token][i % TOP_K];
        if (local >= 0)
            bucket[size_t(local) * seq_len + __popc(tokens_of(routed, local) & ((1u << token) - 1))] =
                make_int2(token, __float_as_int(routed.weight[token][i % TOP_K]));
    }
}

}  // namespace derby
