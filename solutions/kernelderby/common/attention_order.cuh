// The order of a batch's sequences in long attention: those with most keys first, so that what is begun last is short.
#pragma once
#include "attention_shape.cuh"
#include "lanes.cuh"

namespace derby {

// All threads, and a barrier after it. Every CTA does it for itself. It costs a wait for the lengths and, for each
// sequence of a thread, as many comparisons as there are sequences.
template <typename S>
__device__ __forceinline__ void sort_sequences(const AttentionCall& call, SharedMap<S> shared) {
    constexpr int MINE = (S::MOST_SORTED + S::THREADS - 1) / S::THREADS;  // sequences of a thread, at most
    int keys[MINE], tiles[MINE], place[MINE];
#pragma unroll
    for (int i = 0; i < MINE; ++i) {
        const int s = threadIdx.x + i * S::THREADS;
        if (s >= call.num_seqs) break;
        keys[i] = S::PAGED ? call.key_lengths[s] : call.key_lengths[s + 1] - call.key_lengths[s];
        tiles[i] = divide(call.cu_seqlens_q[s + 1] - call.cu_seqlens_q[s] + call.tile_tokens - 1, call.by_tile_tokens);
        store_shared(shared.before(s), keys[i]);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < MINE; ++i) {
        const int s = threadIdx.x + i * S::THREADS;
        if (s >= call.num_seqs) break;
        place[i] = 0;
#pragma unroll 16
        for (int other = 0; other < call.num_seqs; ++other) {
            const int more = load_shared_i32(shared.before(other));
            place[i] += more > keys[i] || (more == keys[i] && other < s);
        }
        store_shared(shared.in_order(place[i]), s);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < MINE; ++i)
        if (threadIdx.x + i * S::THREADS < call.num_seqs) store_shared(shared.before(place[i]), tiles[i]);
    __syncthreads();
    if (threadIdx.x < 32) {
        int all = 0;
        for (int first = 0; first < call.num_seqs; first += 32) {
            const int at = first + threadIdx.x, here = at < call.num_seqs ? load_shared_i32(shared.before(at)) : 0;
            const int sum = sum_up_to(here, threadIdx.x);
            if (at < call.num_seqs) store_shared(shared.before(at), all + sum - here);
            all += __shfl_sync(0xffffffff, sum, 31);
        }
        if (threadIdx.x == 0) store_shared(shared.before(call.num_seqs), all);
    }
}

// The sequence of the batch's tile number `tile`, which becomes its number in the sequence. The result is negative if the
// batch has fewer tiles. The whole warp calls it.
template <typename S>
__device__ __forceinline__ int sequence_of(const AttentionCall& call, SharedMap<S> shared, int& tile, int lane) {
    int low = 0, count = call.num_seqs;
    while (count > 1) {
        const int step = (count + 31) / 32, place = low + lane * step;
        const bool begun = lane * step < count && load_shared_i32(shared.before(place)) <= tile;
        const int last = 31 - __clz(__ballot_sync(0xffffffff, begun) | 1);
        count = min(step, count - last * step);
        low += last * step;
    }
    // Its last rows come first, since they see most.
    tile = load_shared_i32(shared.before(low + 1)) - 1 - tile;
    return load_shared_i32(shared.in_order(low));
}

}  // namespace derby
