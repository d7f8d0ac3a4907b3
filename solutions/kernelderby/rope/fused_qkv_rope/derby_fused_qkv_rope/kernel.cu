// derby_fused_qkv_rope: a thread rotates the same few pairs of columns in several heads of a token, so it computes
// their cosines and sines only once, in double precision, while the heads are loaded. Outputs may lie in the inputs: a
// thread has read its heads before it writes them, and no other thread reads them.
//
// Constraints: PAIRS divides the pairs of a head, and heads lie at multiples of PAIRS * 2 bytes.

#include <cuda_fp16.h>

#include "cluster.cuh"

namespace {

// heads: of a token, in memory. touched: how many of them, from the first on, are written. rotated: how many of these,
// from the first on, are rotated. half: pairs of a head.
struct Heads {
  const __half* qkv;
  const int* positions;
  __half* output;
  int tokens, heads, touched, rotated, half;
  double slope;  // log2(rope_base) / half
};

// 2 ** exponent, to 1e-11: an integer into the exponent bits, the Taylor series of the rest.
__device__ __forceinline__ double power_of_two(double exponent) {
  double whole = floor(exponent + 0.5), z = (exponent - whole) * 0.6931471805599453;
  constexpr double FACTORIALS[] = {1.0, 1.0, 2.0, 6.0, 24.0, 120.0, 720.0, 5040.0, 40320.0, 362880.0};
  double series = 1.0 / FACTORIALS[9];
#pragma unroll
  for (int i = 8; i >= 0; i--) series = fma(series, z, 1.0 / FACTORIALS[i]);
  return series * __longlong_as_double(static_cast<long long>(static_cast<int>(whole) + 1023) << 52);
}

// Cosine and sine of whole + rest quarter turns, |rest| <= 1/2, to 1e-7.
__device__ __forceinline__ void quarter_turns(float rest, int whole, float& c, float& s) {
  float z = rest * 1.5707963267948966f, square = z * z;
  float cosine = ((square * (1.0f / 40320.0f) - 1.0f / 720.0f) * square + 1.0f / 24.0f) * square - 0.5f;
  cosine = cosine * square + 1.0f;
  float sine = ((square * (1.0f / 362880.0f) - 1.0f / 5040.0f) * square + 1.0f / 120.0f) * square - 1.0f / 6.0f;
  sine = sine * square * z + z;
  bool odd = whole & 1;
  c = odd ? sine : cosine, s = odd ? cosine : sine;
  c = (whole + 1) & 2 ? -c : c, s = whole & 2 ? -s : s;
}

template <int PAIRS, int HEADS>
__global__ void __launch_bounds__(256) derby_fused_qkv_rope(Heads h, int groups) {
  using Vector = typename Bits<2 * PAIRS>::Type;
  union Values { Vector vector; __half each[PAIRS]; };
  const int places = h.half / PAIRS;  // threads of a head
  const long long id = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int group = int(id / places), place = int(id - static_cast<long long>(group) * places);
  const int token = group / groups, first = (group - token * groups) * HEADS;
  if (token >= h.tokens) return;
  const long long start = (static_cast<long long>(token) * h.heads + first) * 2 * h.half + place * PAIRS;
  Values low[HEADS], high[HEADS];
#pragma unroll
  for (int i = 0; i < HEADS; i++) {
    if (first + i >= h.touched) continue;
    const __half* from = h.qkv + start + static_cast<long long>(i) * 2 * h.half;
    low[i].vector = *reinterpret_cast<const Vector*>(from);
    high[i].vector = *reinterpret_cast<const Vector*>(from + h.half);
  }
  if (first < h.rotated) {
    const double position = h.positions[token];
    float c[PAIRS], s[PAIRS];
#pragma unroll
    for (int i = 0; i < PAIRS; i++) {
      // In quarter turns, not radians: log2(2 / pi) = -0.6514961294723188.
      double turns = position * power_of_two(fma(double(place * PAIRS + i), -h.slope, -0.6514961294723188));
      double whole = floor(turns + 0.5);
      quarter_turns(float(turns - whole), static_cast<int>(static_cast<long long>(whole)), c[i], s[i]);
    }
#pragma unroll
    for (int i = 0; i < HEADS; i++) {
      if (first + i >= h.rotated) continue;
#pragma unroll
      for (int j = 0; j < PAIRS; j++) {
        float a = __half2float(low[i].each[j]), b = __half2float(high[i].each[j]);
        low[i].each[j] = __float2half_rn(a * c[j] - b * s[j]);
        high[i].each[j] = __float2half_rn(b * c[j] + a * s[j]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < HEADS; i++) {
    if (first + i >= h.touched) continue;
    __half* to = h.output + start + static_cast<long long>(i) * 2 * h.half;
    *reinterpret_cast<Vector*>(to) = low[i].vector;
    *reinterpret_cast<Vector*>(to + h.half) = high[i].vector;
  }
}

template <int PAIRS, int HEADS>
int go(const Heads& h, int threads, cudaStream_t stream) {
  const int groups = (h.touched + HEADS - 1) / HEADS;
  const long long total = static_cast<long long>(h.tokens) * groups * (h.half / PAIRS);
  const long long blocks = (total + threads - 1) / threads;
  if (blocks > 0x7fffffff || static_cast<long long>(h.tokens) * groups > 0x7fffffff) return cudaErrorInvalidValue;
  return launch<Nothing>(derby_fused_qkv_rope<PAIRS, HEADS>, dim3(unsigned(blocks)), threads, 1, stream, h, groups);
}

template <int PAIRS>
int go(const Heads& h, int heads, int threads, cudaStream_t stream) {
  switch (heads) {
    case 1: return go<PAIRS, 1>(h, threads, stream);
    case 2: return go<PAIRS, 2>(h, threads, stream);
    case 4: return go<PAIRS, 4>(h, threads, stream);
    case 8: return go<PAIRS, 8>(h, threads, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

// pairs, heads: of a thread, as compiled here. threads: of a block, up to 256.
extern "C" int derby_fused_qkv_rope_run(const __half* qkv, const int* positions, __half* output, int tokens, int heads,
                                        int touched, int rotated, int half, double slope, int pairs, int of_thread,
                                        int threads, cudaStream_t stream) {
  Heads h{qkv, positions, output, tokens, heads, touched, rotated, half, slope};
  if (threads > 256 || half % pairs) return cudaErrorInvalidValue;
  switch (pairs) {
    case 8: return go<8>(h, of_thread, threads, stream);
    case 4: return go<4>(h, of_thread, threads, stream);
    case 2: return go<2>(h, of_thread, threads, stream);
    case 1: return go<1>(h, of_thread, threads, stream);
  }
  return cudaErrorInvalidValue;
}
