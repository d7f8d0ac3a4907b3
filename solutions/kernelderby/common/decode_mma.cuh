// What the decode kernels of attention share: tensor core products of m16n8k16 in bfloat16 and bits of softmax. Tests
// replace it by a file that also has the functions of ptx.cuh and tma.cuh, and run the kernels on a CPU.
//
// Scores and outputs are computed transposed, since a group has few query heads: tokens (or dimensions) fill the 16 rows
// of a product and up to 8 query heads its 8 columns. A lane is called by quad = lane / 4 and corner = lane % 4.

#pragma once
#include <cuda_bf16.h>

#include "tma.cuh"

using namespace derby;

constexpr float LOG2E = 1.4426950408889634f;

// accumulator += a b. a: 16 x 16, rows quad and quad + 8, columns 2 corner (+1) and 8 more; b: 16 x 8, rows as those
// columns, column quad; accumulator: rows quad (x, y) and quad + 8 (z, w), columns 2 corner and 1 more.
__device__ __forceinline__ void multiply(float4& accumulator, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                         uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(accumulator.x), "+f"(accumulator.y), "+f"(accumulator.z), "+f"(accumulator.w)
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The largest, or the sum, over the lanes of one corner: over the rows of an accumulator.
__device__ __forceinline__ float most_of_rows(float x) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
__device__ __forceinline__ float sum_of_rows(float x) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// The factor of a part whose greatest score is `part` where the greatest of all is `whole` (-inf: no token, factor 0).
__device__ __forceinline__ float share(float part, float whole) {
  return part == -INFINITY ? 0.f : exp2_approx(part - whole);
}

__device__ __forceinline__ unsigned char* shared_memory() {
  extern __shared__ __align__(16) unsigned char bytes[];
  return bytes;
}
