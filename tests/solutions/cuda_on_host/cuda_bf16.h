// Of cuda_bf16.h what the tests of the kernels on the CPU need: two floats rounded to the nearest bfloat16, ties to even.

#pragma once
#include "cuda_runtime.h"

struct alignas(4) __nv_bfloat162 { unsigned short x, y; };

inline unsigned short bfloat16_bits(float value) {
  unsigned bits = __float_as_uint(value);
  if (value != value) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {bfloat16_bits(x), bfloat16_bits(y)}; }
