// derby_paged_attention_decode_sm90: one launch. A block (or a cluster of them, which share the context) takes the query
// heads of one key and value head of one sequence. A warp takes a 16-token page at a time: keys and values go from
// memory to registers in the layout that the tensor cores want, without shared memory, and both are asked for at once,
// so a call waits for memory twice: block table, length and query; then keys and values.

#include "decode_mma.cuh"

namespace {

struct Arguments {
  const __nv_bfloat16 *query, *key_cache, *value_cache;
  const int *block_table, *context_lens;
  __nv_bfloat16* output;
  int units, splits, chunks, kv_heads, group, head_dim, table_width;
  float scale;  // of scores, for powers of two
};

constexpr int PAGE = 16;

// 8 values from `place` on, zero behind `count`. EXACT: there are always 8, aligned to 16 bytes.
template <bool EXACT>
__device__ __forceinline__ uint4 eight(const __nv_bfloat16* place, int count, bool valid) {
  uint4 result = {0, 0, 0, 0};
  if (EXACT) {
    if (valid) result = __ldg(reinterpret_cast<const uint4*>(place));
  } else if (valid) {
    const unsigned short* from = reinterpret_cast<const unsigned short*>(place);
    uint32_t* words = &result.x;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if (i < count) words[i / 2] |= uint32_t(__ldg(from + i)) << (i % 2 * 16);
    }
  }
  return result;
}

// D: head_dim rounded up to 64, 128 or 256. NT: groups of 8 query heads.
template <int D, int NT, int WARPS, bool EXACT>
struct Kernel {
  static constexpr int HEADS = 8 * NT;
  struct Part {  // of the result: of a warp, and of a block of the cluster
    float most[HEADS], sum[HEADS];
  };
  struct Shared {
    float sums[WARPS][HEADS][D];  // unnormalised outputs of the warps
    Part parts[WARPS];
  };
  struct Gathered {  // behind Shared: what the blocks of a cluster send to this one. D / splits values of each head
    Part parts[16];
    float sums[HEADS * D + 16 * 64];
  };

  const Arguments& given;
  int lane, warp, quad, corner, split, unit, sequence, head, first_head, heads, length;
  const __nv_bfloat16 *keys, *values;
  long long row;  // values from one token to the next

  __device__ __forceinline__ explicit Kernel(const Arguments& a) : given(a) {
    lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4, corner = lane % 4;
    split = blockIdx.x % a.splits, unit = blockIdx.x / a.splits;
    int chunk = unit % a.chunks;
    head = unit / a.chunks % a.kv_heads, sequence = unit / a.chunks / a.kv_heads;
    first_head = head * a.group + chunk * HEADS, heads = min(HEADS, a.group - chunk * HEADS);
    row = static_cast<long long>(a.kv_heads) * a.head_dim;
    keys = a.key_cache + static_cast<long long>(head) * a.head_dim;
    values = a.value_cache + static_cast<long long>(head) * a.head_dim;
  }

  __device__ __forceinline__ void load_keys(uint4 (&into)[D / 32][2], int page, int left) {
    const __nv_bfloat16* from = keys + static_cast<long long>(page) * PAGE * row;
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int token = quad + 8 * half, dim = 32 * j + 8 * corner;
        into[j][half] = eight<EXACT>(from + token * row + dim, given.head_dim - dim, token < left);
      }
    }
  }

  __device__ __forceinline__ void load_values(uint4 (&into)[D / 64][4], int page, int left) {
    const __nv_bfloat16* from = values + static_cast<long long>(page) * PAGE * row;
#pragma unroll
    for (int j = 0; j < D / 64; j++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int token = 2 * corner + i % 2 + i / 2 * 8, dim = 64 * j + 8 * quad;
        into[j][i] = eight<EXACT>(from + token * row + dim, given.head_dim - dim, token < left);
      }
    }
  }

  __device__ __forceinline__ void run(Shared& shared, Gathered& gathered) {
    const int* table = given.block_table + static_cast<long long>(sequence) * given.table_width;
    int stride = given.splits * WARPS, tile = split * WARPS + warp;
    int page = tile < given.table_width ? __ldg(table + tile) : 0;
    length = __ldg(given.context_lens + sequence);
    int next = tile + stride < given.table_width ? __ldg(table + tile + stride) : 0;
    uint4 query[NT][D / 32];
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
      for (int j = 0; j < D / 32; j++) {
        int h = 8 * n + quad, dim = 32 * j + 8 * corner;
        const __nv_bfloat16* from = given.query + static_cast<long long>(sequence) * given.kv_heads * given.group *
                                    given.head_dim + static_cast<long long>(first_head + h) * given.head_dim + dim;
        query[n][j] = eight<EXACT>(from, given.head_dim - dim, h < heads);
      }
    }
    float4 sums[NT][D / 16];
    float most[NT][2], sum[NT][2];
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
      int later = length - tile * PAGE;
      page = next;
      if (later > 0) {
        load_keys(key, page, later);
        next = tile + stride < given.table_width ? __ldg(table + tile + stride) : 0;
      }
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
          factor[h] = share(most[n][h], greatest);
          most[n][h] = greatest;
#pragma unroll
          for (int i = 0; i < 2; i++) s[i][h] = power_of_two(s[i][h] - greatest);
          sum[n][h] = sum[n][h] * factor[h] + s[0][h] + s[1][h];
        }
        weights[n][0] = turned(pack(s[0][0], s[0][1])), weights[n][1] = turned(pack(s[1][0], s[1][1]));
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
          sums[n][i].x *= factor[0], sums[n][i].y *= factor[1], sums[n][i].z *= factor[0], sums[n][i].w *= factor[1];
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
      left = later;
      if (left > 0) load_values(value, page, left);
    }
    // Of the warp: sums[n][4 j + i] has dimensions 64 j + 8 quad + 2 i (x, y) and the next (z, w), heads 2 corner (x, z)
    // and the next (y, w).
#pragma unroll
    for (int n = 0; n < NT; n++) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        int mine = 8 * n + 2 * corner + h;
        float total = sum_of_rows(sum[n][h]);
        if (quad == 0) shared.parts[warp].most[mine] = most[n][h], shared.parts[warp].sum[mine] = total;
        if (mine >= heads) continue;
#pragma unroll
        for (int j = 0; j < D / 64; j++) {
          float4* to = reinterpret_cast<float4*>(&shared.sums[warp][mine][64 * j + 8 * quad]);
          const float4* s = &sums[n][4 * j];
          to[0] = h ? make_float4(s[0].y, s[0].w, s[1].y, s[1].w) : make_float4(s[0].x, s[0].z, s[1].x, s[1].z);
          to[1] = h ? make_float4(s[2].y, s[2].w, s[3].y, s[3].w) : make_float4(s[2].x, s[2].z, s[3].x, s[3].z);
        }
      }
    }
    __syncthreads();
    if (given.splits == 1) {
      for (int i = threadIdx.x; i < heads * (D / 4); i += WARPS * 32) {
        float total;
        float4 found = of_warps(shared, i / (D / 4), i % (D / 4) * 4, total).second;
        write(i / (D / 4), i % (D / 4) * 4, found, 1 / total);
      }
    } else {
      exchange(shared, gathered);
    }
  }

  struct Found {
    float first;
    float4 second;
  };

  // The sum over the block's warps of 4 dimensions of a head, and the greatest score.
  __device__ __forceinline__ Found of_warps(const Shared& shared, int h, int dim, float& total) {
    float whole = -INFINITY;
#pragma unroll
    for (int w = 0; w < WARPS; w++) whole = fmaxf(whole, shared.parts[w].most[h]);
    float4 found = {0, 0, 0, 0};
    total = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      float factor = share(shared.parts[w].most[h], whole);
      float4 part = *reinterpret_cast<const float4*>(&shared.sums[w][h][dim]);
      total += factor * shared.parts[w].sum[h];
      found.x += factor * part.x, found.y += factor * part.y, found.z += factor * part.z, found.w += factor * part.w;
    }
    return {whole, found};
  }

  // Each block of the cluster gets the others' sums for its stretch of (head, 4 dimensions), and writes these.
  __device__ __forceinline__ void exchange(Shared& shared, Gathered& gathered) {
    int all = heads * (D / 4), each = (all + given.splits - 1) / given.splits;
    cluster_wait();
    for (int i = threadIdx.x; i < all; i += WARPS * 32) {
      float total;
      int h = i / (D / 4), to = i / each;
      Found found = of_warps(shared, h, i % (D / 4) * 4, total);
      store_in(address_in(&gathered.sums[(split * each + i % each) * 4], to), found.second);
      if (i % (D / 4) == 0 || i % each == 0) {
        store_in(address_in(&gathered.parts[split].most[h], to), found.first);
        store_in(address_in(&gathered.parts[split].sum[h], to), total);
      }
    }
    cluster_arrive();
    cluster_wait();
    for (int i = threadIdx.x; i < each && split * each + i < all; i += WARPS * 32) {
      int place = split * each + i, h = place / (D / 4);
      float whole = -INFINITY, total = 0;
      for (int s = 0; s < given.splits; s++) whole = fmaxf(whole, gathered.parts[s].most[h]);
      float4 found = {0, 0, 0, 0};
      for (int s = 0; s < given.splits; s++) {
        float factor = share(gathered.parts[s].most[h], whole);
        float4 part = *reinterpret_cast<const float4*>(&gathered.sums[(s * each + i) * 4]);
        total += factor * gathered.parts[s].sum[h];
        found.x += factor * part.x, found.y += factor * part.y, found.z += factor * part.z, found.w += factor * part.w;
      }
      write(h, place % (D / 4) * 4, found, 1 / total);
    }
  }

  __device__ __forceinline__ void write(int h, int dim, float4 found, float factor) {
    __nv_bfloat16* to = given.output + (static_cast<long long>(sequence) * given.kv_heads * given.group + first_head + h) *
                        given.head_dim + dim;
    uint2 words = {pack(found.x * factor, found.y * factor), pack(found.z * factor, found.w * factor)};
    if (EXACT) {
      if (dim < given.head_dim) *reinterpret_cast<uint2*>(to) = words;
    } else {
      const __nv_bfloat16* four = reinterpret_cast<const __nv_bfloat16*>(&words);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (dim + i < given.head_dim) to[i] = four[i];
      }
    }
  }
};

template <int D, int NT, int WARPS, bool EXACT>
__global__ void __launch_bounds__(WARPS * 32, D == 256 || NT > 1 ? 1 : WARPS == 8 ? 2 : 16 / WARPS)
derby_paged_attention_decode(const __grid_constant__ Arguments given) {
  using K = Kernel<D, NT, WARPS, EXACT>;
  extern __shared__ __align__(16) unsigned char bytes[];
  if (given.splits > 1) cluster_arrive_relaxed();
  K(given).run(*reinterpret_cast<typename K::Shared*>(bytes),
               *reinterpret_cast<typename K::Gathered*>(bytes + sizeof(typename K::Shared)));
}

template <int D, int NT, int WARPS, bool EXACT>
cudaError_t start(const Arguments& given, cudaStream_t stream) {
  using K = Kernel<D, NT, WARPS, EXACT>;
  auto kernel = derby_paged_attention_decode<D, NT, WARPS, EXACT>;
  size_t bytes = sizeof(typename K::Shared) + (given.splits > 1 ? sizeof(typename K::Gathered) : 0);
  static bool ready = [&] {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         sizeof(typename K::Shared) + sizeof(typename K::Gathered));
    cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    return true;
  }();
  (void)ready;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(given.units * given.splits);
  config.blockDim = dim3(WARPS * 32);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = given.splits, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  if (given.splits > 1) config.attrs = &attribute, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, given);
}

template <int D, int NT, bool EXACT>
cudaError_t start(const Arguments& given, int warps, cudaStream_t stream) {
  switch (warps) {
    case 1: return start<D, NT, 1, EXACT>(given, stream);
    case 2: return start<D, NT, 2, EXACT>(given, stream);
    case 4: return start<D, NT, 4, EXACT>(given, stream);
    case 8: return start<D, NT, 8, EXACT>(given, stream);
  }
  return cudaErrorInvalidValue;
}

template <int D>
cudaError_t start(const Arguments& given, bool exact, int warps, int tiles, cudaStream_t stream) {
  if (!exact) return tiles > 1 ? start<D, 2, false>(given, 4, stream) : start<D, 1, false>(given, 4, stream);
  return tiles > 1 ? start<D, 2, true>(given, warps, stream) : start<D, 1, true>(given, warps, stream);
}

}  // namespace

// splits: blocks of a cluster (1 to 16) that share a context. warps: of a block, 1, 2, 4 or 8. head_dim at most 256.
extern "C" int derby_paged_attention_decode_sm90_run(
    const void* query, const void* key_cache, const void* value_cache, const void* block_table,
    const void* context_lens, void* output, int sequences, int heads, int kv_heads, int head_dim, int table_width,
    float sm_scale, int splits, int warps, cudaStream_t stream) {
  int group = heads / kv_heads, tiles = group > 8 ? 2 : 1, chunks = (group + 8 * tiles - 1) / (8 * tiles);
  Arguments given{static_cast<const __nv_bfloat16*>(query), static_cast<const __nv_bfloat16*>(key_cache),
                  static_cast<const __nv_bfloat16*>(value_cache), static_cast<const int*>(block_table),
                  static_cast<const int*>(context_lens), static_cast<__nv_bfloat16*>(output),
                  sequences * kv_heads * chunks, splits, chunks, kv_heads, group, head_dim, table_width,
                  sm_scale * LOG2E};
  bool aligned = true;
  for (const void* address : {query, key_cache, value_cache, static_cast<const void*>(output)}) {
    aligned = aligned && reinterpret_cast<uintptr_t>(address) % 16 == 0;
  }
  if (head_dim <= 64) return start<64>(given, aligned && head_dim == 64, warps, tiles, stream);
  if (head_dim <= 128) return start<128>(given, aligned && head_dim == 128, warps, tiles, stream);
  if (head_dim <= 256) return start<256>(given, aligned && head_dim == 256, warps, tiles, stream);
  return cudaErrorInvalidValue;
}
