// What the dense GEMM needs beside cuda_runtime.h and cuda_bf16.h: small vectors, bf16 and fp16 values, a shuffle.

#pragma once
#include "cuda_bf16.h"

#define __grid_constant__
constexpr int cudaFuncAttributeMaxDynamicSharedMemorySize = 8;

struct alignas(8) int2 { int x, y; };
struct alignas(8) float2 { float x, y; };
inline int2 make_int2(int x, int y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline int __shfl_sync(unsigned, int value, unsigned lane) {
  return int(uint32_t(emulated::exchange(uint32_t(value))[lane]));
}

struct __nv_bfloat16 {
  unsigned short bits;
  __nv_bfloat16() = default;
  explicit __nv_bfloat16(float value) : bits(bfloat16_bits(value)) {}
};
inline float __bfloat162float(__nv_bfloat16 value) { return __uint_as_float(uint32_t(value.bits) << 16); }
struct alignas(4) __half2 { _Float16 x, y; };
inline __half2 __floats2half2_rn(float x, float y) { return {_Float16(x), _Float16(y)}; }
inline float2 __half22float2(__half2 both) { return {float(both.x), float(both.y)}; }
