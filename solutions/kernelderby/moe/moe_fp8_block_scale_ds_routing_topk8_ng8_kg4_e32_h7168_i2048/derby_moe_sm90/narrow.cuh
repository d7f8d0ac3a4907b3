// Products and ends of tiles for few pairs an expert, with the operands swapped: out^T = W x^T, so that 64 weight rows
// are wgmma's M and the pairs, 8 to 64 of them, its N. An expert with three pairs then wastes little.
#pragma once
#include "common.cuh"

namespace derby {

// The sums of k_blocks k blocks: first of weight block 0, second of weight block 1. A stage is released as soon as its
// products are finished: the memory bandwidth that an SM gets depends on the bytes it has in flight.
template <int N, int ROWS, int STAGES, int CLUSTER>
__device__ __forceinline__ void accumulate(Shared<ROWS, STAGES, CLUSTER>& shared, Stage& stage, int k_blocks,
                                           float (&first)[N / 2], float (&second)[N / 2]) {
    const int lane = threadIdx.x % 32, group = threadIdx.x / 128;
    for (int k = 0; k < k_blocks; ++k) {
        const int s = stage.index;
        const uint32_t weights = descriptor_low(shared_address(shared.weights[s]) + group * 64 * BLOCK);
        const uint32_t x = descriptor_low(shared_address(shared.x[s]));
        mbarrier_wait(shared_address(&shared.full[s]), stage.parity);
        fence_async_proxy();  // the gathered rows came by cp.async, which the tensor core does not see otherwise
        float one[N / 2], two[N / 2];
        wgmma_fence();
        wgmma_k_block<N>(one, weights, x);
        wgmma_k_block<N>(two, weights + (BLOCK * BLOCK >> 4), x);
        float2 x_scale[N / 8];
#pragma unroll
        for (int j = 0; j < N / 8; ++j)
            x_scale[j] = *reinterpret_cast<const float2*>(&shared.x_scale[s][8 * j + 2 * (lane % 4)]);
        const float2 w_scale = *reinterpret_cast<const float2*>(shared.w_scale[s]);
        wgmma_wait_group<1>();
        promote<N>(first, one, x_scale, w_scale.x);
        wgmma_wait_group<0>();
        release(shared, s, lane);
        stage.next<STAGES>();
        promote<N>(second, two, x_scale, w_scale.y);
    }
}

// SwiGLU and quantisation: first holds up, second gate, transposed. Writes act and act_scale of the tile.
template <int N, int ROWS, int STAGES, int CLUSTER>
__device__ __forceinline__ void finish_first(Shared<ROWS, STAGES, CLUSTER>& shared, const Arguments& arguments,
                                             const Tile& place, float (&up)[N / 2], const float (&gate)[N / 2]) {
    static_assert(N <= CONSUMERS, "a thread a column's scale");
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) up[i] *= silu(gate[i]);
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
        float left = fmaxf(fabsf(up[4 * j]), fabsf(up[4 * j + 2]));
        float right = fmaxf(fabsf(up[4 * j + 1]), fabsf(up[4 * j + 3]));
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
            left = fmaxf(left, __shfl_xor_sync(~0u, left, step));
            right = fmaxf(right, __shfl_xor_sync(~0u, right, step));
        }
        if (lane < 4) *reinterpret_cast<float2*>(&shared.column_max[warp][8 * j + 2 * lane]) = make_float2(left, right);
    }
    named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);
    if (thread < N) {
        float most = 1e-10f;  // so that a block of zeros does not divide by zero
#pragma unroll
        for (int i = 0; i < 8; ++i) most = fmaxf(most, shared.column_max[i][thread]);
        shared.column_scale[thread] = __fdividef(FP8_MOST, most);
        if (thread < place.rows)
            arguments.act_scale[size_t(place.first_row + thread) * (INTERMEDIATE / BLOCK) + place.block_n] =
                most * (1.0f / FP8_MOST);
    }
    named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);
    uint8_t* to = shared.staging.act + (2 * (lane % 4)) * ACT_PITCH + warp * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
        const float2 scale = *reinterpret_cast<const float2*>(&shared.column_scale[8 * j + 2 * (lane % 4)]);
        const auto upper = __nv_cvt_float2_to_fp8x2(make_float2(up[4 * j] * scale.x, up[4 * j + 1] * scale.y),
                                                    __NV_SATFINITE, __NV_E4M3);
        const auto lower = __nv_cvt_float2_to_fp8x2(make_float2(up[4 * j + 2] * scale.x, up[4 * j + 3] * scale.y),
                                                    __NV_SATFINITE, __NV_E4M3);
        uint8_t* at = to + 8 * j * ACT_PITCH;
        at[0] = upper & 0xFF, at[ACT_PITCH] = upper >> 8;
        at[8] = lower & 0xFF, at[ACT_PITCH + 8] = lower >> 8;
    }
    named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);
    for (int i = thread; i < place.rows * 8; i += CONSUMERS) {
        const int row = i / 8, chunk = i % 8;
        const int4 value = *reinterpret_cast<const int4*>(shared.staging.act + row * ACT_PITCH + chunk * 16);
        uint8_t* act = arguments.act + size_t(place.first_row + row) * INTERMEDIATE + place.block_n * BLOCK;
        *reinterpret_cast<int4*>(act + chunk * 16) = value;
    }
}

// Adds the tile, times the routing weights, to the output rows of its tokens: 512 bytes a row, by bulk reductions.
template <int N, int ROWS, int STAGES, int CLUSTER>
__device__ __forceinline__ void finish_second(Shared<ROWS, STAGES, CLUSTER>& shared, const Arguments& arguments,
                                              const Tile& place, const float (&first)[N / 2],
                                              const float (&second)[N / 2]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr int CHUNK = N < OUT_CHUNK ? N : OUT_CHUNK;
    static_assert(N % CHUNK == 0 && CHUNK <= ROWS && CHUNK % 8 == 0, "whole chunks that fit into the staging");
    cp_async_wait_all();
    // Of the pair and 8 rows of weights that a lane names for stmatrix: rows 0..7 and 8..15 of the warp's 16 of each
    // block.
    const uint32_t to = shared_address(shared.staging.out) + lane % 8 * OUT_PITCH + lane / 16 * 256 + warp * 32 +
                        lane / 8 % 2 * 16;
#pragma unroll
    for (int chunk = 0; chunk < N; chunk += CHUNK) {
        if (chunk >= place.rows) break;
        if (lane < OUT_CHUNK / 8) bulk_wait_group_read();
        named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);
#pragma unroll
        for (int j = chunk / 8; j < (chunk + CHUNK) / 8; ++j) {
            const float left = __int_as_float(shared.pair[8 * j + 2 * (lane % 4)].y);
            const float right = __int_as_float(shared.pair[8 * j + 2 * (lane % 4) + 1].y);
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float(&value)[N / 2] = i < 2 ? first : second;
                const int at = 4 * j + i % 2 * 2;
                const __nv_bfloat162 both = __floats2bfloat162_rn(value[at] * left, value[at + 1] * right);
                v[i] = *reinterpret_cast<const uint32_t*>(&both);
            }
            stmatrix_x4_transposed(to + (8 * j - chunk) * OUT_PITCH, v[0], v[1], v[2], v[3]);
        }
        fence_async_proxy();
        named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);
        const int row = lane * 8 + warp;  // all warps take part, since issuing takes long
        if (lane < CHUNK / 8 && chunk + row < place.rows) {
            const size_t token = shared.pair[chunk + row].x / TOP_K;
            __nv_bfloat16* out = arguments.out + token * HIDDEN + place.block_n * 2 * BLOCK;
            bulk_reduce_add_bf16(out, shared_address(shared.staging.out + row * OUT_PITCH), 512);
            bulk_commit_group();
        }
    }
    named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);
}

}  // namespace derby
