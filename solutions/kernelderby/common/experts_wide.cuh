// Products and ends of tiles for many pairs an expert: 64 pairs are wgmma's M and the weight rows its N. Warpgroup w
// multiplies pairs 64 w .. 64 w + 63; of a thread's sums, 64 for each block of 128 weight rows, [4j..] are of pairs
// 16 (t / 32) + t % 32 / 4 (+ 8 for the last two) and weight rows 8j + 2 (t % 4) + {0, 1}.
#pragma once
#include <type_traits>
#include "experts_common.cuh"

namespace derby {

// The next k block is waited for and its scales are read while products are made.
template <class C, bool GATHERED>
__device__ __forceinline__ void accumulate_wide_scaled(Shared<C>& shared, Stage& stage, int k_blocks,
                                                       float (&sums)[128]) {
    using Kind = typename C::Kind;
    const int lane = threadIdx.x % 32, group = threadIdx.x / 128, row = threadIdx.x / 32 * 16 + lane / 4;
    float upper, lower, one[64];
    float2 w;
#pragma unroll
    for (int i = 0; i < 128; ++i) sums[i] = 0.0f;
    auto next_is_there = [&] {
        const int s = stage.index;
        mbarrier_wait(shared_address(&shared.full[s]), stage.parity);
        if (GATHERED) fence_async_proxy();
        upper = shared.x_scale[s][row], lower = shared.x_scale[s][row + 8];
        w = *reinterpret_cast<const float2*>(shared.w_scale[s]);
    };
    next_is_there();
    for (int k = 0; k < k_blocks; ++k) {
        const int s = stage.index;
        const uint32_t x = descriptor_low(shared_address(shared.x[s]) + group * 64 * BLOCK);
        const uint32_t weights = descriptor_low(shared_address(shared.weights[s]));
        const float upper_first = upper * w.x, lower_first = lower * w.x;
        const float upper_second = upper * w.y, lower_second = lower * w.y;
        wgmma_fence();
        wgmma_k_block<Kind, 128>(one, x, weights, false);
        wgmma_commit_group();
        wgmma_wait_group<0>();
#pragma unroll
        for (int i = 0; i < 64; ++i) sums[i] += one[i] * (i % 4 < 2 ? upper_first : lower_first);
        wgmma_fence();
        wgmma_k_block<Kind, 128>(one, x, weights + (BLOCK * BLOCK >> 4), false);
        wgmma_commit_group();
        stage.next<C::STAGES>();
        if (k + 1 < k_blocks) next_is_there();
        wgmma_wait_group<0>();
        release(shared, s, lane);
#pragma unroll
        for (int i = 0; i < 64; ++i) sums[64 + i] += one[i] * (i % 4 < 2 ? upper_second : lower_second);
    }
}

// Without scales: 256 weight rows at once, and a k block's products are started before the last one's are done.
template <class C, bool GATHERED>
__device__ __forceinline__ void accumulate_wide_plain(Shared<C>& shared, Stage& stage, int k_blocks,
                                                      float (&sums)[128]) {
    using Kind = typename C::Kind;
    const int lane = threadIdx.x % 32, group = threadIdx.x / 128;
    // Zeros, though the first product need not add: what is read before it is written lives from tile to tile.
#pragma unroll
    for (int i = 0; i < 128; ++i) sums[i] = 0.0f;
    int last = 0;
    for (int k = 0; k < k_blocks; ++k) {
        const int s = stage.index;
        const uint32_t x = descriptor_low(shared_address(shared.x[s]) + group * 64 * BLOCK);
        const uint32_t weights = descriptor_low(shared_address(shared.weights[s]));
        mbarrier_wait(shared_address(&shared.full[s]), stage.parity);
        if (GATHERED) fence_async_proxy();
        wgmma_fence();
        wgmma_k_block<Kind, 256>(sums, x, weights, true);
        wgmma_commit_group();
        wgmma_wait_group<1>();
        if (k > 0) release(shared, last, lane);
        last = s;
        stage.next<C::STAGES>();
    }
    wgmma_wait_group<0>();
    release(shared, last, lane);
}

// SwiGLU of the wide form: the first 64 sums are gate, the others up. A row's 128 values lie in four neighbouring
// threads; a warp lays its 16 rows in shared memory to store 16 bytes a thread.
template <class C>
__device__ __forceinline__ void finish_first_wide(Shared<C>& shared, const Arguments& arguments, const Place& place,
                                                  float (&sums)[128]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr int PITCH = 144;
    static_assert(16 * PITCH <= 16 * C::WIDE_PITCH, "it fits");
    uint8_t* staging = shared.staging.wide + warp * 16 * C::WIDE_PITCH;
    const uint32_t to = shared_address(staging) + (lane % 16) * PITCH + lane / 16 * 16;
    auto store = [&](int half) {  // 128 bytes of each of the 16 rows
        __syncwarp();
        const int bytes = arguments.intermediate * C::Kind::BYTES, column = place.block_n * BLOCK * C::Kind::BYTES +
                                                                           half * 128 + lane % 8 * 16;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int row = 4 * i + lane / 8;
            if (warp * 16 + row < place.rows && column < bytes)
                *reinterpret_cast<int4*>(arguments.act + size_t(place.first_row + warp * 16 + row) * bytes + column) =
                    *reinterpret_cast<const int4*>(staging + row * PITCH + lane % 8 * 16);
        }
        __syncwarp();
    };
    if constexpr (C::Kind::SCALED) {
#pragma unroll
        for (int i = 0; i < 64; ++i) sums[i] = silu(sums[i]) * sums[64 + i];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = lane / 4 + 8 * half;
            float most = 1e-10f;
#pragma unroll
            for (int j = 0; j < 16; ++j)
                most = fmaxf(most, fmaxf(fabsf(sums[4 * j + 2 * half]), fabsf(sums[4 * j + 2 * half + 1])));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            const float scale = most * (1.0f / FP8_MOST), inverse = __fdividef(FP8_MOST, most);
            if (lane % 4 == 0 && warp * 16 + row < place.rows)
                arguments.act_scale[size_t(place.first_row + warp * 16 + row) * (arguments.intermediate / BLOCK) +
                                    place.block_n] = scale;
#pragma unroll
            for (int j = 0; j < 16; ++j)
                *reinterpret_cast<__nv_fp8x2_storage_t*>(staging + row * PITCH + 8 * j + 2 * (lane % 4)) =
                    __nv_cvt_float2_to_fp8x2(
                        make_float2(sums[4 * j + 2 * half] * inverse, sums[4 * j + 2 * half + 1] * inverse),
                        __NV_SATFINITE, __NV_E4M3);
        }
        store(0);
    } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int j = 8 * half; j < 8 * half + 8; j += 2) {
                uint32_t v[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int at = 4 * j + 2 * i;
                    v[i] = two_bf16(silu(sums[at]) * sums[64 + at], silu(sums[at + 1]) * sums[64 + at + 1]);
                }
                stmatrix_x4(to + j % 8 * 16, v[0], v[1], v[2], v[3]);
            }
            store(half);
        }
    }
}

// The tile times the routing weights, added to the output rows of its tokens, or, STORES, rounded to bfloat16 and stored
// by pair: a warp lays 16 rows of 128 bytes in shared memory and adds or stores 4 of them at a time.
template <class C, bool STORES>
__device__ __forceinline__ void finish_second_wide(Shared<C>& shared, const Arguments& arguments, const Place& place,
                                                   const float (&sums)[128]) {
    constexpr bool HALVES = STORES || sizeof(typename C::Kind::Out) == 2;  // bfloat16 goes out
    using Out = std::conditional_t<HALVES, __nv_bfloat16, float>;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr int PITCH = HALVES ? 144 : C::WIDE_PITCH;
    const uint32_t staging = shared_address(shared.staging.wide + warp * 16 * C::WIDE_PITCH);
    const uint32_t from = staging + lane / 8 * PITCH + lane % 8 * 16;
    cp_async_wait_all();
    named_barrier_sync(NamedBarrier::WARPGROUP_DONE + warp / 4, CONSUMERS / 2);  // this warpgroup's pairs are there
    constexpr int VALUES = 16 / sizeof(Out), CHUNKS = 256 / (8 * VALUES);          // of a lane's addition; of a row
    const int columns = arguments.hidden - place.block_n * 2 * BLOCK - lane % 8 * VALUES;
    float weight[2];
    Out* out[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) weight[half] = __int_as_float(shared.pair[warp * 16 + 8 * half + lane / 4].y);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = warp * 16 + 4 * i + lane / 8;
        const int out_row = row >= place.rows ? 0 : STORES ? place.first_row + row : shared.pair[row].x;
        out[i] = (STORES ? reinterpret_cast<Out*>(arguments.results) : static_cast<Out*>(arguments.out)) +
                 size_t(out_row) * arguments.hidden + place.block_n * 2 * BLOCK + lane % 8 * VALUES;
    }
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        __syncwarp();
        if constexpr (HALVES) {
            const uint32_t to = staging + (lane % 16) * PITCH + lane / 16 * 16;  // of the row a lane names for storing
#pragma unroll
            for (int j = chunk * 8; j < chunk * 8 + 8; j += 2) {
                uint32_t v[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int at = 4 * j + 2 * i;
                    v[i] = two_bf16(sums[at] * weight[i % 2], sums[at + 1] * weight[i % 2]);
                }
                stmatrix_x4(to + j % 8 * 16, v[0], v[1], v[2], v[3]);
            }
        } else {
            uint8_t* to = shared.staging.wide + warp * 16 * C::WIDE_PITCH + lane / 4 * PITCH + lane % 4 * 8;
#pragma unroll
            for (int j = chunk * 4; j < chunk * 4 + 4; ++j)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    *reinterpret_cast<float2*>(to + half * 8 * PITCH + j % 4 * 32) =
                        make_float2(sums[4 * j + 2 * half] * weight[half], sums[4 * j + 2 * half + 1] * weight[half]);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint4 v = load_shared16(from + 4 * i * PITCH);
            if (warp * 16 + 4 * i + lane / 8 < place.rows && chunk * 8 * VALUES < columns) {
                if constexpr (STORES)
                    *reinterpret_cast<uint4*>(out[i] + chunk * 8 * VALUES) = v;
                else if constexpr (HALVES)
                    reduce_add_bf16x8(out[i] + chunk * 8 * VALUES, v.x, v.y, v.z, v.w);
                else
                    reduce_add_f32x4(out[i] + chunk * 8 * VALUES, __uint_as_float(v.x), __uint_as_float(v.y),
                                     __uint_as_float(v.z), __uint_as_float(v.w));
            }
        }
    }
    named_barrier_sync(NamedBarrier::WARPGROUP_DONE + warp / 4, CONSUMERS / 2);  // before the next tile's pairs come
}

}  // namespace derby
