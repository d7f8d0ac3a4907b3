// Rows of bfloat16 normalized by a block each: read once into registers, summed over the block, written once. A block has
// any number of warps, where Triton's has a power of two: 5120 or 7168 columns leave no lane idle.
//
// Columns and threads are constants (Form). After a flush of the caches the code itself comes from memory, so the time
// for few rows depends on the length of the code: with columns and threads known only at run time, 128 rows of 2048
// columns took 2.0 us rather than 1.6.
//
// A form may request a row one wave of blocks ahead (Rows::ahead), so that it is in the second-level cache when its
// block starts. Memory is then busy between the waves too, and no register waits for the row.
// Constraints: sm_90 or later; rows of as many columns as a form of kernel.cu names, a multiple of 8; bf16, contiguous,
// addresses a multiple of 16. main.py sends other sizes to Triton.

#pragma once
#include <cuda_bf16.h>

#include "any_gpu.cuh"
#include "cluster.cuh"

enum Operator { ADD_RMS, LAYER, L2 };
enum Stream { NOTHING, LOADS, BOTH };  // accesses marked to leave the L2 cache first, as in rowwise.py

// What a kernel is compiled for. THREADS: whole warps. AHEAD: whether rows are asked for before their turn.
template <int COLUMNS_, int THREADS_, Stream STREAM_, bool AHEAD_>
struct Form {
  static constexpr int COLUMNS = COLUMNS_, THREADS = THREADS_;
  static constexpr Stream STREAM = STREAM_;
  static constexpr bool AHEAD = AHEAD_;
  static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps of one block");
  static_assert(COLUMNS % 8 == 0 && COLUMNS >= 8, "a row is read 16 bytes at a time");
};

// Tensors of `rows` rows, weight and bias of one; what an operator has not is null. ahead: in rows.
struct Rows {
  const uint4 *x, *residual, *weight, *bias;
  uint4 *output, *sum;
  int rows, ahead;
  float eps;
};

struct Sums { float of_warps[2][32]; };

constexpr unsigned LANES = 0xffffffffu;

__device__ __forceinline__ void unpack(uint4 from, float (&to)[8]) {
  unsigned words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    to[2 * i] = __uint_as_float(words[i] << 16);
    to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

__device__ __forceinline__ uint4 packed(const float (&from)[8]) {
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
    words[i] = *reinterpret_cast<unsigned*>(&pair);
  }
  return uint4{words[0], words[1], words[2], words[3]};
}

// Sums over the block, in every thread.
template <int THREADS, int N>
__device__ __forceinline__ void sum_up(float (&sums)[N], Sums& shared) {
  constexpr int WARPS = THREADS / 32;
#pragma unroll
  for (int step = 16; step; step /= 2) {
#pragma unroll
    for (int k = 0; k < N; k++) sums[k] += __shfl_xor_sync(LANES, sums[k], step);
  }
  if constexpr (WARPS > 1) {
    int lane = int(threadIdx.x) % 32;
    if (lane == 0) {
#pragma unroll
      for (int k = 0; k < N; k++) shared.of_warps[k][threadIdx.x / 32] = sums[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < N; k++) {
      if constexpr (WARPS <= 8) {
        sums[k] = 0.0f;
#pragma unroll
        for (int warp = 0; warp < WARPS; warp++) sums[k] += shared.of_warps[k][warp];
      } else {
        sums[k] = lane < WARPS ? shared.of_warps[k][lane] : 0.0f;
#pragma unroll
        for (int step = 16; step; step /= 2) sums[k] += __shfl_xor_sync(LANES, sums[k], step);
      }
    }
  }
}

// Block i's row i. A thread's vectors are THREADS apart.
template <Operator OPERATOR, class F>
__device__ __forceinline__ void normalize(const Rows& rows, Sums& shared) {
  constexpr int SUMS = OPERATOR == LAYER ? 2 : 1, step = F::THREADS, WIDE = F::COLUMNS / 8;
  constexpr int VECTORS = (WIDE + F::THREADS - 1) / F::THREADS;
  constexpr Stream STREAM = F::STREAM;
  const int thread = int(threadIdx.x);
  const long long start = static_cast<long long>(blockIdx.x) * WIDE;
  const unsigned long long policy = STREAM == NOTHING ? 0 : leaves_first();
  auto there = [&](int v) { return WIDE % step == 0 || v < VECTORS - 1 || thread + v * step < WIDE; };
  uint4 x[VECTORS], residual[VECTORS], weight[VECTORS], bias[VECTORS];
#pragma unroll
  for (int v = 0; v < VECTORS; v++) {
    x[v] = residual[v] = weight[v] = bias[v] = uint4{0, 0, 0, 0};
    if (!there(v)) continue;
    x[v] = read<STREAM != NOTHING>(rows.x + start + thread + v * step, policy);
    if constexpr (OPERATOR == ADD_RMS) {
      residual[v] = read<STREAM != NOTHING>(rows.residual + start + thread + v * step, policy);
    }
  }
  if constexpr (F::AHEAD) {
    if (thread == 0 && rows.ahead < rows.rows - int(blockIdx.x)) {
      const long long later = start + static_cast<long long>(rows.ahead) * WIDE;
      fetch(rows.x + later, WIDE);
      if constexpr (OPERATOR == ADD_RMS) fetch(rows.residual + later, WIDE);
    }
  }
  // Squares relative to a value of the row lose little precision: none of n values lies further than sqrt(n) standard
  // deviations from the mean.
  float shift = 0.0f;
  if constexpr (OPERATOR == LAYER) {
    shift = __uint_as_float(__ldg(reinterpret_cast<const unsigned*>(rows.x + start)) << 16);
  }
#pragma unroll
  for (int v = 0; v < VECTORS; v++) {
    if (!there(v)) continue;
    if constexpr (OPERATOR != L2) weight[v] = __ldg(rows.weight + thread + v * step);
    if constexpr (OPERATOR == LAYER) bias[v] = __ldg(rows.bias + thread + v * step);
  }
  float values[VECTORS][8], sums[SUMS] = {};
#pragma unroll
  for (int v = 0; v < VECTORS; v++) {
    unpack(x[v], values[v]);
    if constexpr (OPERATOR == ADD_RMS) {
      float added[8];
      unpack(residual[v], added);
#pragma unroll
      for (int i = 0; i < 8; i++) values[v][i] += added[i];
      if (there(v)) write<STREAM == BOTH>(rows.sum + start + thread + v * step, packed(values[v]), policy);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if constexpr (OPERATOR == LAYER) {
        float off = there(v) ? values[v][i] - shift : 0.0f;
        sums[0] += off;
        sums[1] = fmaf(off, off, sums[1]);
      } else {
        sums[0] = fmaf(values[v][i], values[v][i], sums[0]);
      }
    }
  }
  sum_up<F::THREADS>(sums, shared);
  constexpr float columns = F::COLUMNS;
  float mean = 0.0f, variance;
  if constexpr (OPERATOR == LAYER) {
    float off = sums[0] / columns;
    mean = shift + off;
    variance = sums[1] / columns - off * off;
    if (variance < 0.0f) variance = 0.0f;  // not fmaxf, which would drop NaN
    if (sums[1] == INFINITY && fabsf(mean) < INFINITY) variance = INFINITY;  // off * off may be infinite too
  } else {
    variance = OPERATOR == L2 ? sums[0] : sums[0] / columns;
  }
  float inverse = rsqrtf(variance + rows.eps);
#pragma unroll
  for (int v = 0; v < VECTORS; v++) {
    if (!there(v)) continue;
    float weights[8], biases[8], results[8];
    unpack(weight[v], weights);
    unpack(bias[v], biases);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      results[i] = (values[v][i] - mean) * inverse;
      if constexpr (OPERATOR != L2) results[i] *= weights[i];
      if constexpr (OPERATOR == LAYER) results[i] += biases[i];
    }
    write<STREAM == BOTH>(rows.output + start + thread + v * step, packed(results), policy);
  }
}

// Kernels::of<Form>(): the operator's kernel, compiled for Forms. cudaErrorInvalidValue for any other form.
template <class Kernels, class... Forms>
int start(const Rows& rows, int columns, int threads, int stream, bool ahead, cudaStream_t on) {
  int error = cudaErrorInvalidValue;
  auto is = [&](auto form) {
    using F = decltype(form);
    if (F::COLUMNS != columns || F::THREADS != threads || F::STREAM != stream || F::AHEAD != ahead) return false;
    error = launch<Sums>(Kernels::template of<F>(), dim3(rows.rows), threads, 1, on, rows);
    return true;
  };
  (is(Forms{}) || ...);
  return error;
}

// An operator's kernel, compiled for each Form, and where start() finds it.
#define DERBY_ROWS_KERNEL(NAME, OPERATOR) \
  namespace { \
  template <class F> \
  __global__ void __launch_bounds__(F::THREADS) NAME(Rows rows) { \
    normalize<OPERATOR, F>(rows, shared_memory<Sums>()); \
  } \
  struct Kernels { \
    template <class F> \
    static auto of() { return NAME<F>; } \
  }; \
  }
