// The experts' kernels: roles of threads, barriers, stages of loads, the arithmetic of a tile.
#pragma once
#include <cstdint>

#include "ptx.cuh"

namespace derby {

// For compute-sanitizer's racecheck, which does not see that __syncwarp orders a warp's reads before the warp's single
// arrival at a barrier: every thread arrives.
#ifdef DERBY_RACECHECK
constexpr bool RACECHECK = true;
#else
constexpr bool RACECHECK = false;
#endif

// A CTA's 16 hardware barriers, by what their threads wait for. Hardware barrier 0 is __syncthreads's as well, which
// the GEMMs do not call.
enum class NamedBarrier : int {
    SHARE_READY = 0,      // all threads: row starts and this CTA's share of the work are in shared memory
    CONSUMERS_DONE = 1,   // both consumer warpgroups: a step of a tile's end is done
    PRODUCERS_READY = 2,  // derby_moe_sm90's producer warpgroup: as SHARE_READY, without waiting for the consumers
    ROUTED = 3,           // all threads of derby_moe_sm90: the consumers have routed the few tokens
    WARPGROUP_DONE = 6,   // one consumer warpgroup, number 6 + its index: its pairs are there, or no longer needed
};

__device__ __forceinline__ constexpr NamedBarrier operator+(NamedBarrier barrier, int index) {
    return static_cast<NamedBarrier>(static_cast<int>(barrier) + index);
}

constexpr int BLOCK = 128;                                        // bytes of K of a k block; weight rows of half a tile
constexpr int WARP = 32, WARPGROUP = 128;                         // threads
constexpr int CONSUMERS = 2 * WARPGROUP, PRODUCERS = WARPGROUP;   // threads of a CTA that multiply, that load
constexpr int GATHERERS = PRODUCERS - WARP;                       // producers that gather; the last warp is for TMA
constexpr int THREADS = CONSUMERS + PRODUCERS;
constexpr int CONSUMER_REGISTERS = 224, PRODUCER_REGISTERS = 56;  // a thread
constexpr int SHARED_LIMIT = 227 * 1024;                          // bytes a CTA of sm_90 may have
constexpr int WEIGHT_BYTES = 2 * BLOCK * BLOCK;                   // of a stage
constexpr float FP8_MOST = 448.0f;                                // the largest e4m3 value
constexpr int TASKS = 8;                                          // places for tasks, see Shared

static_assert(CONSUMERS * CONSUMER_REGISTERS + PRODUCERS * PRODUCER_REGISTERS <= 65536, "an SM's registers");

// Where one side of the ring of loads stands.
struct Stage {
    int index = 0;
    uint32_t parity = 0;
    template <int STAGES>
    __device__ __forceinline__ void next() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

// Says that this warp is done with stage s; in a cluster, to both CTAs that load into it.
template <class Shared>
__device__ __forceinline__ void release(Shared& shared, int s, int lane) {
    __syncwarp();
    if constexpr (Shared::CTAS == 1) {
        if (RACECHECK || lane == 0) mbarrier_arrive(shared_address(&shared.empty[s]));
    } else {
        if (lane < Shared::CTAS) mbarrier_arrive_remote(shared_address(&shared.empty[s]), lane);
    }
}

// x * sigmoid(x) = h + h tanh(h) with h = x / 2: one special function.
__device__ __forceinline__ float silu(float x) {
    const float h = 0.5f * x;
    return fmaf(h, tanh_approx(h), h);
}

// Adds a k block's product of a swap-AB tile, times both scales.
template <int N>
__device__ __forceinline__ void promote(float* sum, const float (&product)[N / 2], const float2 (&x_scale)[N / 8],
                                        float w_scale) {
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
        const float left = x_scale[j].x * w_scale, right = x_scale[j].y * w_scale;
        sum[4 * j] += product[4 * j] * left;
        sum[4 * j + 1] += product[4 * j + 1] * right;
        sum[4 * j + 2] += product[4 * j + 2] * left;
        sum[4 * j + 3] += product[4 * j + 3] * right;
    }
}

template <int ROWS>
constexpr int PIECE_SIZE = ROWS * 2 * BLOCK / 4;  // of a split tile, float4

}  // namespace derby
