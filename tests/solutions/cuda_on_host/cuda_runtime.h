// CUDA C++ on the CPU, for tests: enough of cuda_runtime.h to compile a kernel with g++ and to run it block by block.
//
// Every CUDA thread is a fiber that runs until it waits for others. The blocks of a cluster run together, clusters one
// after the other. Blocks and fibers are taken in a fixed order, which EMULATED_ORDER=reversed in the environment
// reverses, so that results which depend on it show. Shared memory starts as garbage. A barrier that not all threads
// reach ends the process.

#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) longlong2 { long long x, y; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
enum {
  cudaLaunchAttributeClusterDimension,
  cudaFuncAttributeNonPortableClusterSizeAllowed,
  cudaLaunchAttributeProgrammaticStreamSerialization
};
struct cudaLaunchAttribute {
  int id;
  struct { dim3 clusterDim; int programmaticStreamSerializationAllowed; } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, int, int) { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }

inline dim3 gridDim, blockDim;

namespace emulated {

struct Barrier {
  int size = 0, arrived = 0;
  long generation = 0;
};
struct Block {
  dim3 index;
  int rank = 0;
  Barrier barrier;
  long count[2] = {0, 0};  // of __syncthreads_count, by turn
  std::vector<Barrier> warps;
  std::vector<uint64_t> slots;  // one a thread, for exchange within its warp
  std::vector<uint64_t> shared;
};
struct Fiber {
  ucontext_t context;  // where it begins
  void* place[5];      // where it goes on
  bool begun = false;
  std::unique_ptr<char[]> stack;
  Block* block;
  unsigned thread;
  long cluster_generation = 0;
  bool done = false;
};

inline std::vector<std::unique_ptr<Block>> blocks;  // of the cluster that runs
inline std::vector<std::unique_ptr<Fiber>> fibers;
inline Barrier cluster;
inline Fiber* current;
inline void* scheduler[5];
inline std::function<void()> body;
inline long progress;
inline std::function<bool()> when_stuck;  // lands a copy that is under way; whether there was one

// Not swapcontext, which asks the system for the signals that are let through, twice a switch: half of all the time.
[[gnu::noinline]] inline void go_on(void** place) { __builtin_longjmp(place, 1); }
[[gnu::noinline]] inline void yield() {
  if (!__builtin_setjmp(current->place)) go_on(scheduler);
}
[[gnu::noinline]] inline void resume() {
  if (__builtin_setjmp(scheduler)) return;
  if (current->begun) go_on(current->place);
  current->begun = true;
  setcontext(&current->context);
}
inline long arrive(Barrier& barrier) {
  long generation = barrier.generation;
  progress++;
  if (++barrier.arrived == barrier.size) {
    barrier.arrived = 0;
    barrier.generation++;
  }
  return generation;
}
inline void wait(Barrier& barrier, long generation) {
  while (barrier.generation == generation) yield();
}
inline void meet(Barrier& barrier) { wait(barrier, arrive(barrier)); }
inline Barrier& warp() { return current->block->warps[current->thread / 32]; }
inline void start() {
  body();
  current->done = true;
  progress++;
  go_on(scheduler);
}
struct Warp {
  uint64_t values[32];
  int count;
  uint64_t operator[](unsigned lane) const { return values[lane]; }
  int size() const { return count; }
  const uint64_t* begin() const { return values; }
  const uint64_t* end() const { return values + count; }
};
// What each of the warp's threads brings, seen by all.
inline Warp exchange(uint64_t value) {
  Block& block = *current->block;
  block.slots[current->thread] = value;
  meet(warp());
  Warp all;
  all.count = warp().size;
  memcpy(all.values, block.slots.data() + current->thread / 32 * 32, all.count * sizeof(uint64_t));
  meet(warp());
  return all;
}
inline void run_cluster(size_t shared_bytes, bool reversed) {
  size_t threads = blockDim.x;
  for (auto& block : blocks) {
    block->barrier.size = threads;
    block->slots.assign(threads, 0);
    block->warps.assign((threads + 31) / 32, {});
    for (size_t w = 0; w < block->warps.size(); w++) block->warps[w].size = std::min<size_t>(32, threads - 32 * w);
    block->shared.assign(shared_bytes / 8 + 2, 0xa5a5a5a5a5a5a5a5);
    for (unsigned t = 0; t < threads; t++) {
      auto fiber = std::make_unique<Fiber>();
      constexpr size_t bytes = 64 * 1024;
      fiber->stack.reset(new char[bytes]);
      fiber->block = block.get();
      fiber->thread = t;
      getcontext(&fiber->context);
      fiber->context.uc_stack = {fiber->stack.get(), 0, bytes};
      fiber->context.uc_link = nullptr;
      makecontext(&fiber->context, start, 0);
      fibers.push_back(std::move(fiber));
    }
  }
  cluster = {};
  cluster.size = fibers.size();
  if (reversed) std::reverse(fibers.begin(), fibers.end());
  for (size_t left = fibers.size(); left;) {
    long before = progress;
    for (auto& fiber : fibers) {
      if (fiber->done) continue;
      current = fiber.get();
      resume();
      left -= fiber->done;
    }
    if (progress == before && !(when_stuck && when_stuck())) {
      fprintf(stderr, "emulated CUDA: %zu threads wait for others that never come\n", left);
      abort();
    }
  }
  fibers.clear();
  blocks.clear();
}

struct Thread { struct { operator unsigned() const { return current->thread; } } x; };
struct BlockIndex {
  struct X { operator unsigned() const { return current->block->index.x; } } x;
  struct Y { operator unsigned() const { return current->block->index.y; } } y;
  struct Z { operator unsigned() const { return current->block->index.z; } } z;
};

}  // namespace emulated

inline emulated::Thread threadIdx;
inline emulated::BlockIndex blockIdx;

inline void* emulated_shared_memory() { return emulated::current->block->shared.data(); }

template <class Kernel, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, Kernel kernel, Arguments... arguments) {
  unsigned cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; i++) {
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) cluster = config->attrs[i].val.clusterDim.x;
  }
  if (config->gridDim.x % cluster || config->blockDim.x > 1024 || !config->gridDim.x || !config->gridDim.y) return cudaErrorInvalidValue;
  gridDim = config->gridDim;
  blockDim = config->blockDim;
  emulated::body = [&] { kernel(arguments...); };
  const char* order = getenv("EMULATED_ORDER");
  bool reversed = order && !strcmp(order, "reversed");
  unsigned clusters = config->gridDim.x / cluster, rows = config->gridDim.y, all = clusters * rows * config->gridDim.z;
  for (unsigned n = 0; n < all; n++) {
    unsigned place = reversed ? all - 1 - n : n, i = place % clusters, y = place / clusters % rows;
    for (unsigned rank = 0; rank < cluster; rank++) {
      emulated::blocks.push_back(std::make_unique<emulated::Block>());
      emulated::blocks.back()->index = dim3(i * cluster + rank, y, place / clusters / rows);
      emulated::blocks.back()->rank = rank;
    }
    emulated::run_cluster(config->dynamicSmemBytes, reversed);
  }
  return cudaSuccess;
}

inline void __syncthreads() { emulated::meet(emulated::current->block->barrier); }
inline int __syncthreads_count(int predicate) {
  emulated::Block& block = *emulated::current->block;
  long& count = block.count[block.barrier.generation & 1];
  if (block.barrier.arrived == 0) count = 0;
  count += predicate != 0;
  __syncthreads();
  return count;
}
inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) > 0; }
inline void __syncwarp() { emulated::meet(emulated::warp()); }
inline unsigned __ballot_sync(unsigned, int predicate) {
  auto all = emulated::exchange(predicate != 0);
  unsigned mask = 0;
  for (int i = 0; i < all.size(); i++) mask |= unsigned(all[i]) << i;
  return mask;
}
inline int __shfl_up_sync(unsigned, int value, unsigned delta) {
  auto all = emulated::exchange(uint32_t(value));
  unsigned lane = emulated::current->thread % 32;
  return int(uint32_t(all[lane >= delta ? lane - delta : lane]));
}
inline unsigned __reduce_add_sync(unsigned, unsigned value) {
  unsigned sum = 0;
  for (uint64_t v : emulated::exchange(value)) sum += unsigned(v);
  return sum;
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  for (uint64_t v : emulated::exchange(value)) value = std::max(value, unsigned(v));
  return value;
}
inline unsigned __reduce_min_sync(unsigned, unsigned value) {
  for (uint64_t v : emulated::exchange(value)) value = std::min(value, unsigned(v));
  return value;
}
inline float __shfl_xor_sync(unsigned, float value, unsigned lanes) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  bits = uint32_t(emulated::exchange(bits)[emulated::current->thread % 32 ^ lanes]);
  memcpy(&value, &bits, 4);
  return value;
}
template <class T>
T atomicAdd(T* address, T value) { T old = *address; *address += value; return old; }

inline unsigned __clusterRelativeBlockRank() { return emulated::current->block->rank; }
inline unsigned __clusterSizeInBlocks() { return emulated::blocks.size(); }
inline void* __cluster_map_shared_rank(const void* mine, unsigned rank) {
  auto offset = (const char*)mine - (const char*)emulated_shared_memory();
  return (char*)emulated::blocks[rank]->shared.data() + offset;
}
inline void __cluster_barrier_arrive() { emulated::current->cluster_generation = emulated::arrive(emulated::cluster); }
inline void __cluster_barrier_wait() { emulated::wait(emulated::cluster, emulated::current->cluster_generation); }

template <class T> T __ldcs(const T* address) { return *address; }
template <class T> T __ldcg(const T* address) { return *address; }
template <class T> void __stcg(T* address, T value) { *address = value; }
inline void __threadfence() {}
template <class T> T __ldg(const T* address) { return *address; }
template <class T> void __stcs(T* address, T value) { *address = value; }
inline unsigned __float_as_uint(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }
inline float __uint_as_float(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
inline float __expf(float value) { return expf(value); }
inline float rsqrtf(float value) { return 1.0f / sqrtf(value); }
inline float __fdividef(float a, float b) { return a / b; }
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
using std::max;
using std::min;
