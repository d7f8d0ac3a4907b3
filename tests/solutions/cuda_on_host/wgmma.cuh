// In the place of solutions/kernelderby/common/wgmma.cuh: see ptx.cuh here.

#pragma once
#include "ptx.cuh"

namespace derby {

inline std::map<emulated::Fiber*, std::deque<std::vector<Work>>> products;  // of a thread; the last group is open
inline void wgmma_fence() {}
inline void wgmma_commit_group() { products[emulated::current].emplace_back(); }
template <int PENDING>
void wgmma_wait_group() {
  auto& groups = products[emulated::current];
  for (; groups.size() > PENDING + 1; groups.pop_front()) {
    for (Work& work : groups.front()) work();
  }
}
template <int COUNT>
void pin(float*) {}

enum class Swizzle : int { B128 = 1 };
inline uint32_t descriptor_low(uint32_t address, uint32_t leading = 16) { return address >> 4 | leading >> 4 << 16; }
template <Swizzle SWIZZLE = Swizzle::B128>
uint64_t descriptor_of(uint32_t low, uint32_t stride = 1024) { return low | uint64_t(stride >> 4) << 32; }
enum class Major : int { K = 0, MN = 1 };

// Element (i along m or n, k) of an operand in shared memory.
inline float operand_at(uint64_t descriptor, Major major, int i, int k) {
  uint32_t base = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4;
  uint32_t stride = (descriptor >> 32 & 0x3fff) << 4;
  uint32_t place = major == Major::K ? base + i / 8 * stride + i % 8 * 128 + 2 * k
                                     : base + i / 64 * leading + k / 8 * stride + k % 8 * 128 + i % 64 * 2;
  unsigned short bits;
  memcpy(&bits, shared_at(place ^ (place >> 7 & 7) << 4), 2);
  return __uint_as_float(unsigned(bits) << 16);
}

// a_of(half, k): this thread's row, or the one eight below, of a.
template <int N>
void later_product(float* d, std::function<float(int, int)> a_of, uint64_t b, Major b_major, int add) {
  auto& groups = products[emulated::current];
  if (groups.empty()) groups.emplace_back();
  groups.back().push_back([=] {
    float a[2][16];
    for (int i = 0; i < 32; i++) a[i / 16][i % 16] = a_of(i / 16, i % 16);
    for (int i = 0; i < N / 2; i++) {
      int column = i / 4 * 8 + 2 * (lane_of_warp() % 4) + i % 2;
      float sum = add ? d[i] : 0;
      for (int k = 0; k < 16; k++) sum += a[i / 2 % 2][k] * operand_at(b, b_major, column, k);
      d[i] = sum;
    }
  });
}
template <int N, Major A = Major::K, Major B = Major::K>
void wgmma_bf16(float* d, uint64_t a, uint64_t b, int add) {
  int row = emulated::current->thread % 128 / 32 * 16 + lane_of_warp() / 4;
  later_product<N>(d, [=](int half, int k) { return operand_at(a, A, row + 8 * half, k); }, b, B, add);
}
template <int N, Major B = Major::K>
void wgmma_bf16_rs(float* d, const uint32_t* a, uint64_t b, int add) {
  auto low = emulated::exchange(uint64_t(a[1]) << 32 | a[0]), high = emulated::exchange(uint64_t(a[3]) << 32 | a[2]);
  int first = lane_of_warp() / 4 * 4;
  later_product<N>(d, [=](int half, int k) {
    uint64_t words = (k < 8 ? low : high)[first + k % 8 / 2];
    return __uint_as_float(unsigned(words >> (32 * half + 16 * (k % 2)) & 0xffff) << 16);
  }, b, B, add);
}

}  // namespace derby
