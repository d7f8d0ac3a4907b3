// What the kernels of linear_sigmoid_mul share: shared memory, products of k blocks, bias, sigmoid and product.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "hopper_tiles.cuh"

namespace derby {

constexpr int SPREAD = 6;                 // k blocks between two parts of the tile before, at most
constexpr int BLOCK = 64;                 // values of a stage along k
constexpr int SLAB = 8 * 128, SLABS = 2;  // bytes: 8 rows of 64 columns of output; slabs of a warp in turn

template <class F>
struct Shared {
    Ring<F> ring;
    uint8_t slab[F::CONSUMERS / WARP][SLABS][SLAB];
    float joined[F::SPLIT ? F::ROWS * F::COLUMNS : 1];  // what the warpgroups hand to each other
    __nv_bfloat16 bias[2][F::COLUMNS];                  // of this tile and of the one before
    Barriers<F::STAGES> barriers;
};

struct Problem {
    const __nv_bfloat16* bias;
    const __nv_bfloat16* multiplier;
    __nv_bfloat16* output;
    Extent extent;
    // Stream-K: the k blocks of the first `streamed` units are spread evenly over the first `sharers` clusters. A CTA
    // that does not begin a tile hands its sums, ROWS x COLUMNS floats, over in its part of `pieces`.
    int streamed, sharers;
    float4* pieces;
    int* arrived;  // [CTAs] whether the CTA's piece is there; zeros between calls
};

// Starts the product of k block `step` with d; adds to d where `add`. Returns its stage.
template <class F>
__device__ __forceinline__ int start_product(Shared<F>& shared, uint32_t step, bool add, float* d) {
    const uint32_t s = step % F::STAGES, first_row = F::SPLIT ? 0 : threadIdx.x / WARPGROUP * 64;
    mbarrier_wait(shared_address(&shared.barriers.full[s]), step / F::STAGES & 1);
    const uint32_t x = descriptor_low(shared_address(shared.ring.x[s]) + first_row * ROW_BYTES);
    const uint32_t w = descriptor_low(shared_address(shared.ring.w[s]));
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < BLOCK / 16; ++i)
        wgmma_bf16<F::COLUMNS>(d, descriptor_of(x + 2 * i), descriptor_of(w + 2 * i), add || i);
    wgmma_commit_group();
    return s;
}

// The k blocks from `from` to `to` of this warpgroup, added to d. A product stays under way while the next stage is
// waited for. before: stage of the product that is under way, or -1; returned is that of the last one.
template <class F>
__device__ __forceinline__ int multiply(Shared<F>& shared, uint32_t step, int from, int to, int before, float* d) {
    for (int k = from; k < to; k += F::SPLIT ? 2 : 1) {
        const int s = start_product<F>(shared, step + k, F::SPLIT || k > 0, d);
        wgmma_wait_group<1>();
        if (before >= 0) release<F>(shared.barriers, before);
        before = s;
    }
    return before;
}

template <class F>
__device__ __forceinline__ void last_product(Shared<F>& shared, int before, float* d) {
    wgmma_wait_group<0>();
    pin<F::COLUMNS / 2>(d);
    if (before >= 0) release<F>(shared.barriers, before);
}

__device__ __forceinline__ float2 unpack(uint32_t both) {
    return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xFFFF0000));
}

__device__ __forceinline__ float gated(float gate, float multiplier) {
    return __fdividef(multiplier, 1.0f + __expf(-gate));
}

__device__ __forceinline__ uint32_t gated_pair(float a, float b, uint32_t bias, uint32_t multiplier) {
    const float2 c = unpack(bias), by = unpack(multiplier);
    const __nv_bfloat162 both = __floats2bfloat162_rn(gated(a + c.x, by.x), gated(b + c.y, by.y));
    return *reinterpret_cast<const uint32_t*>(&both);
}

// A tile that is finished later, n a multiple of 8: 16 rows of a warp, in COUNT / 16 parts of 8 rows x 64 columns.
template <class F>
struct Later {
    static constexpr int COUNT = F::COLUMNS / 2, PARTS = COUNT / 16;
    uint32_t gate[COUNT / 2];     // pairs of columns
    uint32_t multiplier[8];       // of the next part
    const __nv_bfloat16* bias;
    int row, column;              // of this warp's first
    bool any = false;

    __device__ __forceinline__ void take(const float* d, const __nv_bfloat16* bias_, int row_, int column_) {
        bias = bias_, row = row_, column = column_, any = true;
#pragma unroll
        for (int i = 0; i < COUNT / 2; ++i) {
            const __half2 both = __floats2half2_rn(d[2 * i], d[2 * i + 1]);
            gate[i] = *reinterpret_cast<const uint32_t*>(&both);
        }
    }

    __device__ __forceinline__ void read_multiplier(const Problem& problem, int part) {
        const int lane = threadIdx.x % WARP, r = row + lane / 4 + part % 2 * 8, c = column + part / 2 * 64;
        const __nv_bfloat16* from = problem.multiplier + size_t(r) * problem.extent.n + c + lane % 4 * 2;
#pragma unroll
        for (int t = 0; t < 8; ++t)
            multiplier[t] = r < problem.extent.m && c + 8 * t < problem.extent.n
                                ? __ldg(reinterpret_cast<const uint32_t*>(from + 8 * t)) : 0;
    }

    // Slabs have the 128-byte swizzle. NEXT: asks for the next part's multipliers.
    template <bool NEXT = true>
    __device__ __forceinline__ void finish(Shared<F>& shared, const CUtensorMap* out_map, const Problem& problem,
                                           int part) {
        const int lane = threadIdx.x % WARP, r = lane / 4, q = lane % 4;
        uint8_t* slab = shared.slab[threadIdx.x / WARP][part % SLABS];
        if (lane == 0) bulk_wait_group_read<SLABS - 1>();
        __syncwarp();
#pragma unroll
        for (int t = 0; t < 8; ++t) {
            const int j = part / 2 * 8 + t;
            const float2 d = __half22float2(*reinterpret_cast<const __half2*>(&gate[2 * j + part % 2]));
            *reinterpret_cast<uint32_t*>(slab + r * 128 + (t ^ r) * 16 + q * 4) = gated_pair(
                d.x, d.y, *reinterpret_cast<const uint32_t*>(bias + 8 * j + 2 * q), multiplier[t]);
        }
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) {
            tma_store(out_map, shared_address(slab), column + part / 2 * 64, row + part % 2 * 8);
            bulk_commit_group();
        }
        if (NEXT && part + 1 < PARTS) read_multiplier(problem, part + 1);
    }

    // All parts, where no products follow: their multipliers come at once.
    __device__ __forceinline__ void finish_all(Shared<F>& shared, const CUtensorMap* out_map, const Problem& problem) {
        uint32_t all[PARTS][8];
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            read_multiplier(problem, part);
#pragma unroll
            for (int t = 0; t < 8; ++t) all[part][t] = multiplier[t];
        }
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
#pragma unroll
            for (int t = 0; t < 8; ++t) multiplier[t] = all[part][t];
            finish<false>(shared, out_map, problem, part);
        }
    }
};

// Any n: 16 rows of a warp, the columns of COUNT registers from `column` on.
template <int COUNT>
struct Direct {
    uint32_t multiplier[COUNT / 2], bias[COUNT / 4];  // pairs of columns

    // The pair at `place` of which the first or both columns may lie outside. `even`: rows have an even length.
    static __device__ __forceinline__ uint32_t pair(const __nv_bfloat16* from, size_t place, int left, bool even) {
        if (left <= 0) return 0;
        if (even) return __ldg(reinterpret_cast<const uint32_t*>(from + place));
        const unsigned short* bits = reinterpret_cast<const unsigned short*>(from) + place;
        return __ldg(bits) | (left > 1 ? uint32_t(__ldg(bits + 1)) << 16 : 0);
    }

    __device__ __forceinline__ void read(const Problem& problem, int row, int column) {
        const int lane = threadIdx.x % WARP, n = problem.extent.n;
#pragma unroll
        for (int j = 0; j < COUNT / 4; ++j) {
            const int c = column + 8 * j + lane % 4 * 2;
            bias[j] = pair(problem.bias, c, n - c, n % 2 == 0);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int r = row + lane / 4 + half * 8;
                multiplier[2 * j + half] =
                    r < problem.extent.m ? pair(problem.multiplier, size_t(r) * n + c, n - c, n % 2 == 0) : 0;
            }
        }
    }

    __device__ __forceinline__ void finish(const Problem& problem, const float* d, int row, int column) const {
        const int lane = threadIdx.x % WARP, n = problem.extent.n;
#pragma unroll
        for (int j = 0; j < COUNT / 4; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int r = row + lane / 4 + half * 8, c = column + 8 * j + lane % 4 * 2;
                if (r >= problem.extent.m || c >= n) continue;
                const uint32_t both =
                    gated_pair(d[4 * j + 2 * half], d[4 * j + 2 * half + 1], bias[j], multiplier[2 * j + half]);
                unsigned short* out = reinterpret_cast<unsigned short*>(problem.output) + size_t(r) * n + c;
                if (n % 2 == 0) {
                    *reinterpret_cast<uint32_t*>(out) = both;
                } else {
                    out[0] = uint16_t(both);
                    if (c + 1 < n) out[1] = uint16_t(both >> 16);
                }
            }
    }
};

template <class F>
__device__ __forceinline__ void read_bias(const Problem& problem, int column, __nv_bfloat16* bias) {
    for (int i = threadIdx.x; i < F::COLUMNS; i += F::CONSUMERS)
        bias[i] = column + i < problem.extent.n ? problem.bias[column + i] : __nv_bfloat16(0.0f);
}

}  // namespace derby
