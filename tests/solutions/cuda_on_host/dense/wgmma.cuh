// common/wgmma.cuh on the CPU: products of bf16 or e4m3, operands K-major in shared memory with the 128-byte swizzle. A product is
// made at once, where operands that have not come yet show; with EMULATED_ORDER=reversed when it is waited for, the latest
// that it could, where operands that are overwritten too early show.
#pragma once
#include <deque>
#include <map>

#include "tma.cuh"

namespace derby {

struct Product { float* d; uint64_t a, b; int n, add, bytes; };
inline std::map<emulated::Fiber*, std::deque<std::vector<Product>>> products;  // groups of a thread; the last is open

inline uint32_t descriptor_low(uint32_t address, uint32_t = 16) { return (address & 0x3ffff) >> 4; }
inline uint64_t descriptor_of(uint32_t low) { return low; }

inline float e4m3_value(uint8_t code) {
  int exponent = code >> 3 & 15, fraction = code & 7;
  float size = exponent ? ldexpf(8 + fraction, exponent - 10) : ldexpf(fraction, -9);
  return (code & 127) == 127 ? NAN : code & 128 ? -size : size;
}
inline float operand(uint64_t descriptor, int row, int k, int bytes) {
  uint32_t place = uint32_t(descriptor << 4) + row * 128 + bytes * k;
  if (bytes == 1) return e4m3_value(*at_shared<uint8_t>(swizzled(place)));
  return __uint_as_float(uint32_t(*at_shared<unsigned short>(swizzled(place))) << 16);
}
inline void multiply_now(const Product& one) {
  unsigned t = emulated::current->thread % 128, row = t / 32 * 16 + t % 32 / 4;
  for (int half = 0; half < 2; half++) {
    float a[32];
    const int count = 32 / one.bytes;
    for (int k = 0; k < count; k++) a[k] = operand(one.a, row + 8 * half, k, one.bytes);
    for (int j = 0; j < one.n / 8; j++)
      for (int c = 0; c < 2; c++) {
        float& d = one.d[4 * j + 2 * half + c];
        float sum = one.add ? d : 0;
        for (int k = 0; k < count; k++) sum += a[k] * operand(one.b, 8 * j + t % 4 * 2 + c, k, one.bytes);
        d = sum;
      }
  }
}
inline void ask_for(Product one) {
  auto& mine = products[emulated::current];
  if (mine.empty()) mine.emplace_back();
  mine.back().push_back(one);
}
template <int N>
void wgmma_bf16(float* d, uint64_t a, uint64_t b, int add) { ask_for({d, a, b, N, add, 2}); }
template <int N>
void wgmma_e4m3(float* d, uint64_t a, uint64_t b, int add) { ask_for({d, a, b, N, add, 1}); }
inline void wgmma_fence() { __syncwarp(); }  // .sync.aligned: all lanes are here, as in the two below
inline void wgmma_commit_group() {
  auto& mine = products[emulated::current];
  if (mine.empty()) mine.emplace_back();
  const char* order = getenv("EMULATED_ORDER");
  if (!order || !*order) {
    for (auto& one : mine.back()) multiply_now(one);
    mine.back().clear();
  }
  mine.emplace_back();
  __syncwarp();
}
template <int PENDING>
void wgmma_wait_group() {
  auto& mine = products[emulated::current];
  for (; mine.size() > PENDING + 1; mine.pop_front())
    for (auto& one : mine.front()) multiply_now(one);
  named_barrier_sync(16 + emulated::current->thread / 128, 128);  // a product ends for all four warps at once
}
template <int COUNT>
void pin(float*) {}

}  // namespace derby
