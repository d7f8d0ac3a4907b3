// In the place of common/{ptx,tma,wgmma,launch}.cuh: what kernels for Hopper use of them, on the CPU. mbarriers, TMA boxes
// with the 128-byte swizzle, multicast, wgmma in bf16 of operands by descriptor.
//
// Copies and products are asynchronous on a GPU: they happen when they are asked for, or (EMULATED_ASYNC=late in the
// environment) not before somebody waits for them. A place that is written too soon shows in the one, a missing wait in
// the other. Orders between generic and asynchronous accesses (fence.proxy) cannot show.

#pragma once
#include <map>
#include <utility>

#include "../cuda_bf16.h"
#include "../cuda_runtime.h"
#include "cuda.h"

#define __grid_constant__
enum { cudaFuncAttributeMaxDynamicSharedMemorySize = 2 };
constexpr cudaError_t cudaErrorNotSupported = cudaError_t(801);
struct __nv_bfloat16 { unsigned short bits; };
struct alignas(8) float2 { float x, y; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline unsigned __shfl_xor_sync(unsigned, unsigned value, unsigned lanes) {
  return unsigned(emulated::exchange(value)[emulated::current->thread % 32 ^ lanes]);
}
inline int __any_sync(unsigned, int predicate) { return __ballot_sync(~0u, predicate) != 0; }
template <class T>
T atomicMin(T* address, T value) { T old = *address; *address = std::min(old, value); return old; }

namespace derby {

inline bool late() {
  const char* order = getenv("EMULATED_ASYNC");
  return order && !strcmp(order, "late");
}

// Shared memory is named by its offset.
inline uint32_t shared_address(const void* place) {
  return uint32_t((const char*)place - (const char*)emulated_shared_memory());
}
inline char* shared_place(uint32_t address, unsigned rank) {
  return (char*)emulated::blocks[rank]->shared.data() + address;
}
inline char* shared_place(uint32_t address) { return (char*)emulated_shared_memory() + address; }
inline unsigned lane_of_warp() { return emulated::current->thread % 32; }

// mbarriers ------------------------------------------------------------------------------------------------------------

struct Mbarrier {
  int16_t expected, pending;
  int32_t bytes : 31;
  uint32_t phase : 1;
};
static_assert(sizeof(Mbarrier) == 8, "in the place of a uint64_t");

inline Mbarrier& mbarrier(uint32_t address, unsigned rank) { return *(Mbarrier*)shared_place(address, rank); }
inline unsigned my_rank() { return emulated::current->block->rank; }
inline void settle(Mbarrier& barrier) {
  emulated::progress++;
  if (barrier.pending < 0) fprintf(stderr, "an mbarrier has more arrivals than it expects\n"), abort();
  if (barrier.pending == 0 && barrier.bytes == 0) barrier.phase ^= 1, barrier.pending = barrier.expected;
}
inline void mbarrier_init(uint32_t barrier, int arrivals) {
  Mbarrier& it = mbarrier(barrier, my_rank());
  it.expected = it.pending = arrivals, it.bytes = 0, it.phase = 0;
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive_remote(uint32_t barrier, int rank) {
  Mbarrier& it = mbarrier(barrier, rank);
  it.pending--;
  settle(it);
}
inline void mbarrier_arrive(uint32_t barrier) { mbarrier_arrive_remote(barrier, my_rank()); }
inline void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  mbarrier(barrier, my_rank()).bytes += bytes;
  mbarrier_arrive(barrier);
}

inline std::map<std::pair<unsigned, uint32_t>, std::vector<std::function<void()>>> copies;  // that nobody has waited for
inline void deliver(uint32_t barrier, unsigned rank) {
  auto found = copies.find({rank, barrier});
  if (found == copies.end()) return;
  auto these = std::move(found->second);
  copies.erase(found);
  for (auto& copy : these) copy();
}
inline void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  for (;;) {
    deliver(barrier, my_rank());
    if (mbarrier(barrier, my_rank()).phase != parity) return;
    emulated::yield();
  }
}

inline std::map<std::pair<emulated::Block*, int>, emulated::Barrier> named;
template <class Name>
void named_barrier_sync(Name name, int threads) {
  auto& barrier = named[{emulated::current->block, int(name)}];
  barrier.size = threads;
  emulated::meet(barrier);
}
template <int>
void setmaxnreg_inc() {}
template <int>
void setmaxnreg_dec() {}
inline void cluster_sync() {
  __cluster_barrier_arrive();
  __cluster_barrier_wait();
}
inline void wait_for_previous_kernel() {}
inline void let_next_kernel_start() {}
inline void fence_async_proxy() {}

inline float exp2_approx(float x) { return exp2f(x); }
inline uint32_t pack_bf16(float low, float high) { return uint32_t(bfloat16_bits(high)) << 16 | bfloat16_bits(low); }

inline void stmatrix_x4(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  auto rows = emulated::exchange(row);
  const uint32_t words[4] = {a, b, c, d};
  for (int i = 0; i < 4; i++)
    memcpy(shared_place(rows[8 * i + lane_of_warp() / 4]) + lane_of_warp() % 4 * 4, &words[i], 4);
  __syncwarp();
}

// TMA ------------------------------------------------------------------------------------------------------------------

inline uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

inline void copy_box(const CUtensorMap& map, uint32_t to, uint32_t barrier, unsigned rank, int x, int y, int z) {
  for (unsigned row = 0; row < map.box[1]; row++)
    for (unsigned column = 0; column < map.box[0]; column++) {
      unsigned short value = 0;
      long long i = x + int(column), j = y + int(row);
      if (i >= 0 && j >= 0 && z >= 0 && i < (long long)map.sizes[0] && j < (long long)map.sizes[1] &&
          z < (long long)map.sizes[2])
        memcpy(&value, (const char*)map.tensor + 2 * i + map.strides[0] * j + map.strides[1] * z, 2);
      memcpy(shared_place(swizzled(to + row * 128 + column * 2), rank), &value, 2);
    }
  Mbarrier& it = mbarrier(barrier, rank);
  it.bytes -= map.box[0] * map.box[1] * 2;
  settle(it);
}
inline void tma_load_multicast(uint32_t to, const void* map, uint32_t barrier, uint16_t ctas, int x, int y, int z) {
  const CUtensorMap& box = *(const CUtensorMap*)map;
  if (x % 8 || to % 128) fprintf(stderr, "a box begins at no multiple of 16 bytes\n"), abort();
  for (unsigned rank = 0; rank < 16; rank++) {
    if (!(ctas >> rank & 1)) continue;
    if (late()) copies[{rank, barrier}].push_back([=] { copy_box(box, to, barrier, rank, x, y, z); });
    else copy_box(box, to, barrier, rank, x, y, z);
  }
  emulated::progress++;
}
inline void tma_load(uint32_t to, const void* map, uint32_t barrier, int x, int y, int z) {
  tma_load_multicast(to, map, barrier, 1 << my_rank(), x, y, z);
}
constexpr uint64_t EVICT_FIRST = 0;
inline void tma_load_hint(uint32_t to, const void* map, uint32_t barrier, uint64_t, int x, int y, int z) {
  tma_load(to, map, barrier, x, y, z);
}
inline void prefetch_tensor_map(const void*) {}

// wgmma ----------------------------------------------------------------------------------------------------------------

enum class Major : int { K = 0, MN = 1 };
inline uint32_t descriptor_low(uint32_t address, uint32_t leading = 16) {
  return ((address & 0x3FFFF) >> 4) | (leading >> 4 << 16);
}
inline uint64_t descriptor_of(uint32_t low, uint32_t stride = 1024) {
  return uint64_t(low) | uint64_t(stride >> 4) << 32 | uint64_t(1) << 62;
}

inline std::map<emulated::Fiber*, std::vector<std::function<void()>>> products;  // that nobody has waited for
inline void wgmma_fence() { __syncwarp(); }  // as all of these: a warp's threads come together
inline void wgmma_commit_group() { __syncwarp(); }
template <int PENDING>
void wgmma_wait_group() {
  static_assert(PENDING == 0, "groups are not told apart here");
  auto these = std::move(products[emulated::current]);
  products.erase(emulated::current);
  for (auto& product : these) product();
  __syncwarp();
}
template <int COUNT>
void pin(float*) {}

// An operand's value at `index` along m or n and k.
template <Major MAJOR>
float operand(const char* shared, uint64_t descriptor, int index, int k) {
  const uint32_t start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4;
  const uint32_t stride = (descriptor >> 32 & 0x3fff) << 4;
  const uint32_t address = MAJOR == Major::K ? start + index / 8 * stride + index % 8 * 128 + k * 2
                                             : start + index / 64 * leading + k / 8 * stride + k % 8 * 128 + index % 64 * 2;
  unsigned short bits;
  memcpy(&bits, shared + swizzled(address), 2);
  return __uint_as_float(unsigned(bits) << 16);
}

using Rows = std::array<std::array<float, 16>, 2>;
template <int N, Major B>
void product(float* d, const Rows& a, const char* shared, uint64_t b, int add) {
  for (int j = 0; j < N / 8; j++)
    for (int i = 0; i < 2; i++) {
      const int column = 8 * j + lane_of_warp() % 4 * 2 + i;
      float sums[2] = {add ? d[4 * j + i] : 0, add ? d[4 * j + 2 + i] : 0};
      for (int k = 0; k < 16; k++) {
        const float value = operand<B>(shared, b, column, k);
        sums[0] += a[0][k] * value, sums[1] += a[1][k] * value;
      }
      d[4 * j + i] = sums[0], d[4 * j + 2 + i] = sums[1];
    }
}
inline void now_or_later(std::function<void()> product) {
  if (late()) products[emulated::current].push_back(std::move(product));
  else product();
}
template <int N, Major A = Major::K, Major B = Major::K>
void wgmma_bf16(float* d, uint64_t a, uint64_t b, int add) {
  const char* shared = (const char*)emulated_shared_memory();
  const int row = emulated::current->thread % 128 / 32 * 16 + lane_of_warp() / 4;
  now_or_later([=] {
    Rows rows;
    for (int i = 0; i < 2; i++)
      for (int k = 0; k < 16; k++) rows[i][k] = operand<A>(shared, a, row + 8 * i, k);
    product<N, B>(d, rows, shared, b, add);
  });
}
template <int N, Major B = Major::K>
void wgmma_bf16_rs(float* d, const uint32_t* a, uint64_t b, int add) {
  const char* shared = (const char*)emulated_shared_memory();
  const auto low = emulated::exchange(uint64_t(a[1]) << 32 | a[0]), high = emulated::exchange(uint64_t(a[3]) << 32 | a[2]);
  Rows rows;
  for (int k = 0; k < 16; k++) {
    const uint64_t words = (k < 8 ? low : high)[lane_of_warp() / 4 * 4 + k % 8 / 2];
    for (int i = 0; i < 2; i++) rows[i][k] = __uint_as_float(unsigned(words >> (32 * i + k % 2 * 16)) << 16);
  }
  now_or_later([=] { product<N, B>(d, rows, shared, b, add); });
}

// Launches -------------------------------------------------------------------------------------------------------------

template <int DIMENSIONS>
bool encode_tensor_map(CUtensorMap* map, CUtensorMapDataType, const void* tensor, const cuuint64_t (&sizes)[DIMENSIONS],
                       const cuuint64_t (&strides)[DIMENSIONS - 1], const cuuint32_t (&box)[DIMENSIONS]) {
  static_assert(DIMENSIONS == 3, "as the loads above");
  *map = {tensor, {sizes[0], sizes[1], sizes[2]}, {strides[0], strides[1]}, {box[0], box[1], box[2]}};
  return strides[0] % 16 == 0 && strides[1] % 16 == 0 && box[0] * 2 <= 128 && box[1] <= 256 && box[2] == 1;
}

struct LaunchShape {
  int ctas, threads, shared_bytes, cluster = 1;
  bool early = false;
};
template <typename... Parameters, typename... Values>
cudaError_t launch(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t, const Values&... values) {
  cudaLaunchAttribute cluster = {cudaLaunchAttributeClusterDimension, {dim3(shape.cluster)}};
  const cudaLaunchConfig_t config = {dim3(shape.ctas), dim3(shape.threads), size_t(shape.shared_bytes), nullptr, &cluster, 1};
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, Parameters(values)...);
  if (!copies.empty() || !products.empty()) fprintf(stderr, "nobody waited for some copies or products\n"), abort();
  named.clear();
  return error;
}

}  // namespace derby
