// Latent decode in one launch: of latent_one_tile.cuh's kernel if no block has more than one tile, else of this one. A
// block (or a cluster of them, which share the context) takes 8, 16, 32 or 64 query heads of one sequence. Queries and
// a tile of tokens are copied into shared memory with a single wait; the tile is both key and value. The warps divide
// the 576 products of a score among themselves, then the 512 values of the latent.
// Constraints: sm_90 or later; 576 values of a query head and of a token, of which the first 512 are the value; any
// number of heads; forms (groups of 8 heads, tokens of a tile) as the switch at the end lists them; at most 16 blocks
// share a context; bf16, contiguous, addresses a multiple of 16; context_lens int32. PAGED: the cache is in blocks of a
// power of two of tokens, and the block table has entries, which may be anything behind a context's end, for `longest`.

#pragma once

#include <type_traits>

#include "decode_mma.cuh"
#include "latent_one_tile.cuh"
#include "once_a_device.cuh"

namespace latent_clusters {
namespace {

using one_tile::KEY, one_tile::LATENT, one_tile::PITCH, one_tile::THREADS, one_tile::WARPS;
constexpr int MOST_SPLITS = 16;

struct Arguments {
  const __nv_bfloat16 *query, *cache;
  const int* context_lens;
  __nv_bfloat16* output;
  int heads, chunks, slots, splits, longest;  // slots: of a sequence, or of a block and then 1 << page_bits
  float scale;  // of scores, for powers of two
};

struct InBlocks : Arguments {
  const int* block_table;
  int table_width, page_bits;
};

template <bool PAGED>
using Given = std::conditional_t<PAGED, InBlocks, Arguments>;

// NT: groups of 8 query heads. T: tokens of a tile. PAGED: the cache is in blocks.
template <int NT, int T, bool PAGED>
struct Kernel {
  static constexpr int HEADS = 8 * NT, ROWS = T / 16, SHARES = WARPS / ROWS;  // warps to 16 tokens, which share products
  static_assert(ROWS >= 1 && WARPS % ROWS == 0, "every 16 tokens have as many warps");
  static_assert(T % WARPS == 0 && HEADS % WARPS == 0, "warps fetch as many rows each");
  static constexpr bool OVER = NT >= 4;  // the others' outputs lie over queries and tiles, once all have used theirs
  struct Tile {
    __nv_bfloat16 rows[T][PITCH];
  };
  struct Shared {
    uint64_t sent;  // barrier of the cluster's parts
    float scores[SHARES][HEADS][T + 4];
    float2 statistics[MOST_SPLITS][HEADS];             // greatest score and sum of weights of the blocks of the cluster
    float4 gathered[OVER ? 1 : NT * LATENT / 16][32];  // their outputs of this block's dimensions
    __nv_bfloat16 query[HEADS][PITCH];
    Tile tiles[1];  // two where a block has several
  };

  const Given<PAGED>& given;
  Shared& shared;
  int lane, warp, quad, corner, split, sequence, first_head, heads, length;
  int page;  // PAGED: lane i has the block of the warp's i-th row in the tile that is fetched next

  __device__ __forceinline__ Kernel(const Given<PAGED>& a, Shared& s) : given(a), shared(s) {
    lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4, corner = lane % 4;
    split = blockIdx.x % a.splits;
    int unit = blockIdx.x / a.splits;
    first_head = unit % a.chunks * HEADS, sequence = unit / a.chunks;
    heads = min(HEADS, a.heads - first_head);
  }

  // Loads ROWS_OF rows of 72 times 16 bytes, one row a warp; rows from `count` on are zeros.
  template <int ROWS_OF>
  __device__ __forceinline__ void fetch_rows(__nv_bfloat16 (*to)[PITCH], const __nv_bfloat16* from, int count) {
    uint32_t place = shared_address(&to[warp][8 * lane]);
    const __nv_bfloat16* mine = from + warp * KEY + 8 * lane;
#pragma unroll
    for (int row = 0; row < ROWS_OF; row += WARPS) {
      bool valid = row + warp < count;
      const __nv_bfloat16* source = valid ? mine + row * KEY : from;
      const int bytes = valid ? 16 : 0;
      cp_async16(place + row * PITCH * 2, source, bytes);
      cp_async16(place + row * PITCH * 2 + 512, source + (valid ? 256 : 0), bytes);
      if (lane < 8) cp_async16(place + row * PITCH * 2 + 1024, source + (valid ? 512 : 0), bytes);
    }
  }

  __device__ __forceinline__ void look_up(int tile) {
    int token = tile * T + lane * WARPS + warp;
    if (lane < T / WARPS && token < given.longest)
      page = __ldg(given.block_table + static_cast<long long>(sequence) * given.table_width +
                   (token >> given.page_bits));
  }

  __device__ __forceinline__ void fetch_tile(int tile, int stage, int end) {
    if constexpr (PAGED) {
      uint32_t place = shared_address(&shared.tiles[stage].rows[warp][8 * lane]);
#pragma unroll
      for (int row = 0; row < T; row += WARPS) {
        int token = tile * T + row + warp, block = __shfl_sync(~0u, page, row / WARPS);
        bool valid = token < end;
        long long slot = (static_cast<long long>(block) << given.page_bits) + (token & (given.slots - 1));
        const __nv_bfloat16* source = given.cache + (valid ? slot * KEY + 8 * lane : 0);
        const int bytes = valid ? 16 : 0;
        cp_async16(place + row * PITCH * 2, source, bytes);
        cp_async16(place + row * PITCH * 2 + 512, source + (valid ? 256 : 0), bytes);
        if (lane < 8) cp_async16(place + row * PITCH * 2 + 1024, source + (valid ? 512 : 0), bytes);
      }
      return;
    }
    fetch_rows<T>(shared.tiles[stage].rows, given.cache + (static_cast<long long>(sequence) * given.slots + tile * T) * KEY,
                  end - tile * T);
  }

  // For a tile that was requested before the length was known: values behind the last token have a weight of 0, which
  // removes them unless they are infinite or NaN.
  __device__ __forceinline__ void clear_after(int last, Tile& tile) {
    for (int row = last + warp; row < T; row += WARPS)
#pragma unroll
      for (int i = 0; i < LATENT / 256; i++)
        *reinterpret_cast<uint4*>(&tile.rows[row][256 * i + 8 * lane]) = {0, 0, 0, 0};
  }

  // The warp's share of the products of its 16 tokens' scores.
  __device__ __forceinline__ void score(int stage) {
    int rows = warp % ROWS * 16, mine = warp / ROWS;
    uint32_t key = shared_address(&shared.tiles[stage].rows[rows + lane % 16][lane / 16 * 8]);
    // For two groups of heads: both halves of 16 products of the first group, then those of the second. A single group
    // is taken twice.
    uint32_t query = shared_address(&shared.query[(NT > 1 ? lane / 16 * 8 : 0) + lane % 8][lane / 8 % 2 * 8]);
    constexpr int CHAINS = NT == 1 ? 2 : 1;  // of products that wait for each other
    float4 found[CHAINS][NT];
#pragma unroll
    for (int n = 0; n < CHAINS * NT; n++) found[n / NT][n % NT] = {0, 0, 0, 0};
#pragma unroll
    for (int step = 0; step < (KEY / 16 + SHARES - 1) / SHARES; step++) {
      int part = step * SHARES + mine;
      if (KEY / 16 % SHARES && part >= KEY / 16) break;
      uint32_t a[4], b[4];
      ldmatrix_x4(a, key + part * 32);
#pragma unroll
      for (int n = 0; n < NT; n += 2) {
        ldmatrix_x4(b, query + part * 32 + n * 8 * PITCH * 2);
        multiply(found[step % CHAINS][n], a[0], a[1], a[2], a[3], b[0], b[1]);
        if (NT > 1) multiply(found[0][(n + 1) % NT], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
      int head = 8 * n + 2 * corner, token = rows + quad;
      float4 sum = found[0][n], other = found[CHAINS - 1][n];
      if (CHAINS == 2) sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
      shared.scores[mine][head][token] = sum.x, shared.scores[mine][head + 1][token] = sum.y;
      shared.scores[mine][head][token + 8] = sum.z, shared.scores[mine][head + 1][token + 8] = sum.w;
    }
  }

  // most and sum are those of head 8 n + quad; outputs are those of head 8 n + 2 corner (x, z) and the next one (y, w),
  // for the warp's dimensions.
  float most[NT], sum[NT];
  float4 found[NT][4];

  __device__ __forceinline__ void weigh(int tile, int stage) {
    uint32_t weights[NT][ROWS][2];
#pragma unroll
    for (int n = 0; n < NT; n++) {
      float s[T / 4], greatest = most[n];  // tokens 2 corner and the next, in steps of 8
#pragma unroll
      for (int i = 0; i < T / 8; i++) {
        float2 both = {0, 0};
#pragma unroll
        for (int k = 0; k < SHARES; k++) {
          float2 part = *reinterpret_cast<const float2*>(&shared.scores[k][8 * n + quad][8 * i + 2 * corner]);
          both.x += part.x, both.y += part.y;
        }
        int token = tile * T + 8 * i + 2 * corner;
        s[2 * i] = token < length ? both.x * given.scale : -INFINITY;
        s[2 * i + 1] = token + 1 < length ? both.y * given.scale : -INFINITY;
        greatest = fmaxf(greatest, fmaxf(s[2 * i], s[2 * i + 1]));
      }
      greatest = quad_max(greatest);
      float factor = share(most[n], greatest);
      most[n] = greatest;
      sum[n] *= factor;
#pragma unroll
      for (int i = 0; i < T / 4; i++) s[i] = exp2_approx(s[i] - greatest), sum[n] += s[i];
#pragma unroll
      for (int i = 0; i < T / 8; i++) weights[n][i / 2][i % 2] = pack_bf16(s[2 * i], s[2 * i + 1]);
      float low = __shfl_sync(~0u, factor, 8 * corner), high = __shfl_sync(~0u, factor, 8 * corner + 4);
#pragma unroll
      for (int i = 0; i < 4; i++) found[n][i].x *= low, found[n][i].y *= high, found[n][i].z *= low, found[n][i].w *= high;
    }
    uint32_t value = shared_address(
        &shared.tiles[stage].rows[lane % 8 + lane / 16 * 8][64 * warp + lane / 8 % 2 * 8]);
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        uint32_t a[4];
        ldmatrix_x4_transposed(a, value + row * 16 * PITCH * 2 + i * 32);
#pragma unroll
        for (int n = 0; n < NT; n++) multiply(found[n][i], a[0], a[1], a[2], a[3], weights[n][row][0], weights[n][row][1]);
      }
    }
  }

  __device__ __forceinline__ void run() {
    int tile = split, stage = 0;
    length = __ldg(given.context_lens + sequence);
    if constexpr (PAGED) {
      page = 0;
      look_up(tile);
    } else if (tile * T < given.longest) {
      fetch_tile(tile, 0, given.longest);  // before the length is known
    }
    fetch_rows<HEADS>(shared.query, given.query + (static_cast<long long>(sequence) * given.heads + first_head) * KEY, heads);
    if constexpr (PAGED) {
      length = min(length, given.longest);
      if (tile * T < length) fetch_tile(tile, 0, length);
      look_up(tile + given.splits);
    }
    cp_async_commit_group();
    if (given.splits > 1) {
      if (threadIdx.x == 0) {
        mbarrier_init(shared_address(&shared.sent), 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(shared_address(&shared.sent),
                                  NT * LATENT / 16 * 32 * sizeof(float4) + given.splits * HEADS * sizeof(float2));
      }
      if (OVER) __syncthreads();
      if (!OVER) cluster_arrive_relaxed();
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
      most[n] = -INFINITY, sum[n] = 0;
#pragma unroll
      for (int i = 0; i < 4; i++) found[n][i] = {0, 0, 0, 0};
    }
    for (; tile * T < length; tile += given.splits) {
      int next = tile + given.splits;
      if (next * T < length) {
        fetch_tile(next, stage ^ 1, length);
        cp_async_commit_group();
        if constexpr (PAGED) look_up(next + given.splits);
        cp_async_wait_group<1>();
      } else {
        cp_async_wait_group<0>();
      }
      __syncthreads();
      score(stage);
      if (!PAGED && tile == split && length < tile * T + T) clear_after(length - tile * T, shared.tiles[0]);
      __syncthreads();
      weigh(tile, stage);
      if (next * T >= length) break;
      __syncthreads();
      stage ^= 1;
    }
    cp_async_wait_group<0>();  // a block without a token has not waited yet
#pragma unroll
    for (int n = 0; n < NT; n++) sum[n] = quad_sum(sum[n]);
    if (given.splits == 1) {
#pragma unroll
      for (int n = 0; n < NT; n++) {
        float mine = sum[n] > 0 ? __fdividef(1, sum[n]) : 0;
        float low = __shfl_sync(~0u, mine, 8 * corner), high = __shfl_sync(~0u, mine, 8 * corner + 4);
#pragma unroll
        for (int i = 0; i < 4; i++) write(n, 4 * warp + i, found[n][i], low, high);
      }
    } else {
      exchange();
    }
  }

  // Each block of the cluster gets the other blocks' outputs for its stretch of dimensions, and writes the result for
  // these.
  __device__ __forceinline__ void exchange() {
    int each = LATENT / 16 / given.splits, log_each = 31 - __clz(each);  // groups of 16 dimensions for a block
    auto gathered = OVER ? reinterpret_cast<float4(*)[32]>(shared.query) : shared.gathered;
    uint32_t sent = shared_address(&shared.sent);
    if (OVER) cluster_arrive();
    cluster_wait();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int group = 4 * warp + i, to = group >> log_each, place = (split * each + (group & (each - 1))) * NT;
      uint32_t theirs = cluster_address(sent, to);
#pragma unroll
      for (int n = 0; n < NT; n++)
        store_async(cluster_address(shared_address(&gathered[place + n][lane]), to), found[n][i], theirs);
    }
    for (int to = warp; to < given.splits; to += WARPS) {
      uint32_t theirs = cluster_address(sent, to);
#pragma unroll
      for (int n = 0; n < NT; n++) {
        uint32_t place = cluster_address(shared_address(&shared.statistics[split][8 * n + quad]), to);
        if (corner == 0) store_async(place, make_float2(most[n], sum[n]), theirs);
      }
    }
    mbarrier_wait_cluster(sent, 0);
#pragma unroll 1
    for (int i = warp; i < each * NT; i += WARPS) {
      int n = i % NT, head = 8 * n + 2 * corner;
      float2 whole = {-INFINITY, -INFINITY}, total = {0, 0};
#pragma unroll 8
      for (int s = 0; s < given.splits; s++) {
        whole.x = fmaxf(whole.x, shared.statistics[s][head].x), whole.y = fmaxf(whole.y, shared.statistics[s][head + 1].x);
      }
      float4 all = {0, 0, 0, 0};
#pragma unroll 8
      for (int s = 0; s < given.splits; s++) {
        float4 part = gathered[s * each * NT + i][lane];
        float2 first = shared.statistics[s][head], second = shared.statistics[s][head + 1];
        float low = share(first.x, whole.x), high = share(second.x, whole.y);  // 0 without a token
        total.x += low * first.y, total.y += high * second.y;
        all.x += low * part.x, all.y += high * part.y, all.z += low * part.z, all.w += high * part.w;
      }
      write(n, split * each + i / NT, all, total.x > 0 ? __fdividef(1, total.x) : 0, total.y > 0 ? __fdividef(1, total.y) : 0);
    }
  }

  // 16 dimensions of 8 heads.
  __device__ __forceinline__ void write(int n, int group, float4 all, float low, float high) {
    uint32_t first = movmatrix_transposed(pack_bf16(all.x * low, all.y * high));
    uint32_t second = movmatrix_transposed(pack_bf16(all.z * low, all.w * high));
    int head = 8 * n + quad;
    if (head >= heads) return;
    uint32_t* to = reinterpret_cast<uint32_t*>(given.output + (static_cast<long long>(sequence) * given.heads +
                                                               first_head + head) * LATENT + 16 * group + 2 * corner);
    to[0] = first, to[4] = second;
  }
};

template <int NT, int T, bool PAGED>
__global__ void __launch_bounds__(THREADS, 1) derby_latent_clusters(const __grid_constant__ Given<PAGED> given) {
  Kernel<NT, T, PAGED>(given, *reinterpret_cast<typename Kernel<NT, T, PAGED>::Shared*>(shared_memory())).run();
}

template <int NT, int T, bool PAGED>
cudaError_t start(const Given<PAGED>& given, int sequences, cudaStream_t stream) {
  using K = Kernel<NT, T, PAGED>;
  auto kernel = derby_latent_clusters<NT, T, PAGED>;
  static OnceADevice ready;
  cudaError_t error = ready([&] {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             sizeof(typename K::Shared) + sizeof(typename K::Tile));
    if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    return error;
  });
  if (error != cudaSuccess) return error;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(sequences * given.chunks * given.splits);
  config.blockDim = dim3(THREADS);
  bool two = given.splits * T < given.longest || (K::OVER && given.splits > 1);
  config.dynamicSmemBytes = sizeof(typename K::Shared) + (two ? sizeof(typename K::Tile) : 0);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = given.splits, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  if (given.splits > 1) config.attrs = &attribute, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, given);
}

}  // namespace
}  // namespace latent_clusters
