// Which tiles of which sequences a worker of latent attention takes.
//
// All sequences' tiles stand in one line. Each sequence is counted with `overhead` additional tiles in front, for the
// cost of its begin and end. The line is cut into equal stretches, one for each worker. Every worker computes its own
// from the lengths. Where no context is long enough to be cut (LATENT_UNCUT: both sides of a cut have `snap` tiles), and
// there are workers enough, each has one sequence.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "lanes.cuh"

namespace derby {

#ifdef LATENT_UNCUT
constexpr bool UNCUT = true;
#else
constexpr bool UNCUT = false;
#endif

struct LatentPlan {
    const int* context_lens;
    int batch, longest;  // sequences; no length counts beyond `longest`
    int workers;         // that there are
    int overhead, least; // in tiles: of a sequence; of a worker, else fewer of them work
    int snap;            // in tiles: a shorter piece of a sequence than this goes to the neighbour
};

// From tile `first_tile` of sequence `first` up to, but without, tile `end_tile` of sequence `end`.
struct LatentRange {
    int first, first_tile, end, end_tile;
    __device__ __forceinline__ bool has(int sequence, int tile) const {
        return sequence < end || (sequence == end && tile < end_tile);
    }
};

__device__ __forceinline__ int length_of(const LatentPlan& plan, int sequence) {
    return max(min(__ldg(plan.context_lens + sequence), plan.longest), 0);
}
// An empty sequence counts as one tile, without a token.
template <int TILE>
__device__ __forceinline__ int tiles_of(int length) {
    return max((length + TILE - 1) / TILE, 1);
}

// TILE: tokens. All threads of the block. scratch: THREADS / 32 + 4 words of shared memory; the range lies in the last four.
template <int THREADS, int TILE>
__device__ const LatentRange& find_range(const LatentPlan& plan, int worker, int* scratch) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int* found = scratch + THREADS / 32;
    if (UNCUT && plan.batch <= plan.workers) {  // each has a sequence at most, whatever its length is
        if (threadIdx.x < 4) found[threadIdx.x] = threadIdx.x % 2 ? 0 : min(worker + int(threadIdx.x) / 2, plan.batch);
        __syncthreads();
        return *reinterpret_cast<const LatentRange*>(found);
    }
    const int first_tiles = threadIdx.x < plan.batch ? tiles_of<TILE>(length_of(plan, threadIdx.x)) : 0;
    int sum = threadIdx.x < plan.batch ? first_tiles + plan.overhead : 0;
    for (int b = threadIdx.x + THREADS; b < plan.batch; b += THREADS) sum += tiles_of<TILE>(length_of(plan, b)) + plan.overhead;
    sum = __reduce_add_sync(~0u, sum);
    if (lane == 0) scratch[warp] = sum;
    if (threadIdx.x < 4) found[threadIdx.x] = threadIdx.x % 2 ? 0 : plan.batch;
    __syncthreads();
    int total = 0;
#pragma unroll
    for (int i = 0; i < THREADS / 32; ++i) total += scratch[i];
    const int active = max(min(plan.workers, total / plan.least), 1);
    int64_t ends[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) ends[i] = int64_t(min(worker + i, active)) * total / active;
    int before = 0;  // of the line, all sequences before this round's
    for (int round = 0; round < plan.batch; round += THREADS) {
        const int b = round + threadIdx.x;
        const int tiles = round == 0 ? first_tiles : b < plan.batch ? tiles_of<TILE>(length_of(plan, b)) : 0;
        const int cost = b < plan.batch ? tiles + plan.overhead : 0;
        const int upto = sum_up_to(cost, lane);
        __syncthreads();
        if (lane == 31) scratch[warp] = upto;
        __syncthreads();
        int start = before + upto - cost;
#pragma unroll
        for (int i = 0; i < THREADS / 32; ++i) {
            if (i < warp) start += scratch[i];
            before += scratch[i];
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (ends[i] < start || ends[i] >= start + cost) continue;
            const int tile = int(ends[i]) - start - plan.overhead;
            const bool whole = tile < plan.snap, gone = tiles - tile < plan.snap;
            found[2 * i] = !whole && gone ? b + 1 : b;
            found[2 * i + 1] = whole || gone ? 0 : tile;
        }
    }
    __syncthreads();
    return *reinterpret_cast<const LatentRange*>(found);
}

}  // namespace derby
