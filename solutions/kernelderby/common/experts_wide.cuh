// Products and ends of FP8 tiles for many pairs an expert (bf16: experts_later.cuh): 64 pairs are wgmma's M and the
// weight rows its N. Warpgroup w multiplies pairs 64 w .. 64 w + 63; of a thread's sums, 64 for each block of 128 weight
// rows, [4j..] are of pairs 16 (t / 32) + t % 32 / 4 (+ 8 for the last two) and weight rows 8j + 2 (t % 4) + {0, 1}.
#pragma once
#include "experts_common.cuh"

namespace derby {

// SwiGLU of the wide form and 1x128 quantisation: the first 64 sums are gate, the others up. A row's 128 values lie in
// four neighbouring threads; a warp lays its 16 rows in shared memory to store 16 bytes a thread.
template <class C>
__device__ __forceinline__ void finish_first_wide(Shared<C>& shared, const typename C::Arguments& arguments,
                                                  const Place& place, float (&sums)[128]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr int PITCH = 144;
    static_assert(16 * PITCH <= 16 * C::WIDE_PITCH, "it fits");
    uint8_t* staging = shared.staging.wide + warp * 16 * C::WIDE_PITCH;
#pragma unroll
    for (int i = 0; i < 64; ++i) sums[i] = silu(sums[i]) * sums[64 + i];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = lane / 4 + 8 * half;
        float most = 1e-10f;
#pragma unroll
        for (int j = 0; j < 16; ++j)
            most = fmaxf(most, fmaxf(fabsf(sums[4 * j + 2 * half]), fabsf(sums[4 * j + 2 * half + 1])));
        most = quad_max(most);
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
    __syncwarp();
    const int bytes = arguments.intermediate, column = place.block_n * BLOCK + lane % 8 * 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = 4 * i + lane / 8;
        if (warp * 16 + row < place.rows && column < bytes)
            *reinterpret_cast<int4*>(arguments.act + size_t(place.first_row + warp * 16 + row) * bytes + column) =
                *reinterpret_cast<const int4*>(staging + row * PITCH + lane % 8 * 16);
    }
    __syncwarp();
}

// The tile times the routing weights, in bfloat16, added to the output rows of its tokens, or, STORES, stored by pair: a
// warp lays 16 rows of 128 bytes in shared memory and adds or stores 4 of them at a time.
template <class C, bool STORES>
__device__ __forceinline__ void finish_second_wide(Shared<C>& shared, const typename C::Arguments& arguments,
                                                   const Place& place, const float (&sums)[128]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    constexpr int PITCH = 144;
    const uint32_t staging = shared_address(shared.staging.wide + warp * 16 * C::WIDE_PITCH);
    const uint32_t from = staging + lane / 8 * PITCH + lane % 8 * 16;
    const uint32_t to = staging + (lane % 16) * PITCH + lane / 16 * 16;  // of the row a lane names for storing
    cp_async_wait_all();
    named_barrier_sync(NamedBarrier::WARPGROUP_DONE + warp / 4, CONSUMERS / 2);  // this warpgroup's pairs are there
    const int columns = arguments.hidden - place.block_n * 2 * BLOCK - lane % 8 * 8;
    float weight[2];
    __nv_bfloat16* out[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) weight[half] = __int_as_float(shared.pair[0][warp * 16 + 8 * half + lane / 4].y);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int row = warp * 16 + 4 * i + lane / 8;
        const int out_row = row >= place.rows ? 0 : STORES ? place.first_row + row : shared.pair[0][row].x;
        out[i] = (STORES ? arguments.results : static_cast<__nv_bfloat16*>(arguments.out)) +
                 size_t(out_row) * arguments.hidden + place.block_n * 2 * BLOCK + lane % 8 * 8;
    }
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) {
        __syncwarp();
#pragma unroll
        for (int j = chunk * 8; j < chunk * 8 + 8; j += 2) {
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = 4 * j + 2 * i;
                v[i] = pack_bf16(sums[at] * weight[i % 2], sums[at + 1] * weight[i % 2]);
            }
            stmatrix_x4(to + j % 8 * 16, v[0], v[1], v[2], v[3]);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint4 v = load_shared16(from + 4 * i * PITCH);
            if (warp * 16 + 4 * i + lane / 8 < place.rows && chunk * 64 < columns) {
                if constexpr (STORES)
                    *reinterpret_cast<uint4*>(out[i] + chunk * 64) = v;
                else
                    reduce_add_bf16x8(out[i] + chunk * 64, v);
            }
        }
    }
    named_barrier_sync(NamedBarrier::WARPGROUP_DONE + warp / 4, CONSUMERS / 2);  // before the next tile's pairs come
}

// All visits of a consumer. The product of a k block with each 128 weight rows is scaled and added to the sums
// separately; during the second of them the warpgroup waits for the next k block and reads its scales. The first k
// block is handled outside the loop: the code that ptxas then makes of the loop lets nearly every multiply-add share
// its scale with the one before it, so fewer registers are read.
template <class C, bool FIRST, bool STORES>
__device__ __forceinline__ void work_on_wide_scaled(Shared<C>& shared,
                                                    const typename C::Arguments& arguments) {
    using Kind = typename C::Kind;
    const int lane = threadIdx.x % WARP, group = threadIdx.x / WARPGROUP, row = threadIdx.x / WARP * 16 + lane / 4;
    const int visits = shared.share.visits;
    Stage stage;
    float sums[128], one[64], upper, lower;
    float2 w;
    auto read_scales = [&] {
        const int s = stage.index;
        if (FIRST) fence_async_proxy();  // what the gathering threads have brought
        upper = shared.x_scale[s][row], lower = shared.x_scale[s][row + 8];
        w = *reinterpret_cast<const float2*>(shared.w_scale[s]);
    };
    auto multiply = [&](int block) {
        const uint32_t x = descriptor_low(shared_address(shared.x[stage.index]) + group * 64 * BLOCK);
        const uint32_t weights = descriptor_low(shared_address(shared.weights[stage.index]));
        wgmma_fence();
        wgmma_k_block<Kind, 128>(one, x, weights + block * (BLOCK * BLOCK >> 4), false);
        wgmma_commit_group();
    };
    auto add_block = [&](bool more) {
        const int s = stage.index;
        const float upper_first = upper * w.x, lower_first = lower * w.x;
        const float upper_second = upper * w.y, lower_second = lower * w.y;
        multiply(0);
        wgmma_wait_group<0>();
#pragma unroll
        for (int i = 0; i < 64; ++i) sums[i] += one[i] * (i % 4 < 2 ? upper_first : lower_first);
        multiply(1);
        stage.next<C::STAGES>();
        if (more) {
            mbarrier_wait(shared_address(&shared.full[stage.index]), stage.parity);
            read_scales();
        }
        wgmma_wait_group<0>();
        release(shared, s, lane);
#pragma unroll
        for (int i = 0; i < 64; ++i) sums[64 + i] += one[i] * (i % 4 < 2 ? upper_second : lower_second);
    };
    for (int v = 0; v < visits; ++v) {
        mbarrier_wait(shared_address(&shared.full[stage.index]), stage.parity);  // the task is there as well
        const int k_blocks = shared.task[v % TASKS].k_blocks;
        // Pairs for this warpgroup. Without half blocks it multiplies in any case: the loop then has uniform registers.
        const bool any = C::HALVED == 0 || shared.task[v % TASKS].place.rows > group * 64;
        if (!FIRST) bring_pairs(shared, arguments, shared.task[v % TASKS].place, 0);
#pragma unroll
        for (int i = 0; i < 128; ++i) sums[i] = 0.0f;
        if (!any) {
            pass_over(shared, stage, k_blocks);
        } else {
            read_scales();
            add_block(1 < k_blocks);
            for (int k = 1; k < k_blocks; ++k) add_block(k + 1 < k_blocks);
        }
        const Task task = shared.task[v % TASKS];
        if constexpr (FIRST || STORES)  // else pieces are added as they are
            if (task.piece_of >= 0 && join_pieces(shared, arguments, task, sums)) continue;
        if constexpr (FIRST)
            finish_first_wide(shared, arguments, task.place, sums);
        else
            finish_second_wide<C, STORES>(shared, arguments, task.place, sums);
    }
}

}  // namespace derby
