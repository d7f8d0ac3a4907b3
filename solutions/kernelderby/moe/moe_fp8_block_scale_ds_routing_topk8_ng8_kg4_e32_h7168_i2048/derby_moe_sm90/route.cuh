// Routing: a warp a token, experts in buckets. 256 experts in 8 groups of 32, the best 4 groups, the best 8 experts.
#pragma once
#include <cuda_bf16.h>
#include "hopper.cuh"
#include "schedule.cuh"

namespace derby {

constexpr int EXPERTS = 256, GROUPS = 8, TOP_GROUPS = 4, TOP_K = 8;
constexpr int ROUTE_WARPS = 8;

// Floats as unsigned integers of the same order.
__device__ __forceinline__ uint32_t ordered(float value) {
    const uint32_t bits = __float_as_uint(value);
    return bits ^ ((bits >> 31) ? 0xFFFFFFFFu : 0x80000000u);
}

// Lane l of a warp looks at experts 8l..8l+7. Returns the token's chosen expert of rank `lane` for lanes 0..7 and its
// weight before normalisation; the lower index wins a tie.
__device__ __forceinline__ void choose_experts(const float* logits, const __nv_bfloat16* bias, int lane, int& expert,
                                               float& affinity_of_expert) {
    float affinity[8], selection[8];
    const float4* logits4 = reinterpret_cast<const float4*>(logits) + lane * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float4 x = logits4[half];
        affinity[4 * half] = x.x, affinity[4 * half + 1] = x.y;
        affinity[4 * half + 2] = x.z, affinity[4 * half + 3] = x.w;
    }
    float best = -INFINITY, second = -INFINITY;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        affinity[i] = 1.0f / (1.0f + expf(-affinity[i]));
        selection[i] = affinity[i] + __bfloat162float(bias[lane * 8 + i]);
        second = fmaxf(second, fminf(best, selection[i]));
        best = fmaxf(best, selection[i]);
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
    uint32_t key[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) key[i] = ahead < TOP_GROUPS ? ordered(selection[i]) : 0u;
    expert = -1;
    affinity_of_expert = 0.0f;
#pragma unroll 1
    for (int rank = 0; rank < TOP_K; ++rank) {
        uint32_t mine = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) mine = max(mine, key[i]);
        const uint32_t top = __reduce_max_sync(~0u, mine);
        const int owner = __ffs(__ballot_sync(~0u, mine == top)) - 1;
        int at = 0;
        float value = 0.0f;
        if (lane == owner) {
            bool found = false;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                if (!found && key[i] == top) {
                    found = true;
                    at = i;
                    value = affinity[i];
                    key[i] = 0;
                }
            }
        }
        at = __shfl_sync(~0u, at, owner);
        value = __shfl_sync(~0u, value, owner);
        if (lane == rank) {
            expert = owner * 8 + at;
            affinity_of_expert = value;
        }
    }
}

// bucket[local expert][slot] = (8 token + rank, bits of the routing weight); count[local expert] = pairs of it.
// A block counts in shared memory first, so that one atomic a block and expert goes to device memory.
__global__ void __launch_bounds__(ROUTE_WARPS * 32)
derby_route(const float* __restrict__ logits, const __nv_bfloat16* __restrict__ bias, int2* __restrict__ bucket,
            int* __restrict__ count, int seq_len, int first_local, float scaling_factor) {
    __shared__ int block_count[LOCAL_EXPERTS], block_base[LOCAL_EXPERTS];
    let_next_kernel_start();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x < LOCAL_EXPERTS) block_count[threadIdx.x] = 0;
    __syncthreads();
    const int token = blockIdx.x * ROUTE_WARPS + warp;
    int local = -1, slot = 0;
    float weight = 0.0f;
    if (token < seq_len) {
        int expert;
        float affinity;
        choose_experts(logits + size_t(token) * EXPERTS, bias, lane, expert, affinity);
        float sum = affinity;
#pragma unroll
        for (int step = 1; step < TOP_K; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
        weight = affinity / sum * scaling_factor;
        const int at = expert - first_local;
        if (lane < TOP_K && at >= 0 && at < LOCAL_EXPERTS) {
            local = at;
            slot = atomicAdd(&block_count[at], 1);
        }
    }
    __syncthreads();
    if (threadIdx.x < LOCAL_EXPERTS) {
        const int mine = block_count[threadIdx.x];
        block_base[threadIdx.x] = mine ? atomicAdd(&count[threadIdx.x], mine) : 0;
    }
    __syncthreads();
    if (local >= 0)
        bucket[size_t(local) * seq_len + block_base[local] + slot] =
            make_int2(token * TOP_K + lane, __float_as_int(weight));
}

}  // namespace derby
