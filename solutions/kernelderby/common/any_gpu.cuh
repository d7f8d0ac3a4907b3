// Instructions of kernels that are compiled for every GPU, and by g++ for the CPU, where a plain access or function stands
// in for each.
// Constraints: sm_80 or later (fetch: sm_90); addresses a multiple of 16.
#pragma once
#include <cuda_runtime.h>

// The policy of accesses that leave the second-level cache first.
__device__ __forceinline__ unsigned long long leaves_first() {
  unsigned long long policy = 0;
#ifdef __CUDACC__
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
  return policy;
}

// FIRST: with that policy. This is not __ldg, since the memory may be written while the kernel runs.
template <bool FIRST>
__device__ __forceinline__ uint4 read(const uint4* from, unsigned long long policy = 0) {
#ifdef __CUDACC__
  uint4 v;
  if constexpr (FIRST) {
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from), "l"(policy));
  } else {
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  }
  return v;
#else
  return *from;
#endif
}

template <bool FIRST>
__device__ __forceinline__ void write(uint4* to, uint4 v, unsigned long long policy) {
#ifdef __CUDACC__
  if constexpr (FIRST) {
    asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;"
                 :: "l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "l"(policy) : "memory");
    return;
  }
#endif
  *to = v;
}

// Into the second-level cache.
__device__ __forceinline__ void fetch(const uint4* row, int vectors) {
#ifdef __CUDACC__
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(row), "r"(vectors * 16) : "memory");
#endif
}

__device__ __forceinline__ float hyperbolic_tangent(float x) {
#ifdef __CUDACC__
  float result;
  asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return tanhf(x);
#endif
}
