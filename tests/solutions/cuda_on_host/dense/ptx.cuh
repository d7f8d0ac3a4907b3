// common/ptx.cuh on the CPU: mbarriers, named barriers, clusters. A 32-bit shared address is the offset in the block's
// shared memory; another block's has its rank plus one in the upper byte.
#pragma once
#include <map>
#include <utility>

#include "dense_types.h"

namespace derby {

inline uint32_t shared_address(const void* pointer) {
  return uint32_t((const char*)pointer - (const char*)emulated_shared_memory());
}
inline uint32_t cluster_address(uint32_t address, uint32_t rank) { return address | (rank + 1) << 24; }
template <class T>
T* at_shared(uint32_t address) {
  auto& block = address >> 24 ? *emulated::blocks[(address >> 24) - 1] : *emulated::current->block;
  if ((address & 0xffffff) + sizeof(T) > block.shared.size() * 8) {
    fprintf(stderr, "emulated CUDA: shared address %u is outside\n", address & 0xffffff);
    abort();
  }
  return (T*)((char*)block.shared.data() + (address & 0xffffff));
}

struct Mbarrier {
  int16_t expected, pending;
  int32_t bytes : 31;
  uint32_t phase : 1;
  void look() {
    if (pending == 0 && bytes == 0) pending = expected, phase ^= 1;
    if (pending < 0) fprintf(stderr, "emulated CUDA: too many arrivals\n"), abort();
    emulated::progress++;
  }
};
static_assert(sizeof(Mbarrier) == 8);

inline void mbarrier_init(uint32_t barrier, int arrivals) {
  *at_shared<Mbarrier>(barrier) = {int16_t(arrivals), int16_t(arrivals), 0, 0};
}
inline bool elect_one() { return threadIdx.x % 32 == 0; }
inline void fence_mbarrier_init() {}
inline void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  while (at_shared<Mbarrier>(barrier)->phase == parity) emulated::yield();
  emulated::progress++;
}
inline void mbarrier_arrive(uint32_t barrier) {
  Mbarrier& one = *at_shared<Mbarrier>(barrier);
  one.pending--, one.look();
}
inline void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  at_shared<Mbarrier>(barrier)->bytes += bytes;
  mbarrier_arrive(barrier);
}
inline void mbarrier_arrive_remote(uint32_t barrier, int rank) { mbarrier_arrive(cluster_address(barrier, rank)); }
inline void mbarrier_arrive_cluster(uint32_t barrier) { mbarrier_arrive(barrier); }
// Bytes have come. Those of a multicast may come before this CTA has said that it expects them.
inline void mbarrier_complete_tx(uint32_t barrier, uint32_t bytes) {
  Mbarrier& one = *at_shared<Mbarrier>(barrier);
  one.bytes -= bytes, one.look();
}

inline void named_barrier_sync(int barrier, int threads) {
  static std::map<std::pair<emulated::Block*, int>, emulated::Barrier> all;
  auto& one = all[{emulated::current->block, barrier}];
  one.size = threads;
  emulated::meet(one);
}
template <int> void setmaxnreg_inc() {}
template <int> void setmaxnreg_dec() {}

inline void cluster_sync() {
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
}
inline void store_cluster(uint32_t to, float4 value) { *at_shared<float4>(to) = value; }

// Four matrices of 8 x 8 values of 16 bits: lane l names row l % 8 of matrix l / 8, and holds two values of each.
inline unsigned short* of_matrix(const emulated::Warp& rows, int matrix, int value, bool transposed) {
  int lane = emulated::current->thread % 32, quad = lane / 4, corner = lane % 4 * 2 + value;
  return at_shared<unsigned short>(uint32_t(rows[8 * matrix + (transposed ? corner : quad)])) + (transposed ? quad : corner);
}
inline void store_matrices(uint32_t row, const uint32_t (&words)[4], bool transposed) {
  auto rows = emulated::exchange(row);
  for (int i = 0; i < 8; i++) *of_matrix(rows, i / 2, i % 2, transposed) = words[i / 2] >> 16 * (i % 2);
  emulated::exchange(0);
}
inline void load_matrices(uint32_t (&words)[4], uint32_t row, bool transposed) {
  auto rows = emulated::exchange(row);
  for (int i = 0; i < 4; i++)
    words[i] = *of_matrix(rows, i, 0, transposed) | uint32_t(*of_matrix(rows, i, 1, transposed)) << 16;
  emulated::exchange(0);
}
inline void stmatrix_x4(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  store_matrices(row, {a, b, c, d}, false);
}
inline void stmatrix_x4_transposed(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  store_matrices(row, {a, b, c, d}, true);
}
inline void ldmatrix_x4(uint32_t (&to)[4], uint32_t row) { load_matrices(to, row, false); }
inline void ldmatrix_x4_transposed(uint32_t (&to)[4], uint32_t row) { load_matrices(to, row, true); }

inline uint32_t pack_bf16(float low, float high) { return bfloat16_bits(low) | uint32_t(bfloat16_bits(high)) << 16; }

}  // namespace derby
