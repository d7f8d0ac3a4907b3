// The kernels before and behind the GEMMs: the pairs (token, expert) of a routing sorted by expert, and each token's rows
// summed.
// Constraints: sm_90a; at most 256 experts, ids int32 within their range; tokens times top_k fits an int; a cluster of
// up to 16 CTAs, for which the host sets the attribute of larger clusters.
#pragma once
#include "experts_common.cuh"

namespace derby {

// Four values from i on, a multiple of 4; behind the end each is `none`.
template <class Value>
__device__ __forceinline__ void load_four(Value (&to)[4], const Value* from, int i, int end, Value none) {
    if (i + 4 <= end) {
        const int4 four = __ldg(reinterpret_cast<const int4*>(from + i));
        const int bits[4] = {four.x, four.y, four.z, four.w};
        memcpy(to, bits, sizeof to);
    } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) to[j] = i + j < end ? __ldg(from + i + j) : none;
    }
}

constexpr int ROUTE_THREADS = 1024, ROUTE_BLOCKS = 16;

// One cluster of ROUTE_BLOCKS blocks: starts [experts + 1] and sorted [pairs], within an expert in any order; row_of
// [pairs], where there is one: the row that a pair has got.
__global__ void __launch_bounds__(ROUTE_THREADS, 1)
derby_experts_route(const int* __restrict__ topk_ids, const float* __restrict__ topk_weights, int* __restrict__ starts,
                    int2* __restrict__ sorted, int* __restrict__ row_of, int pairs, int experts, int top_k) {
    __shared__ int counts[ROUTE_BLOCKS][MOST_EXPERTS], cursor[MOST_EXPERTS], warp_sums[MOST_EXPERTS / 32];
    let_next_kernel_start();
    const int thread = threadIdx.x, block = blockIdx.x;
    if (thread < MOST_EXPERTS) counts[block][thread] = 0;
    __syncthreads();
    // Four pairs a thread at a time; their addresses are multiples of 16 bytes.
    const int share = (pairs + 4 * ROUTE_BLOCKS - 1) / (4 * ROUTE_BLOCKS) * 4, begin = block * share;
    const int end = smaller(begin + share, pairs);
#pragma unroll 4
    for (int i = begin + 4 * thread; i < end; i += 4 * ROUTE_THREADS) {
        int expert[4];
        load_four(expert, topk_ids, i, end, -1);
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (unsigned(expert[j]) < unsigned(experts)) atomicAdd(&counts[block][expert[j]], 1);
    }
    __syncthreads();
    cluster_sync();  // all have started
    for (int i = thread; i < ROUTE_BLOCKS * MOST_EXPERTS; i += ROUTE_THREADS) {
        const int other = i / MOST_EXPERTS, e = i % MOST_EXPERTS;
        if (other != block) {
            const uint32_t there = cluster_address(shared_address(&counts[block][e]), other);
            store_cluster(there, counts[block][e]);
        }
    }
    cluster_sync();
    int before = 0, total = 0, rows = 0;
    if (thread < MOST_EXPERTS) {
        for (int b = 0; b < ROUTE_BLOCKS; ++b) {
            before += b < block ? counts[b][thread] : 0;
            total += counts[b][thread];
        }
        rows = sum_up_to(total, thread % 32);
        if (thread % 32 == 31) warp_sums[thread / 32] = rows;
    }
    __syncthreads();
    if (thread < MOST_EXPERTS) {
        for (int w = 0; w < thread / 32; ++w) rows += warp_sums[w];
        cursor[thread] = rows - total + before;
        if (block == 0 && thread < experts) starts[thread + 1] = rows;
        if (block == 0 && thread == 0) starts[0] = 0;
    }
    __syncthreads();
#pragma unroll 4
    for (int i = begin + 4 * thread; i < end; i += 4 * ROUTE_THREADS) {
        int expert[4], row[4];
        float weight[4];
        load_four(expert, topk_ids, i, end, -1);
        load_four(weight, topk_weights, i, end, 0.0f);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            row[j] = -1;
            if (unsigned(expert[j]) < unsigned(experts)) {
                row[j] = atomicAdd(&cursor[expert[j]], 1);
                sorted[row[j]] = make_int2((i + j) / top_k, __float_as_int(weight[j]));
            }
        }
        if (row_of && i + 4 <= end)
            *reinterpret_cast<int4*>(row_of + i) = make_int4(row[0], row[1], row[2], row[3]);
        else if (row_of)
            for (int j = 0; i + j < end; ++j) row_of[i + j] = row[j];
    }
}

constexpr int SUM_THREADS = 256;

// out [tokens, hidden] = the sum of each token's rows of results [pairs, hidden], in the order of its experts: the same
// bits each time. A thread has 8 columns of a token at a time.
template <class Out>
__global__ void __launch_bounds__(SUM_THREADS)
derby_experts_sum(const __nv_bfloat16* __restrict__ results, const int* __restrict__ row_of, Out* __restrict__ out,
                  int tokens, int hidden, int top_k) {
    wait_for_previous_kernel();
    const int width = hidden / 8;
    const long long work = (long long)tokens * width;
    for (long long i = (long long)blockIdx.x * SUM_THREADS + threadIdx.x; i < work; i += (long long)gridDim.x * SUM_THREADS) {
        const int token = int(i / width), column = int(i - (long long)token * width);
        float sum[8] = {};
        for (int first = 0; first < top_k; first += 8) {
            int rows[8];
            uint4 v[8];
#pragma unroll
            for (int k = 0; k < 8; ++k) rows[k] = first + k < top_k ? load_now(row_of + token * top_k + first + k) : -1;
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                const int row = rows[k];
                v[k] = row >= 0 ? load_once(reinterpret_cast<const uint4*>(results) + size_t(row) * width + column)
                                : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                const uint32_t four[4] = {v[k].x, v[k].y, v[k].z, v[k].w};
#pragma unroll
                for (int j = 0; j < 4; ++j) {  // a bf16 is the upper half of a float
                    sum[2 * j] += __uint_as_float(four[j] << 16);
                    sum[2 * j + 1] += __uint_as_float(four[j] & 0xFFFF0000u);
                }
            }
        }
        if constexpr (sizeof(Out) == 4) {
            float4* to = reinterpret_cast<float4*>(out) + 2 * i;
            __stcs(to, make_float4(sum[0], sum[1], sum[2], sum[3]));
            __stcs(to + 1, make_float4(sum[4], sum[5], sum[6], sum[7]));
        } else {
            __stcs(reinterpret_cast<uint4*>(out) + i, make_uint4(pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]),
                                                                 pack_bf16(sum[4], sum[5]), pack_bf16(sum[6], sum[7])));
        }
    }
}

}  // namespace derby
