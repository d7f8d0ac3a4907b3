// Short contexts: a page a warp and no more, up to 8 query heads of a group. Straight code, with every number of blocks
// and warps known to the compiler, so that little lies between the two waits for memory and behind the second.
//
// Two ways to spread a context over blocks. A cluster: each block has some pages, and sends its parts of the result to
// the block that writes these dimensions. Or sliced: each block reads all keys and its slice of the values' dimensions,
// which is more to read for a multiprocessor, and nothing to send: some 14 bytes a cycle go from one to another, up to
// 64 come from the second-level cache.
// Constraints: sm_90 or later; at most 8 query heads a key head; no warp has more than one page of 16 tokens; at most
// 65,535 sequences, which lie along the grid's second dimension; head_dim a multiple of 8 up to 256; bf16, contiguous,
// addresses a multiple of 16.

#pragma once
#include "decode_mma.cuh"
#include "once_a_device.cuh"

namespace one_page {

constexpr int PAGE = 16, HEADS = 8;

struct Arguments {
  const __nv_bfloat16 *query, *key_cache, *value_cache;
  const int *block_table, *context_lens;
  __nv_bfloat16* output;
  int kv_heads, group, table_width;
  float scale;  // of scores, for powers of two
};

// 8 or 4 values of a token.
template <int WORDS>
struct Values {
  uint32_t words[WORDS];
};
__device__ __forceinline__ void load_values(Values<4>& into, const void* place) {
  uint4 all = load_constant16(place);
  into.words[0] = all.x, into.words[1] = all.y, into.words[2] = all.z, into.words[3] = all.w;
}
__device__ __forceinline__ void load_values(Values<2>& into, const void* place) {
  uint2 all = load_constant8(place);
  into.words[0] = all.x, into.words[1] = all.y;
}

// D: head_dim. BLOCKS share a context, of W warps each.
template <int D, int BLOCKS, int W, bool SLICED>
struct Shape {
  static constexpr bool CLUSTER = BLOCKS > 1 && !SLICED;
  static constexpr int PARTS = SLICED ? W : W * BLOCKS;  // of a result: one of each warp that has another page
  static constexpr int DIMS = SLICED ? D / BLOCKS : D;   // that a warp computes
  static constexpr int EACH = D / 4 / BLOCKS;            // fours of dimensions that a block writes
  static constexpr int WORDS = DIMS >= 64 ? 4 : 2;       // of a token's values that a lane loads at once
  static constexpr int ROWS = DIMS / (16 * WORDS);       // how often
  static_assert(W >= 1 && W <= 8 && BLOCKS >= 1 && BLOCKS <= 8, "a cluster of blocks that every GPU of sm_90 takes");
  static_assert(ROWS * 16 * WORDS == DIMS, "whole loads of a token's values");
  static_assert(EACH * 4 * BLOCKS == D, "every block writes whole fours of dimensions");
  struct Shared {
    uint64_t barrier;
    alignas(16) float2 statistics[PARTS][HEADS];  // greatest score and sum of weights
    float4 outputs[PARTS][HEADS][EACH + 1];       // unnormalised; one more keeps stores off each other's banks
  };
};

template <int D, int BLOCKS, int W, bool SLICED>
__global__ void __launch_bounds__(32 * W) derby_paged_attention_decode_page(const __grid_constant__ Arguments a) {
  using S = Shape<D, BLOCKS, W, SLICED>;
  constexpr int EACH = S::EACH, WORDS = S::WORDS;
  auto& shared = *reinterpret_cast<typename S::Shared*>(shared_memory());
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4, corner = lane % 4;
  const unsigned block = blockIdx.x % BLOCKS, head = blockIdx.x / BLOCKS, sequence = blockIdx.y;
  const int part = SLICED ? warp : block * W + warp, heads = a.group;  // the part is that of its page

  const unsigned entry = min(part, a.table_width - 1);
  unsigned page = load_constant_index(a.block_table + (static_cast<size_t>(sequence) * unsigned(a.table_width) + entry));
  const int left = load_constant_index(a.context_lens + sequence) - part * PAGE;  // tokens of this page and those behind it
  __syncwarp();  // these first
  const size_t first_head = (static_cast<size_t>(sequence) * unsigned(a.kv_heads) + head) * unsigned(heads);
  uint4 query[D / 32];
  const __nv_bfloat16* mine = a.query + (first_head + min(quad, heads - 1)) * D + 8 * corner;
#pragma unroll
  for (int j = 0; j < D / 32; j++) query[j] = load_constant16(mine + 32 * j);

  // Where this lane's tokens begin in page 0: all that can be known before the page is.
  const unsigned token = a.kv_heads * D, page_bytes = PAGE * token * 2;
  const __nv_bfloat16* keys[2];
  const __nv_bfloat16* values[4];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    keys[i] = a.key_cache + (quad + 8 * i) * token + head * D + 8 * corner;
    keep(keys[i]);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    unsigned dim = (SLICED ? block * S::DIMS : 0) + 2 * WORDS * quad;
    values[i] = a.value_cache + (2 * corner + i % 2 + i / 2 * 8) * token + head * D + dim;
    keep(values[i]);
  }
  const uint32_t barrier = shared_address(&shared.barrier);
  if (S::CLUSTER) {
    if (threadIdx.x == 0) {
      mbarrier_init(barrier, 1);
      fence_mbarrier_init();
      mbarrier_arrive_expect_tx(barrier, S::PARTS * heads * (EACH * sizeof(float4) + sizeof(float2)));
    }
    cluster_arrive_relaxed();
  }

  uint4 key[D / 32][2];
  Values<WORDS> value[S::ROWS][4];
  if (left > 0) {  // a page is there as a whole, so that free slots can be read; what is there does not count
    const size_t offset = static_cast<size_t>(page) * page_bytes;
    auto in_page = [&](const __nv_bfloat16* place) { return reinterpret_cast<const char*>(place) + offset; };
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int j = 0; j < D / 32; j++) key[j][i] = load_constant16(in_page(keys[i]) + 64 * j);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int j = 0; j < S::ROWS; j++) load_values(value[j][i], in_page(values[i]) + 32 * WORDS * j);
  }
  __syncwarp();  // or the compiler waits for keys before it asks for values

  // sums[WORDS j + i]: dimensions 16 WORDS j + 2 WORDS quad + 2 i (x, y) and the next (z, w), heads 2 corner (x, z) and
  // the next (y, w), as most and sum.
  float4 sums[S::DIMS / 16];
  float most[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < S::DIMS / 16; i++) sums[i] = {0, 0, 0, 0};
  if (left > 0) {
    float4 scores[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
      multiply(scores[0], key[j][0].x, key[j][1].x, key[j][0].y, key[j][1].y, query[j].x, query[j].y);
      multiply(scores[1], key[j][0].z, key[j][1].z, key[j][0].w, key[j][1].w, query[j].z, query[j].w);
    }
    if (left < PAGE) {  // free slots may hold anything, and 0 times NaN is NaN
#pragma unroll
      for (int i = 0; i < 4; i++) {
        bool free = 2 * corner + i % 2 + i / 2 * 8 >= left;
#pragma unroll
        for (int k = 0; k < S::ROWS * WORDS; k++) {
          if (free) value[k / WORDS][i].words[k % WORDS] = 0;
        }
      }
    }
    float s[2][2] = {{scores[0].x + scores[1].x, scores[0].y + scores[1].y},  // token quad or quad + 8, the two heads
                     {scores[0].z + scores[1].z, scores[0].w + scores[1].w}};
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
      for (int i = 0; i < 2; i++) s[i][h] = quad + 8 * i < left ? s[i][h] * a.scale : -INFINITY;
      most[h] = most_of_rows(fmaxf(s[0][h], s[1][h]));
#pragma unroll
      for (int i = 0; i < 2; i++) s[i][h] = exp2_approx(s[i][h] - most[h]);
      sum[h] = s[0][h] + s[1][h];
    }
    uint32_t low = movmatrix_transposed(pack_bf16(s[0][0], s[0][1]));
    uint32_t high = movmatrix_transposed(pack_bf16(s[1][0], s[1][1]));
#pragma unroll
    for (int j = 0; j < S::ROWS; j++) {
#pragma unroll
      for (int i = 0; i < WORDS; i++) {
        uint32_t row[4] = {value[j][0].words[i], value[j][1].words[i], value[j][2].words[i], value[j][3].words[i]};
        multiply(sums[WORDS * j + i], __byte_perm(row[0], row[1], 0x5410), __byte_perm(row[0], row[1], 0x7632),
                 __byte_perm(row[2], row[3], 0x5410), __byte_perm(row[2], row[3], 0x7632), low, high);
      }
    }
  }
  sum[0] = sum_of_rows(sum[0]), sum[1] = sum_of_rows(sum[1]);

  // The warp's part to where these dimensions are written.
  if (S::CLUSTER) cluster_wait();
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int of = 2 * corner + h;
    if (of >= heads) continue;
    float2 both = {most[h], sum[h]};
    if (!S::CLUSTER && quad == 0) shared.statistics[part][of] = both;
    if (S::CLUSTER && quad < BLOCKS) {
      store_async(cluster_address(shared_address(&shared.statistics[part][of]), quad), both, cluster_address(barrier, quad));
    }
#pragma unroll
    for (int i = 0; i < S::DIMS / 32; i++) {
      const float4 &x = sums[2 * i], &y = sums[2 * i + 1];
      float4 four = h ? make_float4(x.y, x.w, y.y, y.w) : make_float4(x.x, x.z, y.x, y.z);
      if (S::CLUSTER) {
        const int at = 8 * i + quad, to = EACH >= 8 ? 8 * i / EACH : at / EACH, place = at - to * EACH;
        store_async(cluster_address(shared_address(&shared.outputs[part][of][place]), to), four,
                    cluster_address(barrier, to));
      } else {
        shared.outputs[part][of][8 * i + quad] = four;
      }
    }
  }
  if (S::CLUSTER) {
    mbarrier_wait_cluster(barrier, 0);
  } else {
    __syncthreads();
  }

  // All parts, in their order.
#pragma unroll 1
  for (int i = threadIdx.x; i < heads * EACH; i += 32 * W) {
    const int h = i / EACH, four = i % EACH;
    float2 both[S::PARTS];
    float whole = -INFINITY, total = 0;
#pragma unroll
    for (int p = 0; p < S::PARTS; p++) both[p] = shared.statistics[p][h], whole = fmaxf(whole, both[p].x);
    float4 all = {0, 0, 0, 0};
#pragma unroll
    for (int p = 0; p < S::PARTS; p++) {
      float4 its = shared.outputs[p][h][four];
      float factor = exp2_approx(both[p].x - whole);  // 0 where the part has no token
      total += factor * both[p].y;
      all.x += factor * its.x, all.y += factor * its.y, all.z += factor * its.z, all.w += factor * its.w;
    }
    const int at = (SLICED ? 0 : block * EACH) + four;
    const int dim = WORDS == 4 ? at / 16 * 64 + at % 8 * 8 + at / 8 % 2 * 4 : 4 * at;
    float by = reciprocal_approx(total);
    uint2 words = {pack_bf16(all.x * by, all.y * by), pack_bf16(all.z * by, all.w * by)};
    if (!(total > 0)) words = {0, 0};  // an empty sequence
    *reinterpret_cast<uint2*>(a.output + (first_head + h) * D + (SLICED ? block * S::DIMS : 0) + dim) = words;
  }
}

template <int D, int BLOCKS, int W, bool SLICED>
static cudaError_t start(const Arguments& given, int sequences, cudaStream_t stream) {
  using S = Shape<D, BLOCKS, W, SLICED>;
  constexpr auto kernel = derby_paged_attention_decode_page<D, BLOCKS, W, SLICED>;
  static OnceADevice ready;
  cudaError_t error = ready.allow_shared_memory<kernel, sizeof(typename S::Shared)>();
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(BLOCKS * given.kv_heads, sequences);
  config.blockDim = dim3(W * 32);
  config.dynamicSmemBytes = sizeof(typename S::Shared);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = BLOCKS, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  if (S::CLUSTER) config.attrs = &attribute, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, given);
}

using Start = cudaError_t (*)(const Arguments&, int, cudaStream_t);

// What starts the kernel for this head_dim, or nothing: there is none with so many blocks and warps.
template <int D>
Start for_dim(int blocks, int warps, bool sliced) {
  if (sliced) {
    if (warps != 8 || blocks > D / 32) return nullptr;
    return blocks == 2 ? start<D, 2, 8, true> : blocks == 4 ? start<D, D < 128 ? 2 : 4, 8, true> : nullptr;
  }
  switch (16 * blocks + warps) {
    case 0x18: return start<D, 1, 8, false>;
    case 0x24: return start<D, 2, 4, false>;
    case 0x42: return start<D, 4, 2, false>;
    case 0x81: return start<D, 8, 1, false>;
    case 0x14: return start<D, 1, 4, false>;
    case 0x22: return start<D, 2, 2, false>;
    case 0x41: return start<D, 4, 1, false>;
  }
  return nullptr;
}

inline Start for_call(int head_dim, int blocks, int warps, bool sliced) {
  return head_dim == 64    ? for_dim<64>(blocks, warps, sliced)
         : head_dim == 128 ? for_dim<128>(blocks, warps, sliced)
         : head_dim == 256 ? for_dim<256>(blocks, warps, sliced)
                           : nullptr;
}

}  // namespace one_page
