// Which tiles of which sequences a worker of latent attention takes.
//
// All sequences' tiles stand in one line. Each sequence is counted with `overhead` additional tiles in front, for the
// cost of its begin and end. The line is cut into equal stretches, one for each worker. Every worker computes its own
// from the lengths. Where no more sequences than workers can be cut into equal pieces that are no longer than such a
// stretch, each worker has one piece at most instead. Where no context is long enough to be cut (LATENT_UNCUT: both
// sides of a cut have `snap` tiles), and there are workers enough, each has one sequence.
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

// Each worker has one piece at most, and a sequence's pieces are equal within a tile. The range lies in the last four
// words of scratch. false: the longest piece would be longer than an equal stretch of the line. total: of the line;
// tiles: of sequence threadIdx.x. All threads of the block; no more sequences than threads.
template <int THREADS, int TILE>
__device__ bool find_even_piece(const LatentPlan& plan, int worker, int total, int tiles, int* scratch) {
    constexpr int SIZES = 4;  // of the longest piece, that are tried: a stretch has little more than the tiles
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int most = (total + plan.workers - 1) / plan.workers, all = total - plan.batch * plan.overhead;
    const int least = max(max((all + plan.workers - 1) / plan.workers, plan.least), most - SIZES + 1);
    if (least > max(most, plan.least)) return false;
    const auto pieces_of = [&](int size) {
        return tiles > 0 ? min((tiles + size - 1) / size, max(tiles / plan.snap, 1)) : 0;
    };
    int size = 0;
    for (int i = 0; size == 0 && i < SIZES; ++i) {
        if (i > 0 && least + i > most) return false;
        int pieces = __reduce_add_sync(~0u, pieces_of(least + i));
        __syncthreads();
        if (lane == 0) scratch[warp] = pieces;
        __syncthreads();
        pieces = 0;
#pragma unroll
        for (int j = 0; j < THREADS / 32; ++j) pieces += scratch[j];
        if (pieces <= plan.workers) size = least + i;
    }
    if (size == 0) return false;
    const int pieces = pieces_of(size), upto = sum_up_to(pieces, lane);
    __syncthreads();
    if (lane == 31) scratch[warp] = upto;
    __syncthreads();
    int mine = worker - (upto - pieces);
    for (int i = 0; i < warp; ++i) mine -= scratch[i];
    if (0 <= mine && mine < pieces) {
        int* found = scratch + THREADS / 32;
        const bool last = mine + 1 == pieces;
        found[0] = threadIdx.x, found[1] = tiles * mine / pieces;
        found[2] = threadIdx.x + last, found[3] = last ? 0 : tiles * (mine + 1) / pieces;
    }
    __syncthreads();
    return true;
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
    if (plan.batch <= min(plan.workers, THREADS) &&
        find_even_piece<THREADS, TILE>(plan, worker, total, first_tiles, scratch))
        return *reinterpret_cast<const LatentRange*>(found);
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
