// output [m, n] = sigmoid(x @ weight^T + bias) * multiplier, all bf16, sums in float32.
//
// Two consumer warpgroups multiply, one warp loads by TMA. The multiplier is read into registers while the last products
// are made; bias, sigmoid and product happen there, and bf16 leaves through shared memory by TMA.
#pragma once
#include <cuda_bf16.h>

#include "hopper_tiles.cuh"

namespace derby {

constexpr int BLOCK = 64;                 // values of a stage along k
constexpr int SLAB = 8 * 128, SLABS = 3;  // bytes: 8 rows of 64 columns of output; slabs of a warp in turn

template <class F>
struct Shared {
    Ring<F> ring;
    uint8_t slab[CONSUMERS / WARP][SLABS][SLAB];
    float joined[F::SPLIT ? F::ROWS * F::COLUMNS : 1];  // what the warpgroups hand to each other
    __nv_bfloat16 bias[2][F::COLUMNS];                  // of this tile and of the one before
    Barriers<F::STAGES> barriers;
};

struct Problem {
    const __nv_bfloat16* bias;
    const __nv_bfloat16* multiplier;
    __nv_bfloat16* output;
    Extent extent;
};

// The k blocks from `from` to `to` of this warpgroup; `add` whether d holds sums already. A product stays under way while
// the next stage is waited for; the stage of the one before it is released. PENDING 0 leaves none.
template <class F>
__device__ __forceinline__ void multiply(Shared<F>& shared, uint32_t step, int from, int to, bool add, float* d) {
    constexpr int COUNT = F::COLUMNS / 2, STEP = F::SPLIT ? 2 : 1;
    const int group = threadIdx.x / WARPGROUP;
    const uint32_t rows_offset = F::SPLIT ? 0 : group * 64 * ROW_BYTES;
    int before = -1;
    for (int k = from; k < to; k += STEP) {
        const uint32_t now = step + k, s = now % F::STAGES;
        mbarrier_wait(shared_address(&shared.barriers.full[s]), now / F::STAGES & 1);
        const uint32_t x = descriptor_low(shared_address(shared.ring.x[s]) + rows_offset);
        const uint32_t w = descriptor_low(shared_address(shared.ring.w[s]));
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < BLOCK / 16; ++i)
            wgmma_bf16<F::COLUMNS>(d, descriptor_of(x + 2 * i), descriptor_of(w + 2 * i), add || i);
        wgmma_commit_group();
        add = true;
        wgmma_wait_group<1>();
        if (before >= 0) release<F>(shared.barriers, before);
        before = s;
    }
    wgmma_wait_group<0>();
    pin<COUNT>(d);
    if (before >= 0) release<F>(shared.barriers, before);
}

__device__ __forceinline__ float2 unpack(uint32_t both) {
    return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xFFFF0000));
}

#ifndef NOEPI
#define NOEPI 0
#endif
#ifndef TANH
#define TANH 0
#endif
__device__ __forceinline__ float gated(float gate, float multiplier) {
    if (TANH) {
        float t;
        asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(0.5f * gate));
        return multiplier * (0.5f * t + 0.5f);
    }
    return __fdividef(multiplier, 1.0f + __expf(-gate));
}

__device__ __forceinline__ uint32_t gated_pair(float a, float b, uint32_t bias, uint32_t multiplier) {
    const float2 c = unpack(bias), by = unpack(multiplier);
    const __nv_bfloat162 both = __floats2bfloat162_rn(gated(a + c.x, by.x), gated(b + c.y, by.y));
    return *reinterpret_cast<const uint32_t*>(&both);
}

// For n a multiple of 8 and the form of many rows. `row`: of this warp's 16, `column`: of the tile.
template <class F>
struct Wide {
    uint32_t multiplier[F::COLUMNS / 4];

    __device__ __forceinline__ void read_multiplier(const Problem& problem, int row, int column) {
        const int lane = threadIdx.x % WARP;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int r = row + lane / 4 + half * 8;
            const __nv_bfloat16* from =
                problem.multiplier + size_t(r) * problem.extent.n + column + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < F::COLUMNS / 8; ++j)
                multiplier[2 * j + half] =
                    r < problem.extent.m && column + 8 * j < problem.extent.n
                        ? __ldg(reinterpret_cast<const uint32_t*>(from + 8 * j)) : 0;
        }
    }

    // 8 rows x 64 columns at a time. A slab has the 128-byte swizzle.
    __device__ __forceinline__ void finish(Shared<F>& shared, const CUtensorMap* out_map, const __nv_bfloat16* bias,
                                           const float* d, int row, int column, uint32_t& turn) {
        const int lane = threadIdx.x % WARP, r = lane / 4, q = lane % 4;
#pragma unroll
        for (int c = 0; c < F::COLUMNS / 64; ++c)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                uint8_t* slab = shared.slab[threadIdx.x / WARP][turn % SLABS];
                if (lane == 0) bulk_wait_group_read<SLABS - 1>();
                __syncwarp();
#pragma unroll
                for (int t = 0; t < 8; ++t) {
                    const int j = 8 * c + t;
                    *reinterpret_cast<uint32_t*>(slab + r * 128 + (t ^ r) * 16 + q * 4) =
                        gated_pair(d[4 * j + 2 * half], d[4 * j + 2 * half + 1],
                                   *reinterpret_cast<const uint32_t*>(bias + 8 * j + 2 * q), multiplier[2 * j + half]);
                }
                fence_async_proxy();
                __syncwarp();
                if (lane == 0) {
                    tma_store(out_map, shared_address(slab), column + c * 64, row + half * 8);
                    bulk_commit_group();
                }
                ++turn;
            }
    }
};

// Any n, columns of registers FROM .. TO - 1, element by element unless `paired` (n even).
template <int FROM, int TO>
__device__ __forceinline__ void finish_directly(const Problem& problem, const __nv_bfloat16* bias, const float* d,
                                                int row, int column, bool paired) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int r = row + lane / 4 + half * 8;
        if (r >= problem.extent.m) continue;
#pragma unroll
        for (int j = FROM / 4; j < TO / 4; ++j) {
            const int at = 8 * j + lane % 4 * 2, c = column + at, i = 4 * j + 2 * half;
            const size_t place = size_t(r) * problem.extent.n + c;
            if (paired) {
                if (c < problem.extent.n)
                    *reinterpret_cast<uint32_t*>(problem.output + place) =
                        gated_pair(d[i], d[i + 1], *reinterpret_cast<const uint32_t*>(bias + at),
                                   __ldg(reinterpret_cast<const uint32_t*>(problem.multiplier + place)));
                continue;
            }
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (c + e < problem.extent.n)
                    problem.output[place + e] = __float2bfloat16(gated(
                        d[i + e] + __bfloat162float(bias[at + e]), __bfloat162float(problem.multiplier[place + e])));
        }
    }
}

template <class F>
__device__ void consume(Shared<F>& shared, const CUtensorMap* out_map, const Problem& problem) {
    constexpr int COUNT = F::COLUMNS / 2, LAST = 4;
    const int group = threadIdx.x / WARPGROUP, thread = threadIdx.x % WARPGROUP;
    const int k_blocks = problem.extent.k_blocks;
    const bool stored_by_tma = !F::SPLIT && F::COLUMNS >= 64 && problem.extent.n % 8 == 0;
    uint32_t step = 0, turn = 0, parity = 0;
    for (Walk<F> walk; walk.more(problem.extent); walk.next(), step += k_blocks, parity ^= 1) {
        const int2 tile = walk.tile(problem.extent);
        const int row = tile.x + (F::SPLIT ? 0 : group * 64) + thread / WARP * 16, column = tile.y;
        __nv_bfloat16* bias = shared.bias[parity];
        for (int i = threadIdx.x; i < F::COLUMNS; i += CONSUMERS)
            bias[i] = column + i < problem.extent.n ? problem.bias[column + i] : __nv_bfloat16(0.0f);
        float d[COUNT];
        pin<COUNT>(d);
        if (F::SPLIT) {  // each warpgroup finishes half of the columns
#pragma unroll
            for (int i = 0; i < COUNT; ++i) d[i] = 0.0f;
            multiply<F>(shared, step, group, k_blocks, true, d);
            float* mine = shared.joined + group * COUNT / 2 * WARPGROUP + thread;
            const float* other = shared.joined + (group ^ 1) * COUNT / 2 * WARPGROUP + thread;
            named_barrier_sync(1, CONSUMERS);  // the last tile's were read
#pragma unroll
            for (int i = 0; i < COUNT / 2; ++i) mine[i * WARPGROUP] = group ? d[i] : d[COUNT / 2 + i];
            named_barrier_sync(2, CONSUMERS);
#pragma unroll
            for (int i = 0; i < COUNT / 2; ++i) {
                if (group) d[COUNT / 2 + i] += other[i * WARPGROUP];
                else d[i] += other[i * WARPGROUP];
            }
            const bool paired = problem.extent.n % 2 == 0;
            if (group) finish_directly<COUNT / 2, COUNT>(problem, bias, d, row, column, paired);
            else finish_directly<0, COUNT / 2>(problem, bias, d, row, column, paired);
            continue;
        }
        const int most = max(k_blocks - LAST, 0);
        if (most) multiply<F>(shared, step, 0, most, false, d);
        if (stored_by_tma) {
            Wide<F> wide;
            wide.read_multiplier(problem, row, column);
            multiply<F>(shared, step, most, k_blocks, most, d);
            named_barrier_sync(1, CONSUMERS);  // the bias is there
            if (!NOEPI || d[0] == 1234.0f) wide.finish(shared, out_map, bias, d, row, column, turn);
        } else {
            multiply<F>(shared, step, most, k_blocks, most, d);
            named_barrier_sync(1, CONSUMERS);
            finish_directly<0, COUNT>(problem, bias, d, row, column, problem.extent.n % 2 == 0);
        }
    }
    if (threadIdx.x % WARP == 0) bulk_wait_group_read<0>();
}

template <class F>
__global__ void __launch_bounds__(THREADS, 1)
    derby_linear_sigmoid_mul(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                             const __grid_constant__ CUtensorMap out_map, const Problem problem) {
    extern __shared__ __align__(1024) uint8_t raw[];
    Shared<F>& shared = *reinterpret_cast<Shared<F>*>(raw);
    const int warp = threadIdx.x / WARP;
    if (threadIdx.x == 0) prefetch_map(&x_map), prefetch_map(&w_map);
    set_up<F>(shared.barriers, 1);
    if (warp >= CONSUMERS / WARP) {
        setmaxnreg_dec<40>();
        if (warp == CONSUMERS / WARP && threadIdx.x % WARP == 0)
            load_operands<F, BLOCK>(shared.ring, shared.barriers, &x_map, &w_map, problem.extent);
        __syncwarp();
    } else {
        setmaxnreg_inc<232>();
        consume<F>(shared, &out_map, problem);
    }
    if (F::CLUSTER > 1) cluster_sync();  // no CTA leaves while another one may still signal it
}

}  // namespace derby
