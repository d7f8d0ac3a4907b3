// derby_causal_conv1d: one launch. A thread walks down the tokens of a few channels with the last three values of each
// in registers, so every value is read once, but for three rows where two threads' stretches meet. The rows of a step
// are loaded together before any is used.

#include <cuda_bf16.h>

#include "cluster.cuh"

namespace {

constexpr int WIDTH = 4;
struct Nothing { int unused; };

// N bfloat16 in a row, N = 1, 2, 4 or 8, as 32-bit words of two (N = 1: the low half of one).
template <int N>
struct Packed {
  unsigned words[(N + 1) / 2];

  __device__ __forceinline__ void load(const unsigned short* from) {
    if constexpr (N == 8) {
      uint4 all = __ldg(reinterpret_cast<const uint4*>(from));
      words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
    } else if constexpr (N == 4) {
      uint2 all = __ldg(reinterpret_cast<const uint2*>(from));
      words[0] = all.x, words[1] = all.y;
    } else if constexpr (N == 2) {
      words[0] = __ldg(reinterpret_cast<const unsigned*>(from));
    } else {
      words[0] = __ldg(from);
    }
  }
  __device__ __forceinline__ void zero() {
#pragma unroll
    for (int i = 0; i < (N + 1) / 2; i++) words[i] = 0;
  }
  __device__ __forceinline__ float operator[](int i) const {
    return __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
  }
  __device__ __forceinline__ static void store(unsigned short* to, const float (&values)[N]) {
    unsigned words[(N + 1) / 2];
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      __nv_bfloat162 pair = __floats2bfloat162_rn(values[i], N == 1 ? 0.0f : values[(i + 1) % N]);
      words[i / 2] = *reinterpret_cast<unsigned*>(&pair);
    }
    if constexpr (N == 8) {
      *reinterpret_cast<uint4*>(to) = uint4{words[0], words[1], words[2], words[3]};
    } else if constexpr (N == 4) {
      *reinterpret_cast<uint2*>(to) = uint2{words[0], words[1]};
    } else if constexpr (N == 2) {
      *reinterpret_cast<unsigned*>(to) = words[0];
    } else {
      *to = static_cast<unsigned short>(words[0]);
    }
  }
};

__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// AHEAD: the rows of the next step are loaded before those of this one are used.
// x, output [tokens, dim], weight [dim, 4], bias [dim], state [dim, 3], all bfloat16. A thread has CHANNELS channels and
// `steps` times ROWS tokens; a block's threads lie beside each other, column_blocks blocks make a row.
template <int CHANNELS, int ROWS, bool AHEAD>
__global__ void __launch_bounds__(256) derby_causal_conv1d(
    const unsigned short* __restrict__ x, const unsigned short* __restrict__ weight,
    const unsigned short* __restrict__ bias, const unsigned short* __restrict__ state,
    unsigned short* __restrict__ output, int tokens, int dim, int column_blocks, int steps) {
  int channel = (int(blockIdx.x % column_blocks) * int(blockDim.x) + int(threadIdx.x)) * CHANNELS;
  int token = int(blockIdx.x / column_blocks) * ROWS * steps;
  if (channel >= dim) return;
  const unsigned short* from = x + channel;
  Packed<CHANNELS> rows[ROWS], before[WIDTH - 1];
#pragma unroll
  for (int i = 0; i < WIDTH - 1; i++) {
    int t = token - (WIDTH - 1) + i;
    before[i].zero();
    if (t >= 0) before[i].load(from + static_cast<long long>(t) * dim);
  }
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    rows[i].zero();
    if (token + i < tokens) rows[i].load(from + static_cast<long long>(token + i) * dim);
  }
  Packed<4> taps[CHANNELS];
#pragma unroll
  for (int c = 0; c < CHANNELS; c++) taps[c].load(weight + (channel + c) * WIDTH);
  Packed<CHANNELS> offset;
  offset.load(bias + channel);
  bool first = token < WIDTH - 1;  // some of the three before it stand before token 0
  unsigned short old[WIDTH - 1][CHANNELS];
  if (first) {  // on their way before the rows are waited for
#pragma unroll
    for (int i = 0; i < WIDTH - 1; i++) {
#pragma unroll
      for (int c = 0; c < CHANNELS; c++) {
        if (token + i < WIDTH - 1) old[i][c] = __ldg(state + (channel + c) * (WIDTH - 1) + token + i);
      }
    }
  }
  float past[WIDTH - 1][CHANNELS];  // the oldest first
#pragma unroll
  for (int i = 0; i < WIDTH - 1; i++) {
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) past[i][c] = before[i][c];
  }
  if (first) {
#pragma unroll
    for (int i = 0; i < WIDTH - 1; i++) {
#pragma unroll
      for (int c = 0; c < CHANNELS; c++) {
        if (token + i < WIDTH - 1) past[i][c] = __uint_as_float(unsigned(old[i][c]) << 16);
      }
    }
  }
  for (int step = 1;; step++) {
    bool last = step == steps || token + ROWS >= tokens;
    Packed<CHANNELS> next[AHEAD ? ROWS : 1];
    if constexpr (AHEAD) {
#pragma unroll
      for (int i = 0; i < ROWS; i++) {
        next[i].zero();
        int t = token + ROWS + i;
        if (!last && t < tokens) next[i].load(from + static_cast<long long>(t) * dim);
      }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      float result[CHANNELS];
#pragma unroll
      for (int c = 0; c < CHANNELS; c++) {
        float now = rows[i][c], sum = offset[c];
#pragma unroll
        for (int tap = 0; tap < WIDTH - 1; tap++) sum = fmaf(taps[c][tap], past[tap][c], sum);
        result[c] = silu(fmaf(taps[c][WIDTH - 1], now, sum));
        past[0][c] = past[1][c], past[1][c] = past[2][c], past[2][c] = now;
      }
      if (token + i < tokens) {
        Packed<CHANNELS>::store(output + static_cast<long long>(token + i) * dim + channel, result);
      }
    }
    if (last) return;
    token += ROWS;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      if constexpr (AHEAD) {
        rows[i] = next[i];
      } else if (token + i < tokens) {
        rows[i].load(from + static_cast<long long>(token + i) * dim);
      }
    }
  }
}

}  // namespace

// channels x rows, ahead or not, as compiled below; channels divides dim, and rows of all tensors are aligned to it.
extern "C" int derby_causal_conv1d_run(const unsigned short* x, const unsigned short* weight,
                                       const unsigned short* bias, const unsigned short* state, unsigned short* output,
                                       int tokens, int dim, int channels, int rows, int steps, int threads,
                                       int ahead, cudaStream_t stream) {
  int column_blocks = (dim / channels + threads - 1) / threads;
  dim3 grid(column_blocks * ((tokens + rows * steps - 1) / (rows * steps)));
  auto go = [&](auto kernel) {
    return launch<Nothing>(kernel, grid, threads, 1, stream, x, weight, bias, state, output, tokens, dim,
                           column_blocks, steps);
  };
  switch (1000 * ahead + channels * 100 + rows) {
    case 101: return go(derby_causal_conv1d<1, 1, false>);
    case 108: return go(derby_causal_conv1d<1, 8, false>);
    case 201: return go(derby_causal_conv1d<2, 1, false>);
    case 204: return go(derby_causal_conv1d<2, 4, false>);
    case 208: return go(derby_causal_conv1d<2, 8, false>);
    case 401: return go(derby_causal_conv1d<4, 1, false>);
    case 404: return go(derby_causal_conv1d<4, 4, false>);
    case 408: return go(derby_causal_conv1d<4, 8, false>);
    case 416: return go(derby_causal_conv1d<4, 16, false>);
    case 804: return go(derby_causal_conv1d<8, 4, false>);
    case 808: return go(derby_causal_conv1d<8, 8, false>);
    case 1408: return go(derby_causal_conv1d<4, 8, true>);
  }
  return cudaErrorInvalidValue;
}
