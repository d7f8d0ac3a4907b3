// Output that is stored by TMA, in parts, while the next tile's products are computed; n is a multiple of 8.
#pragma once
#include "dense_parts.cuh"

namespace derby {

// A warp's sums of a tile, packed: PARTS of 8 rows x 64 columns.
template <class E, class F>
struct Later {
    static constexpr int COUNT = F::COUNT, PARTS = COUNT / 16, ACROSS = F::COLUMNS / 64;
    uint32_t held[COUNT / 2];  // pairs of columns
    uint32_t multiplier[8];    // of the next part
    int row, column;           // of this warp's first
    bool any = false;

    // Of part p: its rows begin `down(p)` below the warp's first, its columns `across(p)` beside.
    static __device__ __forceinline__ int down(int p) { return p / (2 * ACROSS) * 64 + p % 2 * 8; }
    static __device__ __forceinline__ int across(int p) { return p / 2 % ACROSS * 64; }

    __device__ __forceinline__ void take(const float* d, const __nv_bfloat16* bias, bool biased, int row_, int column_) {
        row = row_, column = column_, any = true;
        const int q = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < COUNT / 4; ++i) {
            float2 add = make_float2(0.0f, 0.0f);
            if (biased) add = unpack(*reinterpret_cast<const uint32_t*>(bias + i % (F::HALF / 4) * 8 + 2 * q));
            held[2 * i] = E::hold(d[4 * i] + add.x, d[4 * i + 1] + add.y);
            held[2 * i + 1] = E::hold(d[4 * i + 2] + add.x, d[4 * i + 3] + add.y);
        }
    }

    __device__ __forceinline__ void read_multiplier(const Problem& problem, int part) {
        if (!E::MULTIPLIES) return;
        const int lane = threadIdx.x % WARP, r = row + lane / 4 + down(part), c = column + across(part);
        const __nv_bfloat16* from = problem.multiplier + size_t(r) * problem.extent.n + c + lane % 4 * 2;
#pragma unroll
        for (int t = 0; t < 8; ++t)
            multiplier[t] = r < problem.extent.m && c + 8 * t < problem.extent.n
                                ? __ldg(reinterpret_cast<const uint32_t*>(from + 8 * t)) : 0;
    }

    // A part into 1 KB of shared memory, with the 128-byte swizzle. PART: one that compile time knows.
    template <int PART = 0>
    __device__ __forceinline__ void write(uint8_t* slab, int part) const {
        const int lane = threadIdx.x % WARP, r = lane / 4, q = lane % 4;
        if (part == PART) {
#pragma unroll
            for (int t = 0; t < 8; ++t)
                *reinterpret_cast<uint32_t*>(slab + r * 128 + (t ^ r) * 16 + q * 4) =
                    E::leave(held[(PART / 2 * 8 + t) * 2 + PART % 2], multiplier[t]);
        } else if constexpr (PART + 1 < PARTS) {
            write<PART + 1>(slab, part);
        }
    }

    __device__ __forceinline__ void finish(Shared<F>& shared, const CUtensorMap* out_map, const Problem& problem,
                                           int part) {
        const int lane = threadIdx.x % WARP;
        uint8_t* slab = shared.slab[threadIdx.x / WARP][part % SLABS];
        if (lane == 0) bulk_wait_group_read<SLABS - 1>();
        __syncwarp();
        write(slab, part);
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) {
            tma_store(out_map, shared_address(slab), column + across(part), row + down(part));
            bulk_commit_group();
        }
        if (part + 1 < PARTS) read_multiplier(problem, part + 1);
    }
};

}  // namespace derby
