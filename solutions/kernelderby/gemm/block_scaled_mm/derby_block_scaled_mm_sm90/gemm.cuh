// output [m, n] = (x * x_scale) @ (weight * weight_scale)^T: x and weight in e4m3, a scale for 1 x 128 values of x and for
// 128 x 128 of weight, output float32.
//
// A persistent CTA: two consumer warpgroups multiply, the third one's warps produce. Warp 0 loads by TMA; warps 2 and 3
// read x_scale as it lies, [m, k / 128], multiply it with the weight's scale and lay the products beside the operands.
// After each block of 128 along k the wgmma's float32 sums are scaled and added to the tile's.
#pragma once
#include "hopper_tiles.cuh"

namespace derby {

constexpr int BLOCK = 128;  // values that share a scale
constexpr int SLAB = 8 * 128, SLABS = 3;  // bytes: 8 rows of 32 columns of output; slabs of a warp in turn
#ifndef DIRECT
#define DIRECT 0
#endif
#ifndef TURNS
#define TURNS 0
#endif

template <class F>
struct Shared {
    Ring<F> ring;
    uint8_t slab[CONSUMERS / WARP][SLABS][SLAB];
    float joined[F::SPLIT ? F::ROWS * F::COLUMNS : 1];  // what the warpgroups hand to each other
    float scale[F::STAGES][F::ROWS];
    Barriers<F::STAGES> barriers;
};

struct Problem {
    const float* x_scale;
    const float* w_scale;
    float* output;
    Extent extent;
};

// Four consecutive scales of a row from block k on, zeros behind the end of the row.
__device__ __forceinline__ float4 four_scales(const float* row, int k, int k_blocks, bool aligned) {
    if (aligned) return __ldg(reinterpret_cast<const float4*>(row + k));
    return make_float4(__ldg(row + k), k + 1 < k_blocks ? __ldg(row + k + 1) : 0.0f,
                       k + 2 < k_blocks ? __ldg(row + k + 2) : 0.0f, k + 3 < k_blocks ? __ldg(row + k + 3) : 0.0f);
}

// Two warps, each half of the tile's rows, four blocks along k at a time.
template <class F>
__device__ void load_scales(Shared<F>& shared, const Problem& problem) {
    constexpr int EACH = F::ROWS / 2 / WARP;
    const int lane = threadIdx.x % WARP, first = (threadIdx.x / WARP % 2) * (F::ROWS / 2) + lane;
    const int k_blocks = problem.extent.k_blocks;
    const bool aligned = k_blocks % 4 == 0;
    uint32_t step = 0;
    for (Walk<F> walk(problem.extent); walk.more(); walk.next()) {
        const int2 tile = walk.tile(problem.extent);
        const bool inside = tile.y * BLOCK < problem.extent.n;
        for (int k = 0; k < k_blocks; k += 4) {
            float4 scale[EACH], w = make_float4(0, 0, 0, 0);
            if (inside) w = four_scales(problem.w_scale + size_t(tile.y) * k_blocks, k, k_blocks, aligned);
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                const int row = tile.x * F::ROWS + first + i * WARP;
                scale[i] = make_float4(0, 0, 0, 0);
                if (row < problem.extent.m)
                    scale[i] = four_scales(problem.x_scale + size_t(row) * k_blocks, k, k_blocks, aligned);
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (k + j >= k_blocks) break;
                const uint32_t s = step % F::STAGES;
                mbarrier_wait(shared_address(&shared.barriers.empty[s]), (step / F::STAGES & 1) ^ 1);
#pragma unroll
                for (int i = 0; i < EACH; ++i)
                    shared.scale[s][first + i * WARP] = reinterpret_cast<const float(&)[4]>(scale[i])[j] *
                                                        reinterpret_cast<const float(&)[4]>(w)[j];
                __syncwarp();
                if (lane == 0) mbarrier_arrive(shared_address(&shared.barriers.full[s]));
                ++step;
            }
        }
    }
}

// The products of this warpgroup's k blocks: total[h] of 64 rows each.
template <class F>
__device__ __forceinline__ void multiply(Shared<F>& shared, const Problem& problem, uint32_t step,
                                         float (&total)[F::HALVES][64]) {
    const int lane = threadIdx.x % WARP, group = threadIdx.x / WARPGROUP;
    const int row = (F::SPLIT ? 0 : group * F::HALVES * 64) + threadIdx.x / WARP % 4 * 16 + lane / 4;
    const uint32_t rows_offset = F::SPLIT ? 0 : group * F::HALVES * 64 * BLOCK;
#pragma unroll
    for (int h = 0; h < F::HALVES; ++h)
#pragma unroll
        for (int i = 0; i < 64; ++i) total[h][i] = 0.0f;
    constexpr int STEP = F::SPLIT ? 2 : 1;
    for (int k = F::SPLIT ? group : 0; k < problem.extent.k_blocks; k += STEP) {
        const uint32_t now = step + k, s = now % F::STAGES;
        mbarrier_wait(shared_address(&shared.barriers.full[s]), now / F::STAGES & 1);
        const uint32_t x = descriptor_low(shared_address(shared.ring.x[s]) + rows_offset);
        const uint32_t w = descriptor_low(shared_address(shared.ring.w[s]));
        float upper[F::HALVES], lower[F::HALVES];
#pragma unroll
        for (int h = 0; h < F::HALVES; ++h)
            upper[h] = shared.scale[s][row + h * 64], lower[h] = shared.scale[s][row + h * 64 + 8];
#pragma unroll
        for (int h = 0; h < F::HALVES; ++h) {
            float one[64];
            pin<64>(one);
            if (TURNS && !F::SPLIT) named_barrier_sync(4 + group, CONSUMERS);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < BLOCK / 32; ++i)
                wgmma_e4m3<BLOCK>(one, descriptor_of(x + h * (64 * BLOCK >> 4) + 2 * i), descriptor_of(w + 2 * i), i);
            wgmma_commit_group();
            if (TURNS && !F::SPLIT) named_barrier_arrive(4 + (group ^ 1), CONSUMERS);
            wgmma_wait_group<0>();
            pin<64>(one);
            if (h + 1 == F::HALVES) release<F>(shared.barriers, s);
#pragma unroll
            for (int i = 0; i < 64; ++i) total[h][i] += one[i] * (i % 4 < 2 ? upper[h] : lower[h]);
        }
    }
}

// 16 rows of a warp, the columns of registers FROM .. TO - 1: 8 rows x 32 columns go through shared memory at a time and
// are stored by TMA. A slab has the 128-byte swizzle; that odd rows write their 8 columns in another order keeps four
// rows that are written at once on different banks.
template <int FROM, int TO>
__device__ __forceinline__ void store_rows(uint8_t (*slabs)[SLAB], const CUtensorMap* out_map, const float* d, int row,
                                           int column, uint32_t& turn) {
    const int lane = threadIdx.x % WARP, r = lane / 4, q = lane % 4;
    const bool odd = r & 1;
#pragma unroll
    for (int c = FROM / 16; c < TO / 16; ++c)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint8_t* slab = slabs[turn % SLABS];
            if (lane == 0) bulk_wait_group_read<SLABS - 1>();
            __syncwarp();
#pragma unroll
            for (int t = 0; t < 4; ++t) {
                const int a = c * 16 + t * 4 + half * 2, b = c * 16 + (t ^ 2) * 4 + half * 2;
                const int chunk = 2 * (odd ? t ^ 2 : t) + q / 2;
                *reinterpret_cast<float2*>(slab + r * 128 + (chunk ^ r) * 16 + q % 2 * 8) =
                    make_float2(odd ? d[b] : d[a], odd ? d[b + 1] : d[a + 1]);
            }
            fence_async_proxy();
            __syncwarp();
            if (lane == 0) {
                tma_store(out_map, shared_address(slab), column + c * 32, row + half * 8);
                bulk_commit_group();
            }
            ++turn;
        }
}

template <int FROM, int TO>
__device__ __forceinline__ void store_direct(const Problem& problem, const float* d, int row, int column) {
    const int lane = threadIdx.x % WARP;
    if (column >= problem.extent.n) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int r = row + lane / 4 + half * 8;
        float* out = problem.output + size_t(r) * problem.extent.n + column + lane % 4 * 2;
        if (r < problem.extent.m)
#pragma unroll
            for (int j = FROM / 4; j < TO / 4; ++j)
                *reinterpret_cast<float2*>(out + j * 8) = make_float2(d[4 * j + 2 * half], d[4 * j + 2 * half + 1]);
    }
}

template <class F, int FROM, int TO>
__device__ __forceinline__ void store(Shared<F>& shared, const CUtensorMap* out_map, const Problem& problem,
                                      const float* d, int row, int column, uint32_t& turn) {
    if (DIRECT) store_direct<FROM, TO>(problem, d, row, column);
    else store_rows<FROM, TO>(shared.slab[threadIdx.x / WARP], out_map, d, row, column, turn);
}

template <class F>
__device__ void consume(Shared<F>& shared, const CUtensorMap* out_map, const Problem& problem) {
    const int group = threadIdx.x / WARPGROUP, thread = threadIdx.x % WARPGROUP, warp = thread / WARP;
    uint32_t step = 0, turn = 0;
    if (TURNS && !F::SPLIT && group == 1) named_barrier_arrive(4, CONSUMERS);
    for (Walk<F> walk(problem.extent); walk.more(); walk.next(), step += problem.extent.k_blocks) {
        float total[F::HALVES][64];
        multiply<F>(shared, problem, step, total);
        const int2 tile = walk.tile(problem.extent);
        const int column = tile.y * BLOCK;
        if (F::SPLIT) {  // each warpgroup finishes 64 of the columns
            float* mine = shared.joined + group * F::HALVES * 32 * WARPGROUP + thread;
            const float* other = shared.joined + (group ^ 1) * F::HALVES * 32 * WARPGROUP + thread;
            named_barrier_sync(1, CONSUMERS);  // the last tile's were read
#pragma unroll
            for (int h = 0; h < F::HALVES; ++h)
#pragma unroll
                for (int i = 0; i < 32; ++i)
                    mine[(h * 32 + i) * WARPGROUP] = group ? total[h][i] : total[h][32 + i];
            named_barrier_sync(2, CONSUMERS);
#pragma unroll
            for (int h = 0; h < F::HALVES; ++h) {
                const int row = tile.x * F::ROWS + h * 64 + warp * 16;
                if (group == 0) {
#pragma unroll
                    for (int i = 0; i < 32; ++i) total[h][i] += other[(h * 32 + i) * WARPGROUP];
                    store<F, 0, 32>(shared, out_map, problem, total[h], row, column, turn);
                } else {
#pragma unroll
                    for (int i = 0; i < 32; ++i) total[h][32 + i] += other[(h * 32 + i) * WARPGROUP];
                    store<F, 32, 64>(shared, out_map, problem, total[h], row, column, turn);
                }
            }
        } else {
#pragma unroll
            for (int h = 0; h < F::HALVES; ++h)
                store<F, 0, 64>(shared, out_map, problem, total[h],
                                tile.x * F::ROWS + (group * F::HALVES + h) * 64 + warp * 16, column, turn);
        }
    }
    if (threadIdx.x % WARP == 0) bulk_wait_group_read<0>();
}

template <class F>
__global__ void __launch_bounds__(THREADS, 1)
    derby_block_scaled_mm(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                          const __grid_constant__ CUtensorMap out_map, const Problem problem) {
    extern __shared__ __align__(1024) uint8_t raw[];
    Shared<F>& shared = *reinterpret_cast<Shared<F>*>(raw);
    const int warp = threadIdx.x / WARP;
    if (threadIdx.x == 0) prefetch_map(&x_map), prefetch_map(&w_map), prefetch_map(&out_map);
    set_up<F>(shared.barriers, 3);  // TMA and the two warps with scales
    if (warp >= CONSUMERS / WARP) {
        setmaxnreg_dec<40>();
        if (warp == CONSUMERS / WARP) {
            if (threadIdx.x % WARP == 0)
                load_operands<F, BLOCK>(shared.ring, shared.barriers, &x_map, &w_map, problem.extent);
            __syncwarp();
        } else if (warp >= CONSUMERS / WARP + 2) {
            load_scales<F>(shared, problem);
        }
    } else {
        setmaxnreg_inc<232>();
        consume<F>(shared, &out_map, problem);
    }
    if (F::CLUSTER > 1) cluster_sync();  // no CTA leaves while another one may still signal it
}

}  // namespace derby
