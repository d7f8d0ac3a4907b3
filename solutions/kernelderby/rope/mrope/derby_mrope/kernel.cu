// derby_mrope for heads of 128 columns whose sections end at multiples of eight: a thread rotates the same eight pairs
// of columns in several heads of a token, so it reads their cosines and sines only once. Outputs may lie in the inputs:
// a thread has read its heads before it writes them, and no other thread reads them.
// Constraints: sm_90 or later; 128 columns a head, sections that end at multiples of 8; bf16, contiguous, addresses a
// multiple of 16; fewer than 2^33 values; outputs may lie in the inputs.

#include <cuda_bf16.h>

#include "any_gpu.cuh"
#include "cluster.cuh"

namespace {

constexpr int VECTORS = 16;  // of a head: vectors of 8 bfloat16
constexpr int THREADS = VECTORS / 2;  // of a head

struct Heads {
  const uint4 *query, *key;
  const float4 *cosine, *sine;  // [3, tokens, 64]
  uint4 *query_out, *key_out;
  int tokens, q_heads, kv_heads, time, height;  // time, height: columns of the first two sections
};

// a * c - b * s and b * c + a * s of two bfloat16 each, packed.
__device__ __forceinline__ void turn(unsigned& a, unsigned& b, const float* c, const float* s) {
  float a0 = __uint_as_float(a << 16), a1 = __uint_as_float(a & 0xffff0000u);
  float b0 = __uint_as_float(b << 16), b1 = __uint_as_float(b & 0xffff0000u);
  __nv_bfloat162 first = __floats2bfloat162_rn(a0 * c[0] - b0 * s[0], a1 * c[1] - b1 * s[1]);
  __nv_bfloat162 second = __floats2bfloat162_rn(b0 * c[0] + a0 * s[0], b1 * c[1] + a1 * s[1]);
  a = *reinterpret_cast<unsigned*>(&first);
  b = *reinterpret_cast<unsigned*>(&second);
}

// HEADS: of a thread, query heads and key heads beside each other. groups: of HEADS heads in a token.
template <int HEADS>
__global__ void __launch_bounds__(256) derby_mrope(Heads h, int groups) {
  static_assert(HEADS >= 1 && HEADS <= 6, "all of a thread's heads are in registers");
  int id = int(blockIdx.x) * int(blockDim.x) + int(threadIdx.x), place = id % THREADS, group = id / THREADS;
  int token = group / groups, first = group % groups * HEADS;
  if (token >= h.tokens) return;
  uint4 a[HEADS], b[HEADS];
  auto offset = [&](int head) {
    return head < h.q_heads ? (static_cast<long long>(token) * h.q_heads + head) * VECTORS + place
                            : (static_cast<long long>(token) * h.kv_heads + head - h.q_heads) * VECTORS + place;
  };
#pragma unroll
  for (int i = 0; i < HEADS; i++) {
    int head = first + i;
    if (head < h.q_heads + h.kv_heads) {
      const uint4* from = (head < h.q_heads ? h.query : h.key) + offset(head);
      a[i] = read<false>(from), b[i] = read<false>(from + THREADS);  // not __ldg: another thread may write beside it
    }
  }
  int column = place * 8, section = (column >= h.time) + (column >= h.time + h.height);
  long long angle = ((static_cast<long long>(section) * h.tokens + token) * THREADS + place) * 2;
  float4 c[2] = {__ldg(h.cosine + angle), __ldg(h.cosine + angle + 1)};
  float4 s[2] = {__ldg(h.sine + angle), __ldg(h.sine + angle + 1)};
  const float cosines[8] = {c[0].x, c[0].y, c[0].z, c[0].w, c[1].x, c[1].y, c[1].z, c[1].w};
  const float sines[8] = {s[0].x, s[0].y, s[0].z, s[0].w, s[1].x, s[1].y, s[1].z, s[1].w};
#pragma unroll
  for (int i = 0; i < HEADS; i++) {
    int head = first + i;
    if (head < h.q_heads + h.kv_heads) {
      turn(a[i].x, b[i].x, cosines, sines);
      turn(a[i].y, b[i].y, cosines + 2, sines + 2);
      turn(a[i].z, b[i].z, cosines + 4, sines + 4);
      turn(a[i].w, b[i].w, cosines + 6, sines + 6);
      uint4* to = (head < h.q_heads ? h.query_out : h.key_out) + offset(head);
      to[0] = a[i], to[THREADS] = b[i];
    }
  }
}

}  // namespace

// heads: of a thread, as compiled below. threads: of a block, up to 256.
extern "C" int derby_mrope_run(const uint4* query, const uint4* key, const float4* cosine, const float4* sine,
                               uint4* query_out, uint4* key_out, int tokens, int q_heads, int kv_heads, int time,
                               int height, int heads, int threads, cudaStream_t stream) {
  Heads all{query, key, cosine, sine, query_out, key_out, tokens, q_heads, kv_heads, time, height};
  int groups = (q_heads + kv_heads + heads - 1) / heads;
  long long total = static_cast<long long>(tokens) * groups * THREADS;
  if (total > 0x7fffff00 || threads > 256) return cudaErrorInvalidValue;
  auto go = [&](auto kernel) {
    return launch<Nothing>(kernel, dim3((total + threads - 1) / threads), threads, 1, stream, all, groups);
  };
  switch (heads) {
    case 1: return go(derby_mrope<1>);
    case 2: return go(derby_mrope<2>);
    case 3: return go(derby_mrope<3>);
    case 4: return go(derby_mrope<4>);
    case 5: return go(derby_mrope<5>);
    case 6: return go(derby_mrope<6>);
  }
  return cudaErrorInvalidValue;
}
