// In the place of solutions/kernelderby/common/ptx.cuh: the same functions on the CPU, as far as tests need them.
//
// What is asynchronous happens as late as it may: a load when its mbarrier is waited for, a store when its group is, a
// product of a warpgroup when its group is. So a missing wait, or memory that is written over too early, shows. Addresses
// in shared memory are offsets into the block's; there are no clusters.

#pragma once
#include <deque>
#include <functional>
#include <map>

#include "cuda_bf16.h"
#include "cuda_runtime.h"

#define __grid_constant__
#define __align__(n)
enum { cudaFuncAttributeMaxDynamicSharedMemorySize = 2 };
struct __nv_bfloat16 { unsigned short bits; };
struct alignas(8) float2 { float x, y; };
struct alignas(8) int2 { int x, y; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float(unsigned(x.bits) << 16); }
inline __nv_bfloat16 __float2bfloat16(float x) { return {bfloat16_bits(x)}; }
inline unsigned __shfl_sync(unsigned, unsigned value, int lane) { return unsigned(emulated::exchange(value)[lane]); }
inline float __shfl_up_sync(unsigned, float value, unsigned delta) {
  return __uint_as_float(unsigned(__shfl_up_sync(~0u, int(__float_as_uint(value)), delta)));
}

namespace derby {

inline unsigned char* shared_at(uint32_t address) {
  if (address >= emulated::current->block->shared.size() * 8) abort();
  return reinterpret_cast<unsigned char*>(emulated::current->block->shared.data()) + address;
}
inline uint32_t shared_address(const void* place) {
  return uint32_t((const unsigned char*)place - (const unsigned char*)emulated_shared_memory());
}

struct ByteBarrier {
  int bytes;
  uint8_t arrivals, pending, phase, unused;
  void changed() {
    emulated::progress++;
    if (pending == 0 && bytes == 0) pending = arrivals, phase ^= 1;
  }
};
using Work = std::function<void()>;
inline std::map<std::pair<emulated::Block*, uint32_t>, std::deque<Work>> loads;  // of a barrier, not yet done
inline ByteBarrier& barrier_at(uint32_t address) { return *reinterpret_cast<ByteBarrier*>(shared_at(address)); }
inline void mbarrier_init(uint32_t barrier, int arrivals) {
  barrier_at(barrier) = {0, uint8_t(arrivals), uint8_t(arrivals), 0, 0};
  loads[{emulated::current->block, barrier}].clear();
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(uint32_t barrier) { barrier_at(barrier).pending--, barrier_at(barrier).changed(); }
inline void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  barrier_at(barrier).bytes += int(bytes), mbarrier_arrive(barrier);
}
inline void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  auto& waiting = loads[{emulated::current->block, barrier}];
  while (uint32_t(barrier_at(barrier).phase) == parity) {
    for (; !waiting.empty(); waiting.pop_front()) waiting.front()();
    if (uint32_t(barrier_at(barrier).phase) == parity) emulated::yield();
  }
}

inline std::map<std::pair<emulated::Block*, int>, emulated::Barrier> named_barriers;
template <class Barrier>
void named_barrier_sync(Barrier barrier, int threads) {
  auto& one = named_barriers[{emulated::current->block, int(barrier)}];
  one.size = threads;
  emulated::meet(one);
}
inline void wait_for_previous_kernel() {}
inline void let_next_kernel_start() {}

inline float exp2_approx(float x) { return exp2f(x); }
inline uint32_t pack_bf16(float low, float high) { return uint32_t(bfloat16_bits(high)) << 16 | bfloat16_bits(low); }

inline uint4 load_shared16(uint32_t from) { return *reinterpret_cast<uint4*>(shared_at(from)); }
inline void store_shared(uint32_t to, uint32_t x) { memcpy(shared_at(to), &x, 4); }
inline void store_shared(uint32_t to, uint4 x) { memcpy(shared_at(to), &x, 16); }

inline unsigned lane_of_warp() { return emulated::current->thread % 32; }
inline void ldmatrix_x4_transposed(uint32_t (&to)[4], uint32_t row) {
  auto rows = emulated::exchange(row);
  for (int i = 0; i < 4; i++) {
    unsigned short pair[2];
    for (int j = 0; j < 2; j++) {
      memcpy(&pair[j], shared_at(uint32_t(rows[8 * i + lane_of_warp() % 4 * 2 + j])) + lane_of_warp() / 4 * 2, 2);
    }
    to[i] = pair[0] | uint32_t(pair[1]) << 16;
  }
}
inline void ldmatrix_x4(uint32_t (&to)[4], uint32_t row) {
  auto rows = emulated::exchange(row);
  for (int i = 0; i < 4; i++) {
    memcpy(&to[i], shared_at(uint32_t(rows[8 * i + lane_of_warp() / 4]) + lane_of_warp() % 4 * 4), 4);
  }
}
inline void mma_m16n8k16(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  auto low = emulated::exchange(uint64_t(a[1]) << 32 | a[0]), high = emulated::exchange(uint64_t(a[3]) << 32 | a[2]);
  auto b = emulated::exchange(uint64_t(b1) << 32 | b0);
  auto value = [](uint64_t words, int word, int k) {
    return __uint_as_float(unsigned(words >> (32 * word + 16 * (k % 2)) & 0xffff) << 16);
  };
  for (int i = 0; i < 4; i++) {
    int row = lane_of_warp() / 4, column = lane_of_warp() % 4 * 2 + i % 2;
    for (int k = 0; k < 16; k++) {
      d[i] += value((k < 8 ? low : high)[row * 4 + k % 8 / 2], i / 2, k) * value(b[column * 4 + k % 8 / 2], k / 8, k);
    }
  }
}
inline void store_matrices(uint32_t row, const uint32_t (&words)[4], bool transposed) {
  auto rows = emulated::exchange(row);
  for (int i = 0; i < 4; i++) {
    for (int j = 0; j < 2; j++) {
      unsigned short half = words[i] >> 16 * j;
      int quad = lane_of_warp() / 4, corner = lane_of_warp() % 4 * 2 + j;
      memcpy(shared_at(uint32_t(rows[8 * i + (transposed ? corner : quad)])) + 2 * (transposed ? quad : corner), &half, 2);
    }
  }
}
inline void stmatrix_x4(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  store_matrices(row, {a, b, c, d}, false);
}
inline void stmatrix_x4_transposed(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  store_matrices(row, {a, b, c, d}, true);
}

}  // namespace derby
