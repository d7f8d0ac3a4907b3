// What the decode kernels that take a page a warp or a tile a block load, beside decode_mma.cuh. All PTX stands here:
// tests put another file in its place and run the kernels on a CPU.

#pragma once
#include <cuda_runtime.h>

#include <cstdint>

// An index that addresses depend on: asked for where it stands, before what follows.
__device__ __forceinline__ int load_index(const int* place) {
  int result;
  asm volatile("ld.global.nc.s32 %0, [%1];" : "=r"(result) : "l"(place));
  return result;
}

// 8 bytes that are read once.
__device__ __forceinline__ uint2 load_pair(const void* place) {
  uint2 result;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(result.x), "=r"(result.y) : "l"(place));
  return result;
}

// 16 bytes on their way from global to shared memory.
__device__ __forceinline__ void copy_vector(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Two 8 x 8 matrices whose rows lanes 0 to 15 point at.
__device__ __forceinline__ void load_two_matrices(uint32_t (&a)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(a[0]), "=r"(a[1])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ float reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Keeps the compiler from working out an address only when it is needed, behind a wait for memory.
template <class T>
__device__ __forceinline__ void keep(T*& address) {
  asm volatile("" : "+l"(address));
}
