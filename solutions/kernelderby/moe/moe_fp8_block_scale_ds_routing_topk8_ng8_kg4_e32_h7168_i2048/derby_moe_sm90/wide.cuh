// Products and ends of tiles for many pairs an expert: 64 pairs are wgmma's M and a block of 128 weight rows its N, so
// that a thread has two rows to scale instead of up to 32 columns. Warpgroup w multiplies pairs 64 w .. 64 w + 63;
// d[4j..] of a thread: pairs 16 (t / 32) + t % 32 / 4 (+ 8 for the last two), weight rows 8j + 2 (t % 4) + {0, 1}.
#pragma once
#include "common.cuh"

namespace derby {

// While products are computed, the warpgroup waits for the next k block and reads its scales.
template <bool FIRST, int ROWS, int STAGES, int CLUSTER>
__device__ __forceinline__ void accumulate_wide(Shared<ROWS, STAGES, CLUSTER>& shared, Stage& stage, int k_blocks,
                                                float (&first)[64], float (&second)[64]) {
    const int lane = threadIdx.x % 32, group = threadIdx.x / 128, row = threadIdx.x / 32 * 16 + lane / 4;
    float upper, lower, one[64];
    float2 w;
    auto next_is_there = [&] {
        const int s = stage.index;
        mbarrier_wait(shared_address(&shared.full[s]), stage.parity);
        if (FIRST) fence_async_proxy();  // the gathered rows came by cp.async, see narrow.cuh
        upper = shared.x_scale[s][row], lower = shared.x_scale[s][row + 8];
        w = *reinterpret_cast<const float2*>(shared.w_scale[s]);
    };
    next_is_there();
    auto add_block = [&](bool more) {
        const int s = stage.index;
        const uint32_t x = descriptor_low(shared_address(shared.x[s]) + group * 64 * BLOCK);
        const uint32_t weights = descriptor_low(shared_address(shared.weights[s]));
        const float upper_first = upper * w.x, lower_first = lower * w.x;
        const float upper_second = upper * w.y, lower_second = lower * w.y;
        wgmma_fence();
        wgmma_k_block<128>(one, x, weights);
        wgmma_wait_group<0>();
#pragma unroll
        for (int i = 0; i < 64; ++i) first[i] += one[i] * (i % 4 < 2 ? upper_first : lower_first);
        wgmma_fence();
        wgmma_k_block<128>(one, x, weights + (BLOCK * BLOCK >> 4));
        stage.next<STAGES>();
        if (more) next_is_there();
        wgmma_wait_group<0>();
        release(shared, s, lane);
#pragma unroll
        for (int i = 0; i < 64; ++i) second[i] += one[i] * (i % 4 < 2 ? upper_second : lower_second);
    };
    add_block(1 < k_blocks);  // outside the loop, where most multiply-adds then share a scale with the one before
    for (int k = 1; k < k_blocks; ++k) add_block(k + 1 < k_blocks);
}

// SwiGLU and quantisation of the wide form. A row's 128 values lie in four neighbouring threads.
template <int ROWS, int STAGES, int CLUSTER>
__device__ __forceinline__ void finish_first_wide(Shared<ROWS, STAGES, CLUSTER>& shared, const Arguments& arguments,
                                                  const Tile& place, float (&up)[64], const float (&gate)[64]) {
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
        const float scale = most * (1.0f / FP8_MOST), inverse = __fdividef(FP8_MOST, most);
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

// Adds the tile, times the routing weights, to the output rows of its tokens: a warp lays 16 rows of 64 columns in
// shared memory and adds 4 rows of 128 bytes at a time. With 256 bulk reductions, one a row and block, a tile was
// slower.
template <int ROWS, int STAGES, int CLUSTER>
__device__ __forceinline__ void finish_second_wide(Shared<ROWS, STAGES, CLUSTER>& shared, const Arguments& arguments,
                                                   const Tile& place, const float (&first)[64],
                                                   const float (&second)[64]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t staging = shared_address(shared.staging.act + warp * 16 * ACT_PITCH);
    const uint32_t to = staging + (lane % 16) * ACT_PITCH + lane / 16 * 16;  // of the row a lane names for storing
    const uint32_t from = staging + lane / 8 * ACT_PITCH + lane % 8 * 16;
    cp_async_wait_all();
    named_barrier_sync(NamedBarrier::WARPGROUP_DONE + warp / 4, CONSUMERS / 2);  // this warpgroup's pairs are there
    float weight[2];
    uint4* out[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) weight[half] = __int_as_float(shared.pair[warp * 16 + 8 * half + lane / 4].y);
#pragma unroll
    for (int i = 0; i < 4; ++i)
        out[i] = reinterpret_cast<uint4*>(arguments.out) + place.block_n * 32 + lane % 8 +
                 uint32_t(shared.pair[warp * 16 + 4 * i + lane / 8].x) / TOP_K * (HIDDEN / 8);
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) {
        const float(&value)[64] = chunk < 2 ? first : second;
        __syncwarp();
#pragma unroll
        for (int j = chunk % 2 * 8; j < chunk % 2 * 8 + 8; j += 2) {
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = 4 * j + 2 * i;
                const __nv_bfloat162 both =
                    __floats2bfloat162_rn(value[at] * weight[i % 2], value[at + 1] * weight[i % 2]);
                v[i] = *reinterpret_cast<const uint32_t*>(&both);
            }
            stmatrix_x4(to + j % 8 * 16, v[0], v[1], v[2], v[3]);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint4 v = load_shared16(from + 4 * i * ACT_PITCH);
            if (warp * 16 + 4 * i + lane / 8 < place.rows)
                reduce_add_bf16x8(out[i] + chunk * 8, v.x, v.y, v.z, v.w);
        }
    }
    named_barrier_sync(NamedBarrier::WARPGROUP_DONE + warp / 4, CONSUMERS / 2);  // before the next tile's pairs come
}

}  // namespace derby
