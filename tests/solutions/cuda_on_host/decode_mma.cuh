// In the place of solutions/kernelderby/common/decode_mma.cuh: its functions and what the decode kernels take of ptx.cuh
// and tma.cuh, on the CPU. Copies into shared memory arrive when they are waited for and not before, so that a missing
// wait shows.

#pragma once
#include <deque>
#include <map>

#include "cuda_bf16.h"
#include "cuda_runtime.h"

#define __grid_constant__
enum { cudaFuncAttributeMaxDynamicSharedMemorySize = 2 };
struct __nv_bfloat16 { unsigned short bits; };
struct alignas(8) float2 { float x, y; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline int __clz(int bits) { return __builtin_clz(bits); }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  uint64_t bytes = uint64_t(high) << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; i++) result |= unsigned(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return result;
}
inline float __shfl_sync(unsigned, float value, int lane) {
  return __uint_as_float(unsigned(emulated::exchange(__float_as_uint(value))[lane]));
}

constexpr float LOG2E = 1.4426950408889634f;
inline unsigned lane_of_warp() { return emulated::current->thread % 32; }
inline float from_bfloat16(unsigned bits) { return __uint_as_float(bits << 16); }

inline void multiply(float4& accumulator, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  auto low = emulated::exchange(uint64_t(a1) << 32 | a0), high = emulated::exchange(uint64_t(a3) << 32 | a2);
  auto b = emulated::exchange(uint64_t(b1) << 32 | b0);
  int quad = lane_of_warp() / 4, corner = lane_of_warp() % 4;
  float* sums = &accumulator.x;
  for (int i = 0; i < 4; i++) {
    int row = quad + i / 2 * 8, column = 2 * corner + i % 2;
    for (int k = 0; k < 16; k++) {
      uint64_t left = (k < 8 ? low : high)[row % 8 * 4 + k % 8 / 2] >> (row / 8 * 32 + k % 2 * 16);
      uint64_t right = b[column * 4 + k % 8 / 2] >> (k / 8 * 32 + k % 2 * 16);
      sums[i] += from_bfloat16(left & 0xffff) * from_bfloat16(right & 0xffff);
    }
  }
}
inline uint32_t pack_bf16(float low, float high) { return uint32_t(bfloat16_bits(high)) << 16 | bfloat16_bits(low); }
inline uint32_t movmatrix_transposed(uint32_t word) {
  auto all = emulated::exchange(word);
  int quad = lane_of_warp() / 4, corner = lane_of_warp() % 4;
  auto element = [&](int row, int column) { return uint32_t(all[row * 4 + column / 2] >> column % 2 * 16) & 0xffff; };
  return element(2 * corner, quad) | element(2 * corner + 1, quad) << 16;
}
inline float exp2_approx(float x) { return exp2f(x); }
inline float reciprocal_approx(float x) { return 1 / x; }
inline float most_of_rows(float x) {
  for (int step = 4; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
inline float sum_of_rows(float x) {
  for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}
inline float share(float part, float whole) { return part == -INFINITY ? 0.f : exp2_approx(part - whole); }

// Of a block, by its number; whoever is left waiting ends the process, as at any barrier.
inline std::map<std::pair<emulated::Block*, int>, emulated::Barrier> named_barriers;
inline void named_barrier_sync(int number, int threads) {
  emulated::Barrier& barrier = named_barriers[{emulated::current->block, number}];
  barrier.size = threads;
  emulated::meet(barrier);
}

// Addresses in shared memory: the block's rank above 24 bits of offset.
inline unsigned char* shared_memory() { return static_cast<unsigned char*>(emulated_shared_memory()); }
inline uint32_t shared_address(const void* place) {
  return uint32_t(emulated::current->block->rank) << 24 | uint32_t((const unsigned char*)place - shared_memory());
}
inline uint32_t cluster_address(uint32_t address, uint32_t rank) { return rank << 24 | (address & 0xffffff); }
inline unsigned char* at(uint32_t address) {
  emulated::Block& block = *emulated::blocks[address >> 24];
  size_t offset = address & 0xffffff;
  if (offset >= block.shared.size() * 8 - 16) abort();
  return (unsigned char*)block.shared.data() + offset;
}

struct ByteBarrier {
  int bytes;
  short pending, phase;
  void changed() {
    emulated::progress++;
    if (pending == 0 && bytes == 0) pending = 1, phase ^= 1;
  }
};
inline ByteBarrier& barrier_at(uint32_t address) { return *reinterpret_cast<ByteBarrier*>(at(address)); }
inline void mbarrier_init(uint32_t barrier, int arrivals) { barrier_at(barrier) = {0, short(arrivals), 0}; }
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  ByteBarrier& one = barrier_at(barrier);
  one.bytes += int(bytes), one.pending--, one.changed();
}
inline void mbarrier_wait_cluster(uint32_t barrier, uint32_t phase) {
  while (uint32_t(barrier_at(barrier).phase) == phase) emulated::yield();
}
template <class T>
void store_async(uint32_t address, T value, uint32_t barrier) {
  memcpy(at(address), &value, sizeof(T));
  barrier_at(barrier).bytes -= sizeof(T), barrier_at(barrier).changed();
}
inline void cluster_arrive_relaxed() { __cluster_barrier_arrive(); }
inline void cluster_arrive() { __cluster_barrier_arrive(); }
inline void cluster_wait() { __cluster_barrier_wait(); }

inline int load_constant_index(const int* place) { return *place; }
inline uint2 load_constant8(const void* place) { return *static_cast<const uint2*>(place); }
inline uint4 load_constant16(const void* place) { return *static_cast<const uint4*>(place); }

struct Copy {
  unsigned char* to;
  uint4 value;
};
inline std::map<emulated::Fiber*, std::deque<std::vector<Copy>>> copies;  // of a thread; the last group is open
inline void cp_async16(uint32_t to, const void* from, int bytes = 16) {
  auto& groups = copies[emulated::current];
  if (groups.empty()) groups.emplace_back();
  groups.back().push_back({at(to), bytes ? *static_cast<const uint4*>(from) : uint4{0, 0, 0, 0}});
}
inline void cp_async_commit_group() { copies[emulated::current].emplace_back(); }
template <int LEFT>
void cp_async_wait_group() {
  auto& groups = copies[emulated::current];
  while (groups.size() > LEFT + 1) {
    for (Copy& one : groups.front()) memcpy(one.to, &one.value, 16);
    groups.pop_front();
  }
}

inline void ldmatrix_x4(uint32_t (&a)[4], uint32_t address) {
  auto rows = emulated::exchange(address);
  for (int i = 0; i < 4; i++) memcpy(&a[i], at(uint32_t(rows[8 * i + lane_of_warp() / 4])) + lane_of_warp() % 4 * 4, 4);
}
inline void ldmatrix_x4_transposed(uint32_t (&a)[4], uint32_t address) {
  auto rows = emulated::exchange(address);
  for (int i = 0; i < 4; i++) {
    unsigned short pair[2];
    for (int j = 0; j < 2; j++) {
      memcpy(&pair[j], at(uint32_t(rows[8 * i + lane_of_warp() % 4 * 2 + j])) + lane_of_warp() / 4 * 2, 2);
    }
    a[i] = pair[0] | uint32_t(pair[1]) << 16;
  }
}
inline void ldmatrix_x2(uint32_t (&a)[2], uint32_t address) {
  auto rows = emulated::exchange(address);
  for (int i = 0; i < 2; i++) memcpy(&a[i], at(uint32_t(rows[8 * i + lane_of_warp() / 4])) + lane_of_warp() % 4 * 4, 4);
}
template <class T>
void keep(T*&) {}
