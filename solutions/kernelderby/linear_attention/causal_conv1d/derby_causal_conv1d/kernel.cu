// derby_causal_conv1d: one launch. A thread loads a few channels of a few neighbouring tokens and of the three tokens
// before them, and issues all loads before it uses any value. Only where the tokens of two threads meet are three rows
// read twice.
//
// From a few hundred tokens on, the special function unit is as much a limit as memory: a multiprocessor computes 16
// exponentials or reciprocals a clock, and one of each for SiLU would take 2 us for 1024 x 4096. Hence silu() below.
// Constraints: sm_90 or later; a filter of 4 taps; channels a multiple of 8 and of what a thread has; at most 256
// threads; bf16, contiguous, addresses a multiple of 16; forms as the switch at the end lists them.

#include <cuda_bf16.h>

#include "any_gpu.cuh"
#include "cluster.cuh"

namespace {

constexpr int WIDTH = 4;

// N bfloat16 in a row, N = 1, 2, 4 or 8, as 32-bit words of two (N = 1: the low half of one).
template <int N>
struct Packed {
  using Vector = typename Bits<2 * N>::Type;
  union {
    Vector vector;
    unsigned words[(N + 1) / 2];
  };

  __device__ __forceinline__ void load(const unsigned short* from) {
    if constexpr (N == 1) words[0] = __ldg(from);
    else vector = __ldg(reinterpret_cast<const Vector*>(from));
  }
  __device__ __forceinline__ void gather(const unsigned short* from, int apart) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      words[i / 2] = __ldg(from + i * apart);
      if constexpr (N > 1) words[i / 2] |= unsigned(__ldg(from + (i + 1) * apart)) << 16;
    }
  }
  __device__ __forceinline__ float operator[](int i) const {
    return __uint_as_float(i % 2 ? words[i / 2] & 0xffff0000u : words[i / 2] << 16);
  }
  __device__ __forceinline__ static void store(unsigned short* to, const float (&values)[N]) {
    Packed packed;
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      __nv_bfloat162 pair = __floats2bfloat162_rn(values[i], N == 1 ? 0.0f : values[(i + 1) % N]);
      packed.words[i / 2] = *reinterpret_cast<unsigned*>(&pair);
    }
    *reinterpret_cast<Vector*>(to) = packed.vector;
  }
};

// x / (1 + exp(-x)) = x / 2 + x / 2 * tanh(x / 2): one instruction of the special function unit, not two. The error on
// an H200 is at most 1.1e-5 over all bfloat16 numbers. NaN at minus infinity, like the product of x and its sigmoid.
__device__ __forceinline__ float silu(float x) {
  float half = 0.5f * x;
  return fmaf(half, hyperbolic_tangent(half), half);
}

// x, output [tokens, dim], weight [dim, 4], bias [dim], state [dim, 3], all bfloat16. A thread has CHANNELS channels and
// ROWS tokens; a block's threads lie beside each other, column_blocks blocks make a row.
template <int CHANNELS, int ROWS>
__global__ void __launch_bounds__(256) derby_causal_conv1d(
    const unsigned short* __restrict__ x, const unsigned short* __restrict__ weight,
    const unsigned short* __restrict__ bias, const unsigned short* __restrict__ state,
    unsigned short* __restrict__ output, int tokens, int dim, int column_blocks) {
  static_assert(CHANNELS == 1 || CHANNELS == 2 || CHANNELS == 4 || CHANNELS == 8, "one load of up to 16 bytes a token");
  static_assert(ROWS >= 1 && ROWS <= 8, "all of a thread's tokens are in registers");
  int channel = (int(blockIdx.x % column_blocks) * int(blockDim.x) + int(threadIdx.x)) * CHANNELS;
  int token = int(blockIdx.x / column_blocks) * ROWS;
  if (channel >= dim) return;
  Packed<CHANNELS> rows[WIDTH - 1 + ROWS];  // from three tokens before its own
#pragma unroll
  for (int i = 0; i < WIDTH - 1 + ROWS; i++) {
    int t = token - (WIDTH - 1) + i;
    if (t >= 0 && t < tokens) rows[i].load(x + static_cast<long long>(t) * dim + channel);
  }
  Packed<CHANNELS> offset;
  offset.load(bias + channel);
  constexpr int TOGETHER = CHANNELS == 1 ? 1 : 2;  // channels whose taps a load brings
  Packed<4 * TOGETHER> taps[CHANNELS / TOGETHER];
#pragma unroll
  for (int c = 0; c < CHANNELS / TOGETHER; c++) taps[c].load(weight + (channel + c * TOGETHER) * WIDTH);
  if (token < WIDTH - 1) {  // what stands before token 0
#pragma unroll
    for (int i = 0; i < WIDTH - 1; i++) {
      if (token + i < WIDTH - 1) rows[i].gather(state + channel * (WIDTH - 1) + token + i, WIDTH - 1);
    }
  }
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    if (token + i < tokens) {  // around everything, since a return would take half as many registers more
      float result[CHANNELS];
#pragma unroll
      for (int c = 0; c < CHANNELS; c++) {
        float sum = offset[c];
#pragma unroll
        for (int tap = 0; tap < WIDTH; tap++) {
          sum = fmaf(taps[c / TOGETHER][c % TOGETHER * WIDTH + tap], rows[i + tap][c], sum);
        }
        result[c] = silu(sum);
      }
      Packed<CHANNELS>::store(output + static_cast<long long>(token + i) * dim + channel, result);
    }
  }
}

}  // namespace

// channels x rows, as compiled below; channels divides dim, and rows of all tensors are aligned to it.
extern "C" int derby_causal_conv1d_run(const unsigned short* x, const unsigned short* weight,
                                       const unsigned short* bias, const unsigned short* state, unsigned short* output,
                                       int tokens, int dim, int channels, int rows, int threads,
                                       cudaStream_t stream) {
  int column_blocks = (dim / channels + threads - 1) / threads;
  dim3 grid(column_blocks * ((tokens + rows - 1) / rows));
  auto go = [&](auto kernel) {
    return launch<Nothing>(kernel, grid, threads, 1, stream, x, weight, bias, state, output, tokens, dim,
                           column_blocks);
  };
  switch (channels * 100 + rows) {
    case 101: return go(derby_causal_conv1d<1, 1>);
    case 108: return go(derby_causal_conv1d<1, 8>);
    case 201: return go(derby_causal_conv1d<2, 1>);
    case 202: return go(derby_causal_conv1d<2, 2>);
    case 204: return go(derby_causal_conv1d<2, 4>);
    case 208: return go(derby_causal_conv1d<2, 8>);
    case 401: return go(derby_causal_conv1d<4, 1>);
    case 402: return go(derby_causal_conv1d<4, 2>);
    case 404: return go(derby_causal_conv1d<4, 4>);
    case 408: return go(derby_causal_conv1d<4, 8>);
    case 802: return go(derby_causal_conv1d<8, 2>);
    case 804: return go(derby_causal_conv1d<8, 4>);
    case 808: return go(derby_causal_conv1d<8, 8>);
  }
  return cudaErrorInvalidValue;
}
