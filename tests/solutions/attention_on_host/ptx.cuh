// In the place of solutions/kernelderby/common/ptx.cuh for long attention: cuda_on_host/ptx.cuh, and what else it uses.

#pragma once
#include "../cuda_on_host/ptx.cuh"

constexpr cudaError_t cudaErrorNotSupported = cudaError_t(801);
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline int __clz(int bits) { return __builtin_clz(bits); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline int __any_sync(unsigned, int predicate) { return __ballot_sync(~0u, predicate) != 0; }
inline int __all_sync(unsigned, int predicate) { return __ballot_sync(~0u, !predicate) == 0; }
inline unsigned __shfl_xor_sync(unsigned, unsigned value, unsigned lanes) {
  return unsigned(emulated::exchange(value)[emulated::current->thread % 32 ^ lanes]);
}
inline unsigned atomicInc(unsigned* address, unsigned most) {
  unsigned before = *address;
  *address = before >= most ? 0 : before + 1;
  return before;
}
inline void __trap() { abort(); }

namespace derby {

template <int>
void setmaxnreg_inc() {}
template <int>
void setmaxnreg_dec() {}
template <class Barrier>
void named_barrier_arrive(Barrier barrier, int threads) {
  auto& one = named_barriers[{emulated::current->block, int(barrier)}];
  one.size = threads;
  emulated::arrive(one);
}
inline void store_shared(uint32_t to, int x) { memcpy(shared_at(to), &x, 4); }
inline void store_shared(uint32_t to, float x) { memcpy(shared_at(to), &x, 4); }
inline void store_shared(uint32_t to, int4 x) { memcpy(shared_at(to), &x, 16); }
inline int load_shared_i32(uint32_t from) {
  int x;
  memcpy(&x, shared_at(from), 4);
  return x;
}
inline float load_shared_f32(uint32_t from) { return __uint_as_float(unsigned(load_shared_i32(from))); }
inline void take_ticket(int* counter, bool wanted, int& before) {
  if (wanted) before = (*counter)++;
}
inline void prefetch_l2(const void*) {}

}  // namespace derby
