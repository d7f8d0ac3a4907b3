// A ring of stages in shared memory between producers (TMA or cp.async) and consumers, guarded by two mbarriers a
// stage: `full` (its bytes are there) and `empty` (its readers are done with it).
//
//     struct Shared { uint8_t tiles[4][16384]; Pipeline<4> ring; };  // tiles first: they want 1024-byte alignment
//     if (threadIdx.x == 0) { shared.ring.init(1, CONSUMER_WARPS); fence_mbarrier_init(); }
//     __syncthreads();        // cluster_sync() in a cluster
//     PipelineState<4> at;    // of each side, from its first stage on
//     // Producer, one thread:
//     for (...; at.next())
//         tma_load(shared_address(shared.tiles[at.stage]), &map, shared.ring.acquire(at, 16384), x, y);
//     // Consumer, every thread:
//     for (...; at.next()) { shared.ring.wait(at); ...; shared.ring.release(at); }
//
// Constraints: every side visits all stages in order; the producer stays until its last bytes are consumed, or nothing
// reads them; in a cluster with multicast no CTA may end while another still arrives at its barriers (cluster_sync).
#pragma once
#include "tma.cuh"

namespace derby {

// Where one side of a ring stands: the stage, and the parity of the phase that it waits for as a consumer.
template <int STAGES>
struct PipelineState {
    static_assert(STAGES >= 1, "a ring has a stage");
    uint32_t stage = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

template <int STAGES>
struct Pipeline {
    static_assert(2 * STAGES * sizeof(uint64_t) <= 1024, "a ring's barriers are a small part of shared memory");
    using State = PipelineState<STAGES>;
    uint64_t full_barriers[STAGES], empty_barriers[STAGES];

    __device__ __forceinline__ uint32_t full(uint32_t stage) const { return shared_address(&full_barriers[stage]); }
    __device__ __forceinline__ uint32_t empty(uint32_t stage) const { return shared_address(&empty_barriers[stage]); }

    // One thread, before any use; then fence_mbarrier_init() and a barrier of all threads. full_arrivals: 1 for
    // acquire() with bytes, and one for each thread of other producers. empty_arrivals: consumer warps, in all CTAs
    // that release.
    __device__ __forceinline__ void init(int full_arrivals, int empty_arrivals) {
        for (int stage = 0; stage < STAGES; ++stage) {
            mbarrier_init(full(stage), full_arrivals);
            mbarrier_init(empty(stage), empty_arrivals);
        }
    }

    // Producer: waits until the stage may be written.
    __device__ __forceinline__ void wait_empty(const State& at) const { mbarrier_wait(empty(at.stage), at.parity ^ 1); }

    // Producer, one thread: the same, and announces the bytes that will come. Returns the mbarrier for the copies.
    __device__ __forceinline__ uint32_t acquire(const State& at, uint32_t bytes) const {
        wait_empty(at);
        const uint32_t barrier = full(at.stage);
        mbarrier_arrive_expect_tx(barrier, bytes);
        return barrier;
    }

    // Producer with cp.async, every thread that copied (each counts in full_arrivals): arrives when its copies land.
    // Products by wgmma want fence_async_proxy() by these threads first, hence a wait and commit() instead.
    __device__ __forceinline__ void commit_copies(const State& at) const {
        mbarrier_arrive_on_cp_async(full(at.stage));
    }

    // Producer that wrote with ordinary stores (and fence_async_proxy() where wgmma or TMA reads them).
    __device__ __forceinline__ void commit(const State& at) const { mbarrier_arrive(full(at.stage)); }

    // Consumer: waits for the stage's bytes.
    __device__ __forceinline__ void wait(const State& at) const { mbarrier_wait(full(at.stage), at.parity); }

    // Consumer warp, all lanes: the stage may be written again once every consumer warp has said so.
    __device__ __forceinline__ void release(const State& at) const {
        if (threadIdx.x % 32 == 0) mbarrier_arrive(empty(at.stage));
    }

    // The same in each CTA of a cluster of CTAS, whose producers multicast into this one.
    template <int CTAS>
    __device__ __forceinline__ void release_cluster(const State& at) const {
        static_assert(CTAS <= 16, "a cluster has 16 CTAs at most");
        if (threadIdx.x % 32 < CTAS) mbarrier_arrive_remote(empty(at.stage), threadIdx.x % 32);
    }
};

}  // namespace derby
