// Products and ends of tiles for few pairs an expert, with the operands swapped: out^T = W x^T, so that 64 weight rows
// are wgmma's M and the pairs, 8 or more of them, its N. An expert with three pairs then wastes little. The first half
// of a tile's sums belongs to weight block 0, the second to weight block 1.
#pragma once
#include "experts_common.cuh"

namespace derby {

// The sums of k_blocks k blocks. A stage is released as soon as its products are finished: the memory bandwidth that an
// SM gets depends on the bytes it has in flight. GATHERED: the pairs were copied by cp.async, whose results the tensor
// core does not see without a fence.
template <class C, bool GATHERED, int N>
__device__ __forceinline__ void accumulate_scaled(Shared<C>& shared, Stage& stage, int k_blocks, float (&sums)[N]) {
    using Kind = typename C::Kind;
    const int lane = threadIdx.x % 32, group = threadIdx.x / 128;
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i] = 0.0f;
    for (int k = 0; k < k_blocks; ++k) {
        const int s = stage.index;
        const uint32_t weights = descriptor_low(shared_address(shared.weights[s]) + group * 64 * BLOCK);
        const uint32_t x = descriptor_low(shared_address(shared.x[s]));
        mbarrier_wait(shared_address(&shared.full[s]), stage.parity);
        if (GATHERED) fence_async_proxy();
        float2 w_scale;
        if constexpr (N <= 64) {
            float one[N / 2], two[N / 2];
            wgmma_fence();
            wgmma_k_block<Kind, N>(one, weights, x, false);
            wgmma_commit_group();
            wgmma_k_block<Kind, N>(two, weights + (BLOCK * BLOCK >> 4), x, false);
            wgmma_commit_group();
            float2 x_scale[N / 8];
#pragma unroll
            for (int j = 0; j < N / 8; ++j)
                x_scale[j] = *reinterpret_cast<const float2*>(&shared.x_scale[s][8 * j + 2 * (lane % 4)]);
            w_scale = *reinterpret_cast<const float2*>(shared.w_scale[s]);
            wgmma_wait_group<1>();
            promote<N>(sums, one, x_scale, w_scale.x);
            wgmma_wait_group<0>();
            release(shared, s, lane);
            stage.next<C::STAGES>();
            promote<N>(sums + N / 2, two, x_scale, w_scale.y);
        } else {  // registers for one product at a time; the other warpgroup multiplies in between
            float one[N / 2];
            w_scale = *reinterpret_cast<const float2*>(shared.w_scale[s]);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                wgmma_fence();
                wgmma_k_block<Kind, N>(one, weights + half * (BLOCK * BLOCK >> 4), x, false);
                wgmma_commit_group();
                wgmma_wait_group<0>();
#pragma unroll
                for (int j = 0; j < N / 8; ++j) {
                    const float2 x_scale = *reinterpret_cast<const float2*>(&shared.x_scale[s][8 * j + 2 * (lane % 4)]);
                    const float w = half ? w_scale.y : w_scale.x, left = x_scale.x * w, right = x_scale.y * w;
                    float* sum = sums + half * (N / 2) + 4 * j;
                    sum[0] += one[4 * j] * left, sum[1] += one[4 * j + 1] * right;
                    sum[2] += one[4 * j + 2] * left, sum[3] += one[4 * j + 3] * right;
                }
            }
            release(shared, s, lane);
            stage.next<C::STAGES>();
        }
    }
}

// The same without scales: the tensor core adds up, and a k block's products are started before those of the one before
// are finished.
template <class C, bool GATHERED, int N>
__device__ __forceinline__ void accumulate_plain(Shared<C>& shared, Stage& stage, int k_blocks, float (&sums)[N]) {
    using Kind = typename C::Kind;
    const int lane = threadIdx.x % 32, group = threadIdx.x / 128;
    // Set to zero although the first product need not add: otherwise the registers would stay live from tile to tile.
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i] = 0.0f;
    int last = 0;
    for (int k = 0; k < k_blocks; ++k) {
        const int s = stage.index;
        const uint32_t weights = descriptor_low(shared_address(shared.weights[s]) + group * 64 * BLOCK);
        const uint32_t x = descriptor_low(shared_address(shared.x[s]));
        mbarrier_wait(shared_address(&shared.full[s]), stage.parity);
        if (GATHERED) fence_async_proxy();
        wgmma_fence();
        wgmma_k_block<Kind, N>(sums, weights, x, true);
        wgmma_k_block<Kind, N>(sums + N / 2, weights + (BLOCK * BLOCK >> 4), x, true);
        wgmma_commit_group();
        wgmma_wait_group<1>();
        if (k > 0) release(shared, last, lane);
        last = s;
        stage.next<C::STAGES>();
    }
    wgmma_wait_group<0>();
    release(shared, last, lane);
}

// SwiGLU and quantisation: the first half of the sums is gate, the second up, transposed. Writes act and act_scale.
template <class C, int N>
__device__ __forceinline__ void finish_first_scaled(Shared<C>& shared, const typename C::Arguments& arguments,
                                                    const Place& place, float (&sums)[N]) {
    static_assert(N <= CONSUMERS, "a thread a column's scale");
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    float(&act)[N] = sums;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) act[i] = silu(sums[i]) * sums[N / 2 + i];
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
        float left = fmaxf(fabsf(act[4 * j]), fabsf(act[4 * j + 2]));
        float right = fmaxf(fabsf(act[4 * j + 1]), fabsf(act[4 * j + 3]));
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
            arguments.act_scale[size_t(place.first_row + thread) * (arguments.intermediate / BLOCK) + place.block_n] =
                most * (1.0f / FP8_MOST);
    }
    named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);
    uint8_t* to = shared.staging.act + (2 * (lane % 4)) * C::ACT_PITCH + warp * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
        const float2 scale = *reinterpret_cast<const float2*>(&shared.column_scale[8 * j + 2 * (lane % 4)]);
        const auto upper = __nv_cvt_float2_to_fp8x2(make_float2(act[4 * j] * scale.x, act[4 * j + 1] * scale.y),
                                                    __NV_SATFINITE, __NV_E4M3);
        const auto lower = __nv_cvt_float2_to_fp8x2(make_float2(act[4 * j + 2] * scale.x, act[4 * j + 3] * scale.y),
                                                    __NV_SATFINITE, __NV_E4M3);
        uint8_t* at = to + 8 * j * C::ACT_PITCH;
        at[0] = upper & 0xFF, at[C::ACT_PITCH] = upper >> 8;
        at[8] = lower & 0xFF, at[C::ACT_PITCH + 8] = lower >> 8;
    }
    named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);
    for (int i = thread; i < place.rows * 8; i += CONSUMERS) {
        const int row = i / 8, chunk = i % 8;
        const int4 value = *reinterpret_cast<const int4*>(shared.staging.act + row * C::ACT_PITCH + chunk * 16);
        uint8_t* act_row = arguments.act + size_t(place.first_row + row) * arguments.intermediate + place.block_n * BLOCK;
        *reinterpret_cast<int4*>(act_row + chunk * 16) = value;
    }
}

// SwiGLU, rounded to bfloat16 and turned in shared memory, chunk by chunk.
template <class C, int N>
__device__ __forceinline__ void finish_first_plain(Shared<C>& shared, const typename C::Arguments& arguments,
                                                   const Place& place, float (&sums)[N]) {
    const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    constexpr int CHUNK = N < C::ACT_CHUNK ? N : C::ACT_CHUNK;
    const int columns = smaller(arguments.intermediate - place.block_n * BLOCK, BLOCK);  // a multiple of 8
    // Of the pair and 8 rows of weights that a lane names for stmatrix.
    const uint32_t to = shared_address(shared.staging.act) + lane % 8 * C::ACT_PITCH + warp * 32 + lane / 8 % 2 * 16;
    __nv_bfloat16* act = reinterpret_cast<__nv_bfloat16*>(arguments.act);
#pragma unroll
    for (int chunk = 0; chunk < N; chunk += CHUNK) {
        if (chunk >= place.rows) break;
#pragma unroll
        for (int j = chunk / 8; j < (chunk + CHUNK) / 8; ++j)
            if (j < N / 8) {
                uint32_t v[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int at = 4 * j + 2 * i;
                    v[i] = pack_bf16(silu(sums[at]) * sums[N / 2 + at], silu(sums[at + 1]) * sums[N / 2 + at + 1]);
                }
                stmatrix_x2_transposed(to + (8 * j - chunk) * C::ACT_PITCH, v[0], v[1]);
            }
        named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);
        for (int i = thread; i < smaller(place.rows - chunk, CHUNK) * 16; i += CONSUMERS) {
            const int row = i / 16, column = i % 16 * 8;
            if (column < columns) {
                const int4 value = *reinterpret_cast<const int4*>(shared.staging.act + row * C::ACT_PITCH + column * 2);
                *reinterpret_cast<int4*>(act + size_t(place.first_row + chunk + row) * arguments.intermediate +
                                         place.block_n * BLOCK + column) = value;
            }
        }
        named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);
    }
}

// The tile times the routing weights, a row of 256 values at a time, added to the output rows of its tokens in bfloat16
// by bulk reductions.
template <class C, int N>
__device__ __forceinline__ void finish_second_scaled(Shared<C>& shared, const typename C::Arguments& arguments,
                                                     const Place& place, const float (&sums)[N]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr int CHUNK = N < C::OUT_CHUNK ? N : C::OUT_CHUNK, PITCH = C::OUT_PITCH;
    static_assert(N % CHUNK == 0 && CHUNK <= 32 && CHUNK % 8 == 0, "whole chunks, a lane a row");
    const int columns = smaller(arguments.hidden - place.block_n * 2 * BLOCK, 2 * BLOCK);
    cp_async_wait_all();
    // Of the pair and 8 rows of weights that a lane names for stmatrix.
    const uint32_t to = shared_address(shared.staging.out) + lane % 8 * PITCH + lane / 16 * 256 + warp * 32 +
                        lane / 8 % 2 * 16;
#pragma unroll
    for (int chunk = 0; chunk < N; chunk += CHUNK) {
        if (chunk >= place.rows) break;
        if (lane < CHUNK / 8) bulk_wait_group_read();
        named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);
#pragma unroll
        for (int j = chunk / 8; j < (chunk + CHUNK) / 8; ++j) {
            const int pair = 8 * j + 2 * (lane % 4);
            const float left = __int_as_float(shared.pair[0][pair].y), right = __int_as_float(shared.pair[0][pair + 1].y);
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = i / 2 * (N / 2) + 4 * j + i % 2 * 2;
                v[i] = pack_bf16(sums[at] * left, sums[at + 1] * right);
            }
            stmatrix_x4_transposed(to + (8 * j - chunk) * PITCH, v[0], v[1], v[2], v[3]);
        }
        fence_async_proxy();
        named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);
        const int row = lane * 8 + warp;  // all warps take part, since issuing takes long
        if (lane < CHUNK / 8 && chunk + row < place.rows) {
            __nv_bfloat16* out = static_cast<__nv_bfloat16*>(arguments.out) +
                                 size_t(shared.pair[0][chunk + row].x) * arguments.hidden + place.block_n * 2 * BLOCK;
            bulk_reduce_add_bf16(out, shared_address(shared.staging.out + row * PITCH), columns * 2);
            bulk_commit_group();
        }
    }
    named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);
}

// The tile times the routing weights, added to the output rows of its tokens, or, STORES, rounded to bfloat16 and stored
// by pair. What is added is float32, or bfloat16 where the output is. A warp transposes 16 pairs of its 16 weight rows
// of each block at a time, and waits for no other warp.
template <class C, bool STORES, int N>
__device__ __forceinline__ void finish_second_plain(Shared<C>& shared, const typename C::Arguments& arguments,
                                                    const Place& place, const float (&sums)[N]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr bool PACKED = STORES || C::ADDS_BF16;
    constexpr int PITCH = PACKED ? 80 : C::WARP_PITCH, CHUNK = N < C::WARP_ROWS ? N : C::WARP_ROWS;
    constexpr int WIDTH = PACKED ? 8 : 4;  // values a lane
    constexpr int LANES = 16 / WIDTH, AT_ONCE = 32 / (2 * LANES);  // lanes a pair and block, pairs at once
    static_assert(PACKED || 2 * PITCH / 4 % 32 == 8, "pairs two apart are 8 banks apart");
    static_assert(N % CHUNK == 0, "whole chunks");
    uint8_t* staging = shared.staging.out + warp * C::WARP_ROWS * C::WARP_PITCH;
    const int block = lane / LANES % 2, first = lane / (2 * LANES);
    const int column = place.block_n * 2 * BLOCK + block * BLOCK + warp * 16 + lane % LANES * WIDTH;
    const bool inside = column < arguments.hidden;
    cp_async_wait_all();
    named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);  // the pairs are there
#pragma unroll
    for (int chunk = 0; chunk < N; chunk += CHUNK) {
        if (chunk >= place.rows) break;
        __syncwarp();
#pragma unroll
        for (int j = chunk / 8; j < (chunk + CHUNK) / 8; ++j) {
            const int pair = 8 * j + 2 * (lane % 4);
            const float left = __int_as_float(shared.pair[0][pair].y), right = __int_as_float(shared.pair[0][pair + 1].y);
            if constexpr (PACKED) {  // stmatrix turns 8 x 8 values
                uint32_t v[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int at = i / 2 * (N / 2) + 4 * j + i % 2 * 2;
                    v[i] = pack_bf16(sums[at] * left, sums[at + 1] * right);
                }
                stmatrix_x4_transposed(shared_address(staging) + (8 * j - chunk + lane % 8) * PITCH + lane / 8 * 16,
                                       v[0], v[1], v[2], v[3]);
            } else {  // 8 lanes lie beside each other, four pairs in different banks
                float* to = reinterpret_cast<float*>(staging + (pair - chunk) * PITCH) + lane / 4;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int at = i / 2 * (N / 2) + 4 * j + i % 2 * 2;
                    to[i * 8] = sums[at] * left;
                    to[i * 8 + PITCH / 4] = sums[at + 1] * right;
                }
            }
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < CHUNK; i += AT_ONCE) {
            const int row = i + first;
            const uint4 v = load_shared16(shared_address(staging) + row * PITCH + lane % (2 * LANES) * 16);
            if (chunk + row < place.rows && inside && (AT_ONCE <= CHUNK || row < CHUNK)) {
                const int out_row = STORES ? place.first_row + chunk + row : shared.pair[0][chunk + row].x;
                const size_t at = size_t(out_row) * arguments.hidden + column;
                if constexpr (STORES)
                    *reinterpret_cast<uint4*>(arguments.results + at) = v;
                else if constexpr (PACKED)
                    reduce_add_bf16x8(static_cast<__nv_bfloat16*>(arguments.out) + at, v);
                else
                    reduce_add_f32x4(static_cast<float*>(arguments.out) + at, v);
            }
        }
    }
    named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);  // before the next tile's pairs come
}

}  // namespace derby
