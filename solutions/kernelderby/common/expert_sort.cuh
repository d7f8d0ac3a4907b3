// Sorts the pairs (token, expert) of a routing by expert, with one cluster of blocks in one launch.
//
// Each block counts its share of the pairs in shared memory; the number that an atomic returns is the pair's place among
// the block's pairs of that expert, and stays in a register. The blocks give each other their counts through distributed
// shared memory, so after one cluster barrier every block knows where each expert begins and where its own pairs go.

#pragma once
#include "cluster.cuh"

constexpr int EXPERTS = 128;
constexpr int MOST_BLOCKS = 16;
constexpr int HELD = 2;  // int4 of pairs that a thread keeps; the rest of a share is read twice

struct SortShared {
  int counts[MOST_BLOCKS][EXPERTS];  // pairs of each block; [own rank] while it counts
  int held[EXPERTS];                 // of them those in registers
  int total[EXPERTS];                // pairs of an expert in all blocks
  int end[EXPERTS];                  // units (what UNIT pairs make) of all experts up to and with this one
  int cursor[EXPERTS];               // where the block's pairs of an expert go
  int warp_sums[EXPERTS / 32];
};

// One routing for a block of the cluster: ids[4 * quads], experts of the pairs.
template <int UNIT>  // an expert begins at a multiple of UNIT
struct ExpertSort {
  SortShared& shared;
  const int4* ids;
  int quads, blocks, rank;
  int expert[4 * HELD], place[4 * HELD];

  __device__ __forceinline__ ExpertSort(SortShared& shared, const int* ids, int quads)
      : shared(shared), ids(reinterpret_cast<const int4*>(ids)), quads(quads), blocks(__clusterSizeInBlocks()),
        rank(__clusterRelativeBlockRank()) {}

  __device__ __forceinline__ int quad(int turn) const { return (turn * blocks + rank) * blockDim.x + threadIdx.x; }
  __device__ __forceinline__ bool more() const { return quads > HELD * blocks * int(blockDim.x); }
  __device__ static __forceinline__ bool known(int expert) { return unsigned(expert) < EXPERTS; }

  // After it every block knows total, end and cursor. More than EXPERTS threads.
  __device__ __forceinline__ void count() {
    if (blocks > 1) __cluster_barrier_arrive();  // that all have started, before anyone writes to a neighbour
    int thread = threadIdx.x;
    int4 four[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++) four[i] = quad(i) < quads ? __ldg(ids + quad(i)) : make_int4(-1, -1, -1, -1);
    if (thread < EXPERTS) shared.counts[rank][thread] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < HELD; i++) {
      expert[4 * i] = four[i].x, expert[4 * i + 1] = four[i].y;
      expert[4 * i + 2] = four[i].z, expert[4 * i + 3] = four[i].w;
    }
#pragma unroll
    for (int i = 0; i < 4 * HELD; i++) {
      if (known(expert[i])) place[i] = atomicAdd(&shared.counts[rank][expert[i]], 1);
    }
    __syncthreads();
    if (more()) count_the_rest();
    if (blocks > 1) {
      __cluster_barrier_wait();
      for (int i = thread; i < blocks * EXPERTS; i += blockDim.x) {
        int other = i / EXPERTS, e = i % EXPERTS;
        if (other != rank) in_block(shared, other).counts[rank][e] = shared.counts[rank][e];
      }
      cluster_sync();
    }
    scan();
  }

  __device__ __forceinline__ void count_the_rest() {
    if (threadIdx.x < EXPERTS) shared.held[threadIdx.x] = shared.counts[rank][threadIdx.x];
    __syncthreads();
    rest([&](int, int e) { atomicAdd(&shared.counts[rank][e], 1); });
    __syncthreads();
  }

  __device__ __forceinline__ void scan() {
    int e = threadIdx.x, before = 0, total = 0, units = 0;
    if (e < EXPERTS) {
      for (int i = 0; i < blocks; i++) {
        int pairs = shared.counts[i][e];
        before += i < rank ? pairs : 0;
        total += pairs;
      }
      units = (total + UNIT - 1) / UNIT;
    }
    int end = units;
    if (e < EXPERTS) {  // whole warps
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        int below = __shfl_up_sync(0xffffffffu, end, step);
        if (e % 32 >= step) end += below;
      }
      if (e % 32 == 31) shared.warp_sums[e / 32] = end;
    }
    __syncthreads();
    if (e < EXPERTS) {
      for (int warp = 0; warp < e / 32; warp++) end += shared.warp_sums[warp];
      shared.total[e] = total;
      shared.end[e] = end;
      shared.cursor[e] = (end - units) * UNIT + before;
    }
    __syncthreads();
  }

  // Calls f(pair, expert) for the pairs that are not in registers.
  template <class F>
  __device__ __forceinline__ void rest(F f) const {
    for (int turn = HELD; quad(turn) < quads; turn++) {
      int4 four = __ldg(ids + quad(turn));
      int e[4] = {four.x, four.y, four.z, four.w};
      for (int j = 0; j < 4; j++) if (known(e[j])) f(4 * quad(turn) + j, e[j]);
    }
  }

  // Calls f(pair, slot) for each of the block's pairs and the slot that it goes to.
  template <class F>
  __device__ __forceinline__ void scatter(F f) {
#pragma unroll
    for (int i = 0; i < 4 * HELD; i++) {
      if (known(expert[i])) f(4 * quad(i / 4) + i % 4, shared.cursor[expert[i]] + place[i]);
    }
    if (!more()) return;
    __syncthreads();
    if (threadIdx.x < EXPERTS) shared.cursor[threadIdx.x] += shared.held[threadIdx.x];
    __syncthreads();
    rest([&](int pair, int e) { f(pair, atomicAdd(&shared.cursor[e], 1)); });
  }
};
