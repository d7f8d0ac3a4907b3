// Shared by the dense bf16 GEMMs: shared memory, products of k blocks, the last operation on a sum (Plain: a
// bias; Gate: sigmoid of sum and bias, times a multiplier).
#pragma once
#include <cuda.h>
#include <cuda_fp16.h>

#include "dense_tiles.cuh"
#include "dynamic_shared.cuh"
#include "pipeline.cuh"
#include "wgmma.cuh"

namespace derby {

constexpr int SLAB = 8 * 128, SLABS = 2;  // bytes: 8 rows of 64 columns of output; slabs of a warp in turn, LATER

// The kernel's shared memory.
template <class F>
struct Shared {
    uint8_t stages[F::STAGES][F::STAGE];  // a's boxes, then b's
    uint8_t slab[F::LATER ? F::CONSUMERS / WARP : 1][SLABS][F::LATER ? SLAB : 16];
    __nv_bfloat16 bias[2][F::COLUMNS];  // of this tile and of the one before
    Pipeline<F::STAGES> ring;
    uint64_t bias_there;
    __device__ __forceinline__ uint32_t a(uint32_t stage) const { return shared_address(stages[0]) + stage * F::STAGE; }
    __device__ __forceinline__ uint32_t b(uint32_t stage) const { return a(stage) + F::DEEP * F::ROWS * ROW_BYTES; }
};

struct Problem {
    const __nv_bfloat16* bias;  // or nullptr: none
    const __nv_bfloat16* multiplier;
    __nv_bfloat16* output;
    Extent extent;
};

#ifdef __CUDACC__
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t barrier) {  // a cluster address
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
#endif

// Says that a warpgroup is done with a stage, to every CTA that loads for it. One thread speaks for all: products are
// the warpgroup's, so they have ended for its other warps too.
template <class F>
struct Releaser {
    uint32_t first;  // the first stage's barrier, in the CTA that this thread tells
    bool speaks;
    __device__ __forceinline__ Releaser(const Shared<F>& shared, const Extent& extent)
        : first(shared.ring.empty(0)), speaks(threadIdx.x % WARPGROUP < F::CLUSTER) {
        if (F::CLUSTER > 1)
            first = cluster_address(first, share_of<F>(blockIdx.x, extent) * F::CLUSTER + threadIdx.x % F::CLUSTER);
    }
    __device__ __forceinline__ void operator()(int stage) const {  // -1: no stage
        if (stage < 0 || !speaks) return;
        if (F::CLUSTER > 1) mbarrier_arrive_cluster(first + stage * uint32_t(sizeof(uint64_t)));
        else mbarrier_arrive(first + stage * uint32_t(sizeof(uint64_t)));
    }
};

// Adds `blocks` stages of this warpgroup to d; the first one of a tile (fresh) overwrites it. A product stays under
// way while the warpgroup waits for the next stage. group: this warpgroup's, the same in all lanes in a way that the
// compiler sees. before: the stage of the product that is under way, or -1; returns that of the last one. begun: called
// once the first product is under way.
template <class F, class Begun>
__device__ __forceinline__ int multiply(Shared<F>& shared, const Releaser<F>& release, PipelineState<F::STAGES>& at,
                                        int group, int blocks, bool fresh, int before, float* d, const Begun& begun) {
    for (int k = 0; k < blocks; ++k, at.next()) {
        const uint32_t a = descriptor_low(shared.a(at.stage) + group * (64 * F::HALVES * ROW_BYTES));
        const uint32_t b = descriptor_low(shared.b(at.stage));
        shared.ring.wait(at);
        wgmma_fence();
#pragma unroll
        for (int j = 0; j < F::DEEP; ++j)
#pragma unroll
            for (int h = 0; h < F::HALVES; ++h)
#pragma unroll
                for (int i = 0; i < BLOCK / 16; ++i)
                    wgmma_bf16<F::COLUMNS>(d + h * F::HALF,
                                           descriptor_of(a + ((j * F::ROWS + h * 64) * ROW_BYTES >> 4) + 2 * i),
                                           descriptor_of(b + (j * F::COLUMNS * ROW_BYTES >> 4) + 2 * i),
                                           !fresh || k || j || i);
        wgmma_commit_group();
        begun(k);
        wgmma_wait_group<1>();
        release(before);
        before = at.stage;
    }
    return before;
}

template <class F>
__device__ __forceinline__ void last_product(const Releaser<F>& release, int before, float* d) {
    wgmma_wait_group<0>();
    pin<F::COUNT>(d);
    release(before);
}

__device__ __forceinline__ float2 unpack(uint32_t both) {
    return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xFFFF0000));
}

// Two sums with their bias: hold() packs them until they are stored, leave() turns them into the output's pair.
struct Plain {
    static constexpr bool MULTIPLIES = false;
    static __device__ __forceinline__ uint32_t hold(float a, float b) { return pack_bf16(a, b); }
    static __device__ __forceinline__ uint32_t leave(uint32_t held, uint32_t) { return held; }
    static __device__ __forceinline__ uint32_t at_once(float a, float b, uint32_t) { return pack_bf16(a, b); }
};

// sigmoid(a) * multiplier. A sum waits as fp16, which has 11 bits; a gate that cuBLAS stores as bf16 has 8.
struct Gate {
    static constexpr bool MULTIPLIES = true;
    static __device__ __forceinline__ float gated(float gate, float multiplier) {
        return __fdividef(multiplier, 1.0f + __expf(-gate));
    }
    static __device__ __forceinline__ uint32_t hold(float a, float b) {
        const __half2 both = __floats2half2_rn(a, b);
        return *reinterpret_cast<const uint32_t*>(&both);
    }
    static __device__ __forceinline__ uint32_t at_once(float a, float b, uint32_t multiplier) {
        const float2 by = unpack(multiplier);
        return pack_bf16(gated(a, by.x), gated(b, by.y));
    }
    static __device__ __forceinline__ uint32_t leave(uint32_t held, uint32_t multiplier) {
        const float2 d = __half22float2(*reinterpret_cast<const __half2*>(&held));
        return at_once(d.x, d.y, multiplier);
    }
};

// Read and write the pair at `place`; its last column or both may lie outside the output. even: pairs are aligned.
__device__ __forceinline__ uint32_t read_pair(const __nv_bfloat16* from, size_t place, int left, bool even) {
    if (left <= 0) return 0;
    if (even) return __ldg(reinterpret_cast<const uint32_t*>(from + place));
    const unsigned short* bits = reinterpret_cast<const unsigned short*>(from) + place;
    return __ldg(bits) | (left > 1 ? uint32_t(__ldg(bits + 1)) << 16 : 0);
}

// Any n: stores COUNT sums of a thread (four of every 8 columns) straight from registers, from `row` and `column` of
// the warp on.
template <class E, int COUNT>
__device__ __forceinline__ void store_direct(const Problem& problem, const float* d, int row, int column) {
    const int lane = threadIdx.x % WARP, n = problem.extent.n;
    const bool even = n % 2 == 0;
    uint32_t multiplier[COUNT / 2], bias[COUNT / 4];
#pragma unroll
    for (int j = 0; j < COUNT / 4; ++j) {
        const int c = column + 8 * j + lane % 4 * 2;
        bias[j] = problem.bias ? read_pair(problem.bias, c, n - c, even) : 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int r = row + lane / 4 + half * 8;
            multiplier[2 * j + half] = E::MULTIPLIES && r < problem.extent.m
                                           ? read_pair(problem.multiplier, size_t(r) * n + c, n - c, even) : 0;
        }
    }
#pragma unroll
    for (int j = 0; j < COUNT / 4; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int r = row + lane / 4 + half * 8, c = column + 8 * j + lane % 4 * 2;
            if (r >= problem.extent.m || c >= n) continue;
            const float2 add = unpack(bias[j]);
            const uint32_t both = E::at_once(d[4 * j + 2 * half] + add.x, d[4 * j + 2 * half + 1] + add.y,
                                             multiplier[2 * j + half]);
            unsigned short* out = reinterpret_cast<unsigned short*>(problem.output) + size_t(r) * n + c;
            if (even) {
                *reinterpret_cast<uint32_t*>(out) = both;
            } else {
                out[0] = uint16_t(both);
                if (c + 1 < n) out[1] = uint16_t(both >> 16);
            }
        }
    asm volatile("" ::: "memory");  // what the next call reads is not read before
}

// The same for a TURNED form: four sums of a thread, where a's rows are columns of the output. row, column: of a and b.
template <class E>
__device__ __forceinline__ void store_turned(const Problem& problem, const float* d, int row, int column) {
    const int lane = threadIdx.x % WARP, n = problem.extent.n;
    uint16_t* out = reinterpret_cast<uint16_t*>(problem.output);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int c = row + lane / 4 + half * 8;
        if (c >= n) continue;
        const float add = problem.bias ? unpack(read_pair(problem.bias, c, 1, false)).x : 0.0f;
        uint32_t multiplier = 0;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int r = column + lane % 4 * 2 + i;
            if (E::MULTIPLIES && r < problem.extent.m)
                multiplier |= read_pair(problem.multiplier, size_t(r) * n + c, 1, false) << 16 * i;
        }
        const uint32_t both = E::at_once(d[2 * half] + add, d[2 * half + 1] + add, multiplier);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int r = column + lane % 4 * 2 + i;
            if (r < problem.extent.m) out[size_t(r) * n + c] = uint16_t(both >> 16 * i);
        }
    }
}

}  // namespace derby
