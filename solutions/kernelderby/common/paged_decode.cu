// paged_decode.py's kernel: one launch, of one_page.cuh's kernel where no warp has more than a page, else of this.
// A block (or a cluster of them, which share the context) takes the query heads of one key and value head of one
// sequence. A warp takes a 16-token page at a time: keys and values go from memory to registers in the layout that the
// tensor cores want, without shared memory, and both are asked for at once, so a call waits for memory twice: block table,
// length and query; then keys and values. Each warp sends its part of the result to the block that writes these
// dimensions, and that block counts bytes until all parts are there.
// Constraints: sm_90 or later; head_dim a multiple of 8 up to 256; pages of 16 tokens; at most 8 warps a block and 16
// blocks a cluster; query heads a multiple of key heads; bf16, contiguous, addresses a multiple of 16 (paged_decode.py
// pads what is not); block table and lengths int32.

#include "decode_mma.cuh"
#include "once_a_device.cuh"
#include "one_page.cuh"

namespace {

struct Arguments {
  const __nv_bfloat16 *query, *key_cache, *value_cache;
  const int *block_table, *context_lens;
  __nv_bfloat16* output;
  int sequences, log_splits, chunks, kv_heads, group, head_dim, table_width;
  float scale;  // of scores, for powers of two
};

constexpr int PAGE = 16, MOST_SPLITS = 16, MOST_WARPS = 8, MOST_ROWS = 1 << 15;  // of the grid along y

__device__ __forceinline__ uint4 load_or_zero(const __nv_bfloat16* place, bool valid) {
  uint4 result = {0, 0, 0, 0};
  if (valid) result = load_constant16(place);
  return result;
}

// D: head_dim rounded up to 64, 128 or 256. NT: groups of 8 query heads, 1 or, of up to 128 values, 2. EXACT: head_dim is
// D. ONCE: no warp has more than one page.
template <int D, int NT, bool EXACT, bool ONCE>
struct Kernel {
  static constexpr int HEADS = 8 * NT, FOURS = D / 4, LOG_FOURS = D == 64 ? 4 : D == 128 ? 5 : 6;
  static_assert(FOURS == 1 << LOG_FOURS && FOURS >= MOST_SPLITS, "each block of a cluster writes whole fours of dimensions");
  static_assert(NT == 1 || (NT == 2 && D <= 128), "registers for the queries and outputs of 16 heads");
  // Shared memory: a barrier (16 bytes); greatest score and sum of weights, float2 [parts][HEADS]; unnormalised outputs of
  // this block's dimensions, float4 [parts][HEADS][each + 1]. A warp of the cluster is a part; `each` x 4 dimensions are a
  // block's. The one more keeps the warps' stores off each other's banks, for which also 64 dimensions lie as 2 x 8 x 4:
  // dimension 64 j + 8 quad + 4 half + i at four 16 j + 8 half + quad.
  static size_t bytes(int warps, int log_splits) {
    int parts = warps << log_splits, each = FOURS >> log_splits;
    return 16 + parts * HEADS * (sizeof(float2) + sizeof(float4) * (each + 1));
  }

  const Arguments& given;
  uint64_t* barrier;
  float2* statistics;
  float4* outputs;
  int parts, log_each, each;
  int lane, warp, warps, quad, corner, split, sequence, head, first_head, heads;

  __device__ __forceinline__ Kernel(const Arguments& a, unsigned char* shared) : given(a) {
    lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, quad = lane / 4, corner = lane % 4;
    split = blockIdx.x & ((1 << a.log_splits) - 1), sequence = blockIdx.z * MOST_ROWS + blockIdx.y;
    head = blockIdx.x >> a.log_splits, first_head = head * a.group, heads = a.group;
    if (a.chunks > 1) {
      int chunk = head % a.chunks;
      head /= a.chunks;
      first_head = head * a.group + chunk * HEADS, heads = min(HEADS, a.group - chunk * HEADS);
    }
    parts = warps << a.log_splits, log_each = LOG_FOURS - a.log_splits, each = 1 << log_each;
    barrier = reinterpret_cast<uint64_t*>(shared);
    statistics = reinterpret_cast<float2*>(shared + 16), outputs = reinterpret_cast<float4*>(statistics + parts * HEADS);
  }

  // Of a page in a cache: where this block's head begins in a token.
  __device__ __forceinline__ const __nv_bfloat16* token_of(const __nv_bfloat16* page, int token) {
    return page + (token * given.kv_heads + head) * given.head_dim;
  }
  __device__ __forceinline__ const __nv_bfloat16* page_of(const __nv_bfloat16* cache, int page) {
    return cache + static_cast<long long>(page) * (PAGE * given.kv_heads * given.head_dim);
  }

  __device__ __forceinline__ bool inside(int dim) { return EXACT || dim < given.head_dim; }

  __device__ __forceinline__ void load_keys(uint4 (&into)[D / 32][2], int page, int left) {
    const __nv_bfloat16* start = page_of(given.key_cache, page);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int token = quad + 8 * half;
      const __nv_bfloat16* from = token_of(start, token) + 8 * corner;
#pragma unroll
      for (int j = 0; j < D / 32; j++) {
        into[j][half] = load_or_zero(from + 32 * j, token < left && inside(32 * j + 8 * corner));
      }
    }
  }

  __device__ __forceinline__ void load_values(uint4 (&into)[D / 64][4], int page, int left) {
    const __nv_bfloat16* start = page_of(given.value_cache, page);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int token = 2 * corner + i % 2 + i / 2 * 8;
      const __nv_bfloat16* from = token_of(start, token) + 8 * quad;
#pragma unroll
      for (int j = 0; j < D / 64; j++) {
        into[j][i] = load_or_zero(from + 64 * j, token < left && inside(64 * j + 8 * quad));
      }
    }
  }

  // Of the warp. sums[n][4 j + i]: dimensions 64 j + 8 quad + 2 i (x, y) and the next (z, w), heads 8 n + 2 corner (x, z)
  // and the next (y, w), as most and sum, which is still to be summed over the lanes of a corner.
  float4 sums[NT][D / 16];
  float most[NT][2], sum[NT][2];

  __device__ __forceinline__ void run() {
    const int* table = given.block_table + static_cast<long long>(sequence) * given.table_width;
    int stride = warps << given.log_splits, tile = split * warps + warp;
    int page = tile < given.table_width ? __ldg(table + tile) : 0;
    int length = __ldg(given.context_lens + sequence);
    int next = 0;
    if (!ONCE && tile + stride < given.table_width) next = __ldg(table + tile + stride);
    if (given.log_splits) {
      if (threadIdx.x == 0) {
        mbarrier_init(shared_address(barrier), 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(shared_address(barrier), parts * heads * (each * sizeof(float4) + sizeof(float2)));
      }
      cluster_arrive_relaxed();
    }
    uint4 query[NT][D / 32];
#pragma unroll
    for (int n = 0; n < NT; n++) {
      int h = 8 * n + quad;
      const __nv_bfloat16* from = given.query + (static_cast<long long>(sequence) * given.kv_heads * given.group +
                                                 first_head + h) * given.head_dim + 8 * corner;
#pragma unroll
      for (int j = 0; j < D / 32; j++) {
        query[n][j] = load_or_zero(from + 32 * j, h < heads && inside(32 * j + 8 * corner));
      }
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
      most[n][0] = most[n][1] = -INFINITY, sum[n][0] = sum[n][1] = 0;
#pragma unroll
      for (int i = 0; i < D / 16; i++) sums[n][i] = {0, 0, 0, 0};
    }
    int left = length - tile * PAGE;  // tokens of this page and those behind it
    uint4 key[D / 32][2], value[D / 64][4];
    if (left > 0) {
      load_keys(key, page, left);
      load_values(value, page, left);
    }
    // Or the compiler waits for keys before it asks for values, where that saves registers.
    if (ONCE && (D == 256 || NT == 2)) __syncwarp();
    while (left > 0) {
      float4 scores[NT][2];
#pragma unroll
      for (int n = 0; n < NT; n++) {
        scores[n][0] = scores[n][1] = {0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < D / 32; j++) {
          multiply(scores[n][0], key[j][0].x, key[j][1].x, key[j][0].y, key[j][1].y, query[n][j].x, query[n][j].y);
          multiply(scores[n][1], key[j][0].z, key[j][1].z, key[j][0].w, key[j][1].w, query[n][j].z, query[n][j].w);
        }
      }
      tile += stride;
      int later = ONCE ? 0 : length - tile * PAGE;
      if (!ONCE && later > 0) {  // keys of the next page are on their way while this one is weighed, and so on
        page = next;
        load_keys(key, page, later);
        next = tile + stride < given.table_width ? __ldg(table + tile + stride) : 0;
      }
      weigh(scores, value, left);
      left = later;
      if (!ONCE && left > 0) load_values(value, page, left);
      if (ONCE) break;
    }
    if (given.log_splits) {
      cluster_wait();
      leave<true>();
      mbarrier_wait_cluster(shared_address(barrier), 0);
    } else {
      leave<false>();
      __syncthreads();
    }
    gather();
  }

  __device__ __forceinline__ void weigh(float4 (&scores)[NT][2], uint4 (&value)[D / 64][4], int left) {
    uint32_t weights[NT][2];
#pragma unroll
    for (int n = 0; n < NT; n++) {
      float s[2][2];  // token quad or quad + 8, head 2 corner or the next
      s[0][0] = scores[n][0].x + scores[n][1].x, s[0][1] = scores[n][0].y + scores[n][1].y;
      s[1][0] = scores[n][0].z + scores[n][1].z, s[1][1] = scores[n][0].w + scores[n][1].w;
      float factor[2];
#pragma unroll
      for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int i = 0; i < 2; i++) s[i][h] = quad + 8 * i < left ? s[i][h] * given.scale : -INFINITY;
        float greatest = fmaxf(most[n][h], most_of_rows(fmaxf(s[0][h], s[1][h])));
        factor[h] = ONCE ? 0 : share(most[n][h], greatest);
        most[n][h] = greatest;
#pragma unroll
        for (int i = 0; i < 2; i++) s[i][h] = exp2_approx(s[i][h] - greatest);
        sum[n][h] = sum[n][h] * factor[h] + s[0][h] + s[1][h];
      }
      weights[n][0] = movmatrix_transposed(pack_bf16(s[0][0], s[0][1]));
      weights[n][1] = movmatrix_transposed(pack_bf16(s[1][0], s[1][1]));
      if (!ONCE) {
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
          sums[n][i].x *= factor[0], sums[n][i].y *= factor[1], sums[n][i].z *= factor[0], sums[n][i].w *= factor[1];
        }
      }
    }
#pragma unroll
    for (int j = 0; j < D / 64; j++) {
      const uint32_t* rows[4] = {&value[j][0].x, &value[j][1].x, &value[j][2].x, &value[j][3].x};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        uint32_t a0 = __byte_perm(rows[0][i], rows[1][i], 0x5410), a1 = __byte_perm(rows[0][i], rows[1][i], 0x7632);
        uint32_t a2 = __byte_perm(rows[2][i], rows[3][i], 0x5410), a3 = __byte_perm(rows[2][i], rows[3][i], 0x7632);
#pragma unroll
        for (int n = 0; n < NT; n++) multiply(sums[n][4 * j + i], a0, a1, a2, a3, weights[n][0], weights[n][1]);
      }
    }
  }

  // The warp's part into the shared memory of the blocks that write these dimensions.
  template <bool FAR>
  __device__ __forceinline__ void leave() {
    int part = split * warps + warp;
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        int mine = 8 * n + 2 * corner + h;
        float2 both = {most[n][h], sum_of_rows(sum[n][h])};
        if (mine >= heads) continue;
        float2* statistic = statistics + part * HEADS + mine;
        if (!FAR && quad == 0) *statistic = both;
        for (int to = quad; FAR && to < 1 << given.log_splits; to += 8) {
          store_async(cluster_address(shared_address(statistic), to), both, cluster_address(shared_address(barrier), to));
        }
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
          const float4 &s = sums[n][2 * i], &t = sums[n][2 * i + 1];
          float4 four = h ? make_float4(s.y, s.w, t.y, t.w) : make_float4(s.x, s.z, t.x, t.z);
          int at = 8 * i + quad, to = at >> log_each;
          float4* place = outputs + (part * HEADS + mine) * (each + 1) + (at & (each - 1));
          if (FAR) {
            store_async(cluster_address(shared_address(place), to), four, cluster_address(shared_address(barrier), to));
          } else {
            *place = four;
          }
        }
      }
    }
  }

  // All parts of this block's dimensions, and the result.
  __device__ __forceinline__ void gather() {
#pragma unroll 1
    for (int i = threadIdx.x; i < heads << log_each; i += blockDim.x) {
      int h = i >> log_each, four = i & (each - 1);
      const float2* statistic = statistics + h;
      const float4* output = outputs + h * (each + 1) + four;
      float whole = -INFINITY, total = 0;
#pragma unroll 4
      for (int part = 0; part < parts; part++) whole = fmaxf(whole, statistic[part * HEADS].x);
      float4 all = {0, 0, 0, 0};
#pragma unroll 4
      for (int part = 0; part < parts; part++) {
        float2 both = statistic[part * HEADS];
        float4 its = output[part * HEADS * (each + 1)];
        float factor = share(both.x, whole);  // 0 where the part has no token
        total += factor * both.y;
        all.x += factor * its.x, all.y += factor * its.y, all.z += factor * its.z, all.w += factor * its.w;
      }
      int at = split * each + four;
      write(h, at / 16 * 64 + at % 8 * 8 + at / 8 % 2 * 4, all, total > 0 ? __fdividef(1, total) : 0);
    }
  }

  __device__ __forceinline__ void write(int h, int dim, float4 found, float factor) {
    __nv_bfloat16* to = given.output + (static_cast<long long>(sequence) * given.kv_heads * given.group + first_head + h) *
                        given.head_dim + dim;
    uint2 words = {pack_bf16(found.x * factor, found.y * factor), pack_bf16(found.z * factor, found.w * factor)};
    if (inside(dim)) *reinterpret_cast<uint2*>(to) = words;
  }
};

template <int D, int NT, bool EXACT, bool ONCE>
__global__ void __launch_bounds__(32 * MOST_WARPS, 1)
derby_paged_attention_decode(const __grid_constant__ Arguments given) {
  using K = Kernel<D, NT, EXACT, ONCE>;
  K kernel(given, shared_memory());
  if (kernel.sequence < given.sequences) kernel.run();
}

template <int D, int NT, bool EXACT, bool ONCE>
cudaError_t start(const Arguments& given, int warps, cudaStream_t stream) {
  using K = Kernel<D, NT, EXACT, ONCE>;
  auto kernel = derby_paged_attention_decode<D, NT, EXACT, ONCE>;
  static OnceADevice ready;
  cudaError_t error = ready([&] {
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             static_cast<int>(K::bytes(MOST_WARPS, 4)));
    if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    return error;
  });
  if (error != cudaSuccess) return error;
  int splits = 1 << given.log_splits, rows = given.sequences < MOST_ROWS ? given.sequences : MOST_ROWS;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(splits * given.kv_heads * given.chunks, rows, (given.sequences + MOST_ROWS - 1) / MOST_ROWS);
  config.blockDim = dim3(warps * 32);
  config.dynamicSmemBytes = K::bytes(warps, given.log_splits);
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = splits, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  if (splits > 1) config.attrs = &attribute, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, given);
}

template <int D, int NT>
cudaError_t start(const Arguments& given, bool once, int warps, cudaStream_t stream) {
  if (given.head_dim != D) return start<D, NT, false, false>(given, warps, stream);
  return once ? start<D, NT, true, true>(given, warps, stream) : start<D, NT, true, false>(given, warps, stream);
}

}  // namespace

// log_splits: of the blocks (1 to 16) that share a context. warps: of a block, 1 to 8. sliced: each block reads all keys
// and a slice of the values (one_page.cuh alone). pages: of the longest context. head_dim: a multiple of 8, at most 256.
// All addresses are multiples of 16.
extern "C" int derby_paged_attention_decode_sm90_run(
    const void* query, const void* key_cache, const void* value_cache, const void* block_table,
    const void* context_lens, void* output, int sequences, int heads, int kv_heads, int head_dim, int table_width,
    int pages, float sm_scale, int log_splits, int warps, int sliced, cudaStream_t stream) {
  if (warps < 1 || warps > MOST_WARPS || log_splits < 0 || 1 << log_splits > MOST_SPLITS || head_dim > 256 || head_dim % 8) {
    return cudaErrorInvalidValue;
  }
  if (heads / kv_heads <= one_page::HEADS && pages <= (sliced ? warps : warps << log_splits) && sequences <= MOST_ROWS) {
    one_page::Arguments given{static_cast<const __nv_bfloat16*>(query), static_cast<const __nv_bfloat16*>(key_cache),
                              static_cast<const __nv_bfloat16*>(value_cache), static_cast<const int*>(block_table),
                              static_cast<const int*>(context_lens), static_cast<__nv_bfloat16*>(output),
                              kv_heads, heads / kv_heads, table_width, sm_scale * LOG2E};
    one_page::Start start_page = one_page::for_call(head_dim, 1 << log_splits, warps, sliced);
    if (start_page) return start_page(given, sequences, stream);
  }
  if (sliced) return cudaErrorInvalidValue;
  int group = heads / kv_heads, tiles = group > 8 && head_dim <= 128 ? 2 : 1, chunks = (group + 8 * tiles - 1) / (8 * tiles);
  Arguments given{static_cast<const __nv_bfloat16*>(query), static_cast<const __nv_bfloat16*>(key_cache),
                  static_cast<const __nv_bfloat16*>(value_cache), static_cast<const int*>(block_table),
                  static_cast<const int*>(context_lens), static_cast<__nv_bfloat16*>(output),
                  sequences, log_splits, chunks, kv_heads, group, head_dim, table_width, sm_scale * LOG2E};
  auto run = head_dim <= 64 ? (tiles > 1 ? start<64, 2> : start<64, 1>)
             : head_dim <= 128 ? (tiles > 1 ? start<128, 2> : start<128, 1>)
                               : start<256, 1>;
  return run(given, pages <= warps << log_splits, warps, stream);
}
