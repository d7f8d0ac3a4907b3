// Of cuda_fp16.h what the tests of the kernels on the CPU need: pairs of fp16, and one from and to a float, ties to even.

#pragma once
#include "dense_types.h"

struct __half { unsigned short bits; };

inline float __half2float(__half value) {
  _Float16 half;
  memcpy(&half, &value, 2);
  return half;
}
inline __half __float2half_rn(float value) {
  _Float16 half = value;
  __half bits;
  memcpy(&bits, &half, 2);
  return bits;
}
inline double __longlong_as_double(long long bits) { double value; memcpy(&value, &bits, 8); return value; }
