// output [m, n] = sigmoid(x @ weight^T + bias) * multiplier, all bf16, sums in float32.
//
// Two consumer warpgroups multiply, one warp loads by TMA. Where there are many rows a tile's sums are packed into half
// the registers (fp16: 11 bits, where a gate that cuBLAS hands on has 8) and finished while the next tile's products
// are made: bias, sigmoid and product, then out through shared memory by TMA, an eighth after every fourth block.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "hopper_tiles.cuh"

namespace derby {

constexpr int SPREAD = 4;                 // k blocks between two parts of the tile before
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

    // Slabs have the 128-byte swizzle.
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
        if (part + 1 < PARTS) read_multiplier(problem, part + 1);
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

template <class F>
__device__ void consume_wide(Shared<F>& shared, const CUtensorMap* out_map, const Problem& problem) {
    const int group = threadIdx.x / WARPGROUP, warp = threadIdx.x / WARP % 4, k_blocks = problem.extent.k_blocks;
    const bool by_tma = problem.extent.n % 8 == 0;
    uint32_t step = 0, parity = 0;
    Later<F> later;
    for (Walk<F> walk(blockIdx.x, gridDim.x); walk.more(problem.extent); walk.next(), step += k_blocks, parity ^= 1) {
        const int2 tile = walk.tile(problem.extent);
        const int row = tile.x + group * 64 + warp * 16;
        named_barrier_sync(1, F::CONSUMERS);  // nobody still reads the bias of the tile before the last
        read_bias<F>(problem, tile.y, shared.bias[parity]);
        float d[F::COLUMNS / 2];
        pin<F::COLUMNS / 2>(d);
        int before = -1;
#pragma unroll
        for (int part = 0; part < Later<F>::PARTS; ++part) {
            before = multiply<F>(shared, step, part * SPREAD, min((part + 1) * SPREAD, k_blocks), before, d);
            if (later.any) later.finish(shared, out_map, problem, part);
        }
        before = multiply<F>(shared, step, Later<F>::PARTS * SPREAD, k_blocks, before, d);
        last_product<F>(shared, before, d);
        if (by_tma) {
            later.take(d, shared.bias[parity], row, tile.y);
            later.read_multiplier(problem, 0);
            continue;
        }
#pragma unroll
        for (int j = 0; j < F::COLUMNS / 8; ++j) {
            Direct<4> direct;
            direct.read(problem, row, tile.y + 8 * j);
            direct.finish(problem, d + 4 * j, row, tile.y + 8 * j);
        }
    }
    if (later.any) {
        named_barrier_sync(1, F::CONSUMERS);
#pragma unroll
        for (int part = 0; part < Later<F>::PARTS; ++part) later.finish(shared, out_map, problem, part);
    }
    if (threadIdx.x % WARP == 0) bulk_wait_group_read<0>();
}

template <class F>
__device__ void consume_narrow(Shared<F>& shared, const Problem& problem) {
    constexpr int COUNT = F::COLUMNS / 2, MINE = F::SPLIT ? COUNT / 2 : COUNT;  // sums that this thread finishes
    const int group = threadIdx.x / WARPGROUP, thread = threadIdx.x % WARPGROUP, k_blocks = problem.extent.k_blocks;
    uint32_t step = 0;
    for (Walk<F> walk(blockIdx.x, gridDim.x); walk.more(problem.extent); walk.next(), step += k_blocks) {
        const int2 tile = walk.tile(problem.extent);
        const int row = tile.x + (F::SPLIT ? 0 : group * 64) + thread / WARP * 16;
        const int column = tile.y + (F::SPLIT ? group * F::COLUMNS / 2 : 0);
        Direct<MINE> direct;
        direct.read(problem, row, column);
        float d[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) d[i] = 0.0f;
        last_product<F>(shared, multiply<F>(shared, step, F::SPLIT ? group : 0, k_blocks, -1, d), d);
        if (F::SPLIT) {  // each warpgroup finishes half of the columns
            float* mine = shared.joined + group * MINE * WARPGROUP + thread;
            const float* other = shared.joined + (group ^ 1) * MINE * WARPGROUP + thread;
            named_barrier_sync(1, F::CONSUMERS);  // the last tile's were read
#pragma unroll
            for (int i = 0; i < MINE; ++i) mine[i * WARPGROUP] = group ? d[i] : d[COUNT - MINE + i];
            named_barrier_sync(2, F::CONSUMERS);
#pragma unroll
            for (int i = 0; i < MINE; ++i) d[i] = (group ? d[COUNT - MINE + i] : d[i]) + other[i * WARPGROUP];
        }
        direct.finish(problem, d, row, column);
    }
}

template <class F>
__global__ void __launch_bounds__(F::THREADS, 1)
    derby_linear_sigmoid_mul(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
                             const __grid_constant__ CUtensorMap out_map, const Problem problem) {
    extern __shared__ __align__(1024) uint8_t raw[];
    Shared<F>& shared = *reinterpret_cast<Shared<F>*>(raw);
    const int warp = threadIdx.x / WARP;
    if (threadIdx.x == 0) prefetch_map(&x_map), prefetch_map(&w_map);
    set_up<F>(shared.barriers, 1);
    if (warp >= F::CONSUMERS / WARP) {
        setmaxnreg_dec<40>();
        if (warp == F::CONSUMERS / WARP && threadIdx.x % WARP == 0)
            load_operands<F, BLOCK>(shared.ring, shared.barriers, &x_map, &w_map, problem.extent);
        __syncwarp();
    } else {
        setmaxnreg_inc<232>();
        if (F::COLUMNS <= 64) consume_narrow<F>(shared, problem);
        else consume_wide<F>(shared, &out_map, problem);
    }
    if (F::CLUSTER > 1) cluster_sync();  // no CTA leaves while another one may still signal it
}

}  // namespace derby
