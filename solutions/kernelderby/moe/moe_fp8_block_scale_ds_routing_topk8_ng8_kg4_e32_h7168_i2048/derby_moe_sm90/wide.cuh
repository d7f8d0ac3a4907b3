// Products and ends of tiles for many pairs an expert: 64 pairs are the M of the tensor core and a block of 128 weight
// rows its N, so that a thread has two rows to scale instead of up to 32 columns. Warpgroup w multiplies pairs 64 w ..
// 64 w + 63; d[4j..] of a thread: pairs 16 (t / 32) + t % 32 / 4 (+ 8 for the last two), weight rows 8j + 2 (t % 4) +
// {0, 1}.
#pragma once
#include "common.cuh"

namespace derby {

// x * sigmoid(x) = h + h tanh(h) with h = x / 2: one special function.
__device__ __forceinline__ float silu(float x) {
    const float h = 0.5f * x;
    float t;
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(h));
    return fmaf(h, t, h);
}

template <bool FIRST, int ROWS, int STAGES, int CLUSTER>
__device__ __forceinline__ void accumulate_wide(Shared<ROWS, STAGES, CLUSTER>& shared, Stage& stage, int k_blocks,
                                                float (&first)[64], float (&second)[64]) {
    const int lane = threadIdx.x % 32, group = threadIdx.x / 128, row = threadIdx.x / 32 * 16 + lane / 4;
    for (int k = 0; k < k_blocks; ++k) {
        const int s = stage.index;
        const uint32_t weights = shared_address(shared.weights[s]);
        const uint32_t x = shared_address(shared.x[s]) + group * 64 * BLOCK;
        barrier_wait(shared_address(&shared.full[s]), stage.parity);
        if (FIRST) fence_async_proxy();  // the gathered rows came by cp.async, see narrow.cuh
        const float upper = shared.x_scale[s][row], lower = shared.x_scale[s][row + 8];
        const float w_first = shared.w_scale[s][0], w_second = shared.w_scale[s][1];
        float one[64];
        product_fence();
        multiply<128>(one, x, weights);
        const float upper_first = upper * w_first, lower_first = lower * w_first;
        product_wait<0>();
#pragma unroll
        for (int i = 0; i < 64; ++i) first[i] += one[i] * (i % 4 < 2 ? upper_first : lower_first);
        product_fence();
        multiply<128>(one, x, weights + BLOCK * BLOCK);
        const float upper_second = upper * w_second, lower_second = lower * w_second;
        product_wait<0>();
        release(shared, s, lane);
#pragma unroll
        for (int i = 0; i < 64; ++i) second[i] += one[i] * (i % 4 < 2 ? upper_second : lower_second);
        stage.next<STAGES>();
    }
}

// SwiGLU and quantisation of the wide form. A row's 128 values lie in four neighbouring threads.
template <int ROWS, int STAGES, int CLUSTER>
__device__ __forceinline__ void finish_first_wide(Shared<ROWS, STAGES, CLUSTER>& shared, const Arguments& arguments,
                                                  const Place& place, float (&up)[64], const float (&gate)[64]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint8_t* staging = shared.staging.act + warp * 16 * ACT_PITCH;
#pragma unroll
    for (int i = 0; i < 64; ++i) up[i] *= silu(gate[i]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = lane / 4 + 8 * half;
        float most = 1e-10f;
#pragma unroll
        for (int j = 0; j < 16; ++j)
            most = fmaxf(most, fmaxf(fabsf(up[4 * j + 2 * half]), fabsf(up[4 * j + 2 * half + 1])));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        const float scale = most / 448.0f, inverse = 1.0f / scale;
        if (lane % 4 == 0 && warp * 16 + row < place.rows)
            arguments.act_scale[size_t(place.first_row + warp * 16 + row) * (INTERMEDIATE / BLOCK) + place.block_n] =
                scale;
#pragma unroll
        for (int j = 0; j < 16; ++j)
            *reinterpret_cast<__nv_fp8x2_storage_t*>(staging + row * ACT_PITCH + 8 * j + 2 * (lane % 4)) =
                __nv_cvt_float2_to_fp8x2(
                    make_float2(up[4 * j + 2 * half] * inverse, up[4 * j + 2 * half + 1] * inverse), __NV_SATFINITE,
                    __NV_E4M3);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = 4 * i + lane / 8, chunk = lane % 8;
        if (warp * 16 + row < place.rows) {
            const int4 value = *reinterpret_cast<const int4*>(staging + row * ACT_PITCH + chunk * 16);
            uint8_t* act =
                arguments.act + size_t(place.first_row + warp * 16 + row) * INTERMEDIATE + place.block_n * BLOCK;
            *reinterpret_cast<int4*>(act + chunk * 16) = value;
        }
    }
    __syncwarp();
}

// A quad's threads hold 2 columns each of four groups of 8; afterwards each holds the 8 columns of one group.
__device__ __forceinline__ void turn_quad(uint32_t (&v)[4], int lane) {
    const bool odd = lane & 1, high = lane & 2;
    uint32_t a = odd ? v[0] : v[1], b = odd ? v[2] : v[3];
    a = __shfl_xor_sync(~0u, a, 1), b = __shfl_xor_sync(~0u, b, 1);
    if (odd) v[0] = a, v[2] = b;
    else v[1] = a, v[3] = b;
    a = high ? v[0] : v[2], b = high ? v[1] : v[3];
    a = __shfl_xor_sync(~0u, a, 2), b = __shfl_xor_sync(~0u, b, 2);
    if (high) v[0] = a, v[1] = b;
    else v[2] = a, v[3] = b;
}

// Adds the tile, times the routing weights, to the output rows of its tokens, 64 bytes of a row at a time from a quad.
// 256 bulk reductions from shared memory, one a row and block, made a tile slower.
template <int ROWS, int STAGES, int CLUSTER>
__device__ __forceinline__ void finish_second_wide(Shared<ROWS, STAGES, CLUSTER>& shared, const Arguments& arguments,
                                                   const Place& place, const float (&first)[64],
                                                   const float (&second)[64]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    copies_wait();
    named_barrier(6 + warp / 4, CONSUMERS / 2);  // this warpgroup's pairs are there
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = warp * 16 + 8 * half + lane / 4;
        const bool there = row < place.rows;
        const float weight = there ? __int_as_float(shared.pair[row].y) : 0.0f;
        __nv_bfloat16* out = arguments.out + size_t(there ? shared.pair[row].x / 8 : 0) * HIDDEN +
                             place.block_n * 256 + 8 * (lane % 4);
#pragma unroll
        for (int block = 0; block < 2; ++block) {
#pragma unroll
            for (int j = 0; j < 16; j += 4) {
                uint32_t v[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int at = 4 * (j + i) + 2 * half;
                    const float left = block ? second[at] : first[at], right = block ? second[at + 1] : first[at + 1];
                    const __nv_bfloat162 both = __floats2bfloat162_rn(left * weight, right * weight);
                    v[i] = *reinterpret_cast<const uint32_t*>(&both);
                }
                turn_quad(v, lane);
                if (there) add_bf16x8(out + block * BLOCK + 8 * j, v[0], v[1], v[2], v[3]);
            }
        }
    }
    named_barrier(6 + warp / 4, CONSUMERS / 2);  // before the next tile's pairs come
}

}  // namespace derby
