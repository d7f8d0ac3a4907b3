// For short contexts: at most one tile a block, 8 query heads. The code has no loop over tiles, and the compiler knows
// the number of blocks and of tokens. The blocks of a cluster share a context: each sends its parts of the result to
// the block that writes these dimensions.
// Constraints: as latent_clusters.cuh, and: one group of 8 heads, 32 or 64 tokens, at most 8 blocks that share a
// context, one tile each; fewer than 65,536 sequences.

#pragma once
#include <type_traits>

#include "decode_mma.cuh"
#include "lanes.cuh"
#include "once_a_device.cuh"

namespace one_tile {

constexpr int KEY = 576, LATENT = 512, PITCH = KEY + 8;  // a row is 16 bytes longer: ldmatrix without bank conflicts
constexpr int WARPS = 8, THREADS = WARPS * 32, HEADS = 8;

struct Arguments {
  const __nv_bfloat16 *query, *cache;
  const int* context_lens;
  __nv_bfloat16* output;
  int heads, slots, longest;  // slots: of a sequence, or of a block and then 1 << page_bits
  float scale;  // of scores, for powers of two
};

struct InBlocks : Arguments {
  const int* block_table;
  int table_width, page_bits;
};

template <bool PAGED>
using Given = std::conditional_t<PAGED, InBlocks, Arguments>;

// T: tokens of a tile. BLOCKS of a cluster: 1, 2, 4 or 8.
template <int T, int BLOCKS>
struct Shape {
  static constexpr int ROWS = T / 16, SHARES = WARPS / ROWS;  // warps to 16 tokens, which share the products of a score
  static constexpr int STEPS = KEY / 16 / SHARES, AT_ONCE = STEPS > 9 ? 9 : STEPS;
  static constexpr int EACH = LATENT / 16 / BLOCKS;  // groups of 16 dimensions that a block writes
  struct Shared {
    uint64_t sent;  // barrier of the cluster's parts
    alignas(16) float2 statistics[BLOCKS][HEADS];  // greatest score and sum of weights
    float4 gathered[LATENT / 16][32];              // outputs of this block's dimensions, block by block
    float scores[SHARES][HEADS][T + 4];
    alignas(16) __nv_bfloat16 query[HEADS][PITCH];
    alignas(16) __nv_bfloat16 rows[T][PITCH];
  };
  static_assert(KEY / 16 % SHARES == 0, "every share has as many steps");
};

// Loads a row of 72 times 16 bytes with a warp.
__device__ __forceinline__ void copy_row(uint32_t to, const __nv_bfloat16* from, int lane) {
  cp_async16(to, from);
  cp_async16(to + 512, from + 256);
  if (lane < 8) cp_async16(to + 1024, from + 512);
}

// The bits of a pair of values that are kept if tokens from `end` on do not count.
__device__ __forceinline__ uint32_t kept(int token, int end) {
  return (token < end ? 0xffffu : 0) | (token + 1 < end ? 0xffff0000u : 0);
}

template <int T, int BLOCKS, bool PAGED>
__global__ void __launch_bounds__(THREADS, 1) derby_latent_one_tile(const __grid_constant__ Given<PAGED> a) {
  using S = Shape<T, BLOCKS>;
  auto& shared = *reinterpret_cast<typename S::Shared*>(shared_memory());
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4, corner = lane % 4;
  const unsigned block = blockIdx.x % BLOCKS, first_head = blockIdx.x / BLOCKS * HEADS, sequence = blockIdx.y;
  const int start = block * T, heads = min(HEADS, a.heads - int(first_head));
  int length = load_constant_index(a.context_lens + sequence);
  int page = 0;  // lane i has the block of the warp's i-th row
  if constexpr (PAGED) {
    const int token = start + lane * WARPS + warp;
    if (lane < T / WARPS && token < a.longest)
      page = load_constant_index(a.block_table + static_cast<size_t>(sequence) * unsigned(a.table_width) +
                                 (token >> a.page_bits));
  }
  __syncwarp();  // this first

  // Without blocks, loads before the length is known; tokens behind the last one are left out later. Rows and heads
  // that do not exist are replaced by the last ones. In blocks, rows behind the last token are not loaded.
  const size_t mine = static_cast<size_t>(sequence) * unsigned(a.heads) + first_head;
  const uint32_t to = shared_address(&shared.rows[warp][8 * lane]);
  const auto copy_query = [&] {
    const __nv_bfloat16* row = a.query + (mine + min(warp, heads - 1)) * KEY + 8 * lane;
    copy_row(shared_address(&shared.query[warp][8 * lane]), row, lane);
  };
  if constexpr (PAGED) {
    copy_query();
    length = min(length, a.longest);
#pragma unroll
    for (int row = 0; row < T; row += WARPS) {
      const int token = start + row + warp;
      const size_t block_of_row = __shfl_sync(~0u, page, row / WARPS);
      const size_t slot = (block_of_row << a.page_bits) + (token & (a.slots - 1));
      if (token < length) copy_row(to + row * PITCH * 2, a.cache + slot * KEY + 8 * lane, lane);
    }
  } else {
    const __nv_bfloat16* from = a.cache + static_cast<size_t>(sequence) * unsigned(a.slots) * KEY + 8 * lane;
#pragma unroll
    for (int row = 0; row < T; row += WARPS) {
      copy_row(to + row * PITCH * 2, from + static_cast<size_t>(min(start + row + warp, a.longest - 1)) * KEY, lane);
    }
    copy_query();
  }
  cp_async_commit_group();
  const uint32_t sent = shared_address(&shared.sent);
  if (BLOCKS > 1) {
    if (threadIdx.x == 0) {
      mbarrier_init(sent, 1);
      fence_mbarrier_init();
      mbarrier_arrive_expect_tx(sent, LATENT / 16 * 32 * sizeof(float4) + BLOCKS * HEADS * sizeof(float2));
    }
    cluster_arrive_relaxed();
  }

  // most and sum are those of head quad; outputs are those of heads 2 corner (x, z) and the next one (y, w), for the
  // warp's 64 dimensions.
  float most = -INFINITY, sum = 0;
  float4 found[4] = {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}};
  cp_async_wait_group<0>();
  if (start < length) {
    __syncthreads();
    const int rows = warp % S::ROWS * 16, share = warp / S::ROWS;
    const uint32_t key = shared_address(&shared.rows[rows + lane % 16][lane / 16 * 8]);
    const uint32_t query = shared_address(&shared.query[lane % 8][lane / 8 % 2 * 8]);
    float4 chains[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};  // of products that wait for each other
#pragma unroll
    for (int first = 0; first < S::STEPS; first += S::AT_ONCE) {
      uint32_t x[S::AT_ONCE][4], y[S::AT_ONCE][2];
#pragma unroll
      for (int i = 0; i < S::AT_ONCE; i++) {
        ldmatrix_x4(x[i], key + ((first + i) * S::SHARES + share) * 32);
        ldmatrix_x2(y[i], query + ((first + i) * S::SHARES + share) * 32);
      }
#pragma unroll
      for (int i = 0; i < S::AT_ONCE; i++) {
        multiply(chains[i % 2], x[i][0], x[i][1], x[i][2], x[i][3], y[i][0], y[i][1]);
      }
    }
    float* score = &shared.scores[share][2 * corner][rows + quad];
    score[0] = chains[0].x + chains[1].x, score[T + 4] = chains[0].y + chains[1].y;
    score[8] = chains[0].z + chains[1].z, score[T + 12] = chains[0].w + chains[1].w;

    // Values are read from here on, so that they arrive while the other warps' scores do.
    uint32_t value[S::ROWS][4][4];
    const uint32_t values = shared_address(&shared.rows[lane % 8 + lane / 16 * 8][64 * warp + lane / 8 % 2 * 8]);
#pragma unroll
    for (int row = 0; row < S::ROWS; row++) {
#pragma unroll
      for (int i = 0; i < 4; i++) ldmatrix_x4_transposed(value[row][i], values + row * 16 * PITCH * 2 + i * 32);
    }
    __syncthreads();
    float2 s[T / 8];  // tokens 2 corner and the next, in steps of 8
#pragma unroll
    for (int i = 0; i < T / 8; i++) {
      s[i] = {0, 0};
#pragma unroll
      for (int k = 0; k < S::SHARES; k++) {
        float2 part = *reinterpret_cast<const float2*>(&shared.scores[k][quad][8 * i + 2 * corner]);
        s[i].x += part.x, s[i].y += part.y;
      }
      int token = start + 8 * i + 2 * corner;
      s[i].x = token < length ? s[i].x * a.scale : -INFINITY;
      s[i].y = token + 1 < length ? s[i].y * a.scale : -INFINITY;
      most = fmaxf(most, fmaxf(s[i].x, s[i].y));
    }
    most = quad_max(most);
    uint32_t weights[T / 8];
#pragma unroll
    for (int i = 0; i < T / 8; i++) {
      s[i].x = exp2_approx(s[i].x - most), s[i].y = exp2_approx(s[i].y - most);
      sum += s[i].x + s[i].y;
      weights[i] = pack_bf16(s[i].x, s[i].y);
    }
    if (length < start + T) {  // free slots may hold anything, and 0 times NaN is NaN
#pragma unroll
      for (int row = 0; row < 2 * S::ROWS; row++) {
        uint32_t keep = kept(start + 8 * row + 2 * corner, length);
#pragma unroll
        for (int i = 0; i < 4; i++) value[row / 2][i][row % 2 * 2] &= keep, value[row / 2][i][row % 2 * 2 + 1] &= keep;
      }
    }
#pragma unroll
    for (int row = 0; row < S::ROWS; row++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const uint32_t(&x)[4] = value[row][i];
        multiply(found[i], x[0], x[1], x[2], x[3], weights[2 * row], weights[2 * row + 1]);
      }
    }
    sum = quad_sum(sum);
  }

  auto write = [&](int group, float4 all, float low, float high) {  // 16 dimensions of 8 heads
    uint32_t first = movmatrix_transposed(pack_bf16(all.x * low, all.y * high));
    uint32_t second = movmatrix_transposed(pack_bf16(all.z * low, all.w * high));
    if (quad >= heads) return;
    auto place = reinterpret_cast<uint32_t*>(a.output + (mine + quad) * LATENT + 16 * group + 2 * corner);
    place[0] = first, place[4] = second;
  };
  auto inverse = [](float total) { return total > 0 ? reciprocal_approx(total) : 0.f; };  // 0: an empty sequence
  if (BLOCKS == 1) {
    float by = inverse(sum), low = __shfl_sync(~0u, by, 8 * corner), high = __shfl_sync(~0u, by, 8 * corner + 4);
#pragma unroll
    for (int i = 0; i < 4; i++) write(4 * warp + i, found[i], low, high);
    return;
  }

  cluster_wait();
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int group = 4 * warp + i, to_block = group / S::EACH;
    uint32_t place = shared_address(&shared.gathered[block * S::EACH + group % S::EACH][lane]);
    store_async(cluster_address(place, to_block), found[i], cluster_address(sent, to_block));
  }
  if (warp < BLOCKS && corner == 0) {
    uint32_t place = shared_address(&shared.statistics[block][quad]);
    store_async(cluster_address(place, warp), make_float2(most, sum), cluster_address(sent, warp));
  }
  mbarrier_wait_cluster(sent, 0);
#pragma unroll 1
  for (int i = warp; i < S::EACH; i += WARPS) {
    float4 statistic[BLOCKS], part[BLOCKS];  // of two heads: most and sum, twice
    float2 whole = {-INFINITY, -INFINITY}, total = {0, 0};
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
      statistic[b] = *reinterpret_cast<const float4*>(&shared.statistics[b][2 * corner]);
      part[b] = shared.gathered[b * S::EACH + i][lane];
      whole.x = fmaxf(whole.x, statistic[b].x), whole.y = fmaxf(whole.y, statistic[b].z);
    }
    float4 all = {0, 0, 0, 0};
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
      float low = statistic[b].x == -INFINITY ? 0 : exp2_approx(statistic[b].x - whole.x);
      float high = statistic[b].z == -INFINITY ? 0 : exp2_approx(statistic[b].z - whole.y);
      total.x += low * statistic[b].y, total.y += high * statistic[b].w;
      all.x += low * part[b].x, all.y += high * part[b].y, all.z += low * part[b].z, all.w += high * part[b].w;
    }
    write(block * S::EACH + i, all, inverse(total.x), inverse(total.y));
  }
}

template <int T, int BLOCKS, bool PAGED>
static cudaError_t start(const Given<PAGED>& given, int sequences, cudaStream_t stream) {
  using S = Shape<T, BLOCKS>;
  constexpr auto kernel = derby_latent_one_tile<T, BLOCKS, PAGED>;
  static OnceADevice ready;
  cudaError_t error = ready.allow_shared_memory<kernel, sizeof(typename S::Shared)>();
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(BLOCKS * ((given.heads + HEADS - 1) / HEADS), sequences);
  config.blockDim = dim3(THREADS);
  config.dynamicSmemBytes = sizeof(typename S::Shared);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = BLOCKS, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  if (BLOCKS > 1) config.attrs = &attribute, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, given);
}

template <int T, bool PAGED>
cudaError_t for_blocks(int blocks, const Given<PAGED>& given, int sequences, cudaStream_t stream) {
  switch (blocks) {
    case 1: return start<T, 1, PAGED>(given, sequences, stream);
    case 2: return start<T, 2, PAGED>(given, sequences, stream);
    case 4: return start<T, 4, PAGED>(given, sequences, stream);
    case 8: return start<T, 8, PAGED>(given, sequences, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace one_tile
