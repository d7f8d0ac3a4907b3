// derby_mla_decode_attention_sm90: one launch. A block (or a cluster of them, which share the context) takes 8, 16, 32 or
// 64 query heads of one sequence. Queries and a tile of tokens come into shared memory with one wait; the tile is key and
// value. Warps share the 576 products of a score among each other, then the 512 values of the latent.

#include "decode_mma.cuh"

namespace {

constexpr int KEY = 576, LATENT = 512, PITCH = KEY + 8;  // a row is 16 bytes longer: ldmatrix without bank conflicts
constexpr int WARPS = 8, THREADS = WARPS * 32, MOST_SPLITS = 16;

struct Arguments {
  const __nv_bfloat16 *query, *cache;
  const int* context_lens;
  __nv_bfloat16* output;
  int heads, chunks, slots, splits, longest;
  float scale;  // of scores, for powers of two
};

__device__ __forceinline__ uint32_t shared_address(const void* place) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(place));
}

// 16 bytes on their way from global to shared memory; zeros where not valid.
__device__ __forceinline__ void fetch(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void fetched() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT>
__device__ __forceinline__ void wait_fetched() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

// Four 8 x 8 matrices whose rows the lanes point at, those of the first by lanes 0 to 7 and so on.
__device__ __forceinline__ void load_matrices(uint32_t (&a)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_matrices_turned(uint32_t (&a)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(address)
               : "memory");
}

// NT: groups of 8 query heads. T: tokens of a tile.
template <int NT, int T>
struct Kernel {
  static constexpr int HEADS = 8 * NT, ROWS = T / 16, SHARES = WARPS / ROWS;  // warps to 16 tokens, which share products
  static constexpr bool OVER = NT >= 4;  // the others' outputs lie over queries and tiles, once all have used theirs
  struct Tile {
    __nv_bfloat16 rows[T][PITCH];
  };
  struct Shared {
    float scores[SHARES][HEADS][T + 4];
    float most[MOST_SPLITS][HEADS], sum[MOST_SPLITS][HEADS];  // of the blocks of the cluster
    float4 gathered[OVER ? 1 : NT * LATENT / 16][32];         // this block's stretch of the others' outputs
    __nv_bfloat16 query[HEADS][PITCH];
    Tile tiles[1];  // two where a block has several
  };

  const Arguments& given;
  Shared& shared;
  int lane, warp, quad, corner, split, sequence, first_head, heads, length;

  __device__ __forceinline__ Kernel(const Arguments& a, Shared& s) : given(a), shared(s) {
    lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane / 4, corner = lane % 4;
    split = blockIdx.x % a.splits;
    int unit = blockIdx.x / a.splits;
    first_head = unit % a.chunks * HEADS, sequence = unit / a.chunks;
    heads = min(HEADS, a.heads - first_head);
  }

  __device__ __forceinline__ void fetch_tile(int tile, int stage, int end) {
    const __nv_bfloat16* from = given.cache + (static_cast<long long>(sequence) * given.slots + tile * T) * KEY;
    constexpr int EACH = KEY / 8;
    for (int i = threadIdx.x; i < T * EACH; i += THREADS) {
      int token = i / EACH, part = i % EACH;
      bool valid = tile * T + token < end;
      fetch(&shared.tiles[stage].rows[token][8 * part], valid ? from + static_cast<long long>(token) * KEY + 8 * part
                                                               : given.cache, valid);
    }
  }

  __device__ __forceinline__ void fetch_query() {
    const __nv_bfloat16* from = given.query + (static_cast<long long>(sequence) * given.heads + first_head) * KEY;
    constexpr int EACH = KEY / 8;
    for (int i = threadIdx.x; i < HEADS * EACH; i += THREADS) {
      int head = i / EACH, part = i % EACH;
      fetch(&shared.query[head][8 * part], head < heads ? from + head * KEY + 8 * part : given.query, head < heads);
    }
  }

  // The warp's share of the products of its 16 tokens' scores.
  __device__ __forceinline__ void score(int stage) {
    int rows = warp % ROWS * 16, mine = warp / ROWS;
    uint32_t key = shared_address(&shared.tiles[stage].rows[rows + lane % 16][lane / 16 * 8]);
    // Of two groups of heads: both halves of 16 products of the first, then those of the second; one group twice.
    uint32_t query = shared_address(&shared.query[(NT > 1 ? lane / 16 * 8 : 0) + lane % 8][lane / 8 % 2 * 8]);
    float4 found[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) found[n] = {0, 0, 0, 0};
#pragma unroll
    for (int step = 0; step < (KEY / 16 + SHARES - 1) / SHARES; step++) {
      int part = step * SHARES + mine;
      if (KEY / 16 % SHARES && part >= KEY / 16) break;
      uint32_t a[4], b[4];
      load_matrices(a, key + part * 32);
#pragma unroll
      for (int n = 0; n < NT; n += 2) {
        load_matrices(b, query + part * 32 + n * 8 * PITCH * 2);
        multiply(found[n], a[0], a[1], a[2], a[3], b[0], b[1]);
        if (NT > 1) multiply(found[(n + 1) % NT], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
      int head = 8 * n + 2 * corner, token = rows + quad;
      shared.scores[mine][head][token] = found[n].x, shared.scores[mine][head + 1][token] = found[n].y;
      shared.scores[mine][head][token + 8] = found[n].z, shared.scores[mine][head + 1][token + 8] = found[n].w;
    }
  }

  // Head 8 n + quad: most and sum. Outputs of head 8 n + 2 corner (x, z) and the next (y, w) for the warp's dimensions.
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
      greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 1));
      greatest = fmaxf(greatest, __shfl_xor_sync(~0u, greatest, 2));
      float factor = share(most[n], greatest);
      most[n] = greatest;
      sum[n] *= factor;
#pragma unroll
      for (int i = 0; i < T / 4; i++) s[i] = power_of_two(s[i] - greatest), sum[n] += s[i];
#pragma unroll
      for (int i = 0; i < T / 8; i++) weights[n][i / 2][i % 2] = pack(s[2 * i], s[2 * i + 1]);
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
        load_matrices_turned(a, value + row * 16 * PITCH * 2 + i * 32);
#pragma unroll
        for (int n = 0; n < NT; n++) multiply(found[n][i], a[0], a[1], a[2], a[3], weights[n][row][0], weights[n][row][1]);
      }
    }
  }

  __device__ __forceinline__ void run() {
    int tile = split, stage = 0;
    length = __ldg(given.context_lens + sequence);
    fetch_query();
    fetch_tile(tile, 0, given.longest);  // before the length is known
    fetched();
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
        fetched();
        wait_fetched<1>();
      } else {
        wait_fetched<0>();
      }
      __syncthreads();
      score(stage);
      __syncthreads();
      weigh(tile, stage);
      if (next * T >= length) break;
      __syncthreads();
      stage ^= 1;
    }
    wait_fetched<0>();  // a block without a token has not waited yet
#pragma unroll
    for (int n = 0; n < NT; n++) {
      sum[n] += __shfl_xor_sync(~0u, sum[n], 1);
      sum[n] += __shfl_xor_sync(~0u, sum[n], 2);
    }
    if (given.splits == 1) {
#pragma unroll
      for (int n = 0; n < NT; n++) {
        float mine = 1 / sum[n];
        float low = __shfl_sync(~0u, mine, 8 * corner), high = __shfl_sync(~0u, mine, 8 * corner + 4);
#pragma unroll
        for (int i = 0; i < 4; i++) write(n, 4 * warp + i, found[n][i], low, high);
      }
    } else {
      exchange();
    }
  }

  // Each block of the cluster gets the others' outputs for its stretch of dimensions, and writes these.
  __device__ __forceinline__ void exchange() {
    int each = LATENT / 16 / given.splits;  // groups of 16 dimensions for a block
    auto gathered = OVER ? reinterpret_cast<float4(*)[32]>(shared.query) : shared.gathered;
    if (OVER) cluster_arrive();
    cluster_wait();
#pragma unroll
    for (int i = 0; i < 4; i++) {
      int group = 4 * warp + i, to = group / each, place = (split * each + group % each) * NT;
#pragma unroll
      for (int n = 0; n < NT; n++) store_in(address_in(&gathered[place + n][lane], to), found[n][i]);
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
      for (int to = warp; to < given.splits; to += WARPS) {
        if (corner == 0) store_in(address_in(&shared.most[split][8 * n + quad], to), most[n]);
        if (corner == 1) store_in(address_in(&shared.sum[split][8 * n + quad], to), sum[n]);
      }
    }
    cluster_arrive();
    cluster_wait();
    for (int i = warp; i < each * NT; i += WARPS) {
      int n = i % NT, head = 8 * n + 2 * corner;
      float2 whole = {-INFINITY, -INFINITY}, total = {0, 0};
      for (int s = 0; s < given.splits; s++) {
        whole.x = fmaxf(whole.x, shared.most[s][head]), whole.y = fmaxf(whole.y, shared.most[s][head + 1]);
      }
      float4 all = {0, 0, 0, 0};
      for (int s = 0; s < given.splits; s++) {
        float4 part = gathered[s * each * NT + i][lane];
        float low = share(shared.most[s][head], whole.x), high = share(shared.most[s][head + 1], whole.y);
        total.x += low * shared.sum[s][head], total.y += high * shared.sum[s][head + 1];
        all.x += low * part.x, all.y += high * part.y, all.z += low * part.z, all.w += high * part.w;
      }
      write(n, split * each + i / NT, all, 1 / total.x, 1 / total.y);
    }
  }

  // 16 dimensions of 8 heads.
  __device__ __forceinline__ void write(int n, int group, float4 all, float low, float high) {
    uint32_t first = turned(pack(all.x * low, all.y * high)), second = turned(pack(all.z * low, all.w * high));
    int head = 8 * n + quad;
    if (head >= heads) return;
    uint32_t* to = reinterpret_cast<uint32_t*>(given.output + (static_cast<long long>(sequence) * given.heads +
                                                               first_head + head) * LATENT + 16 * group + 2 * corner);
    to[0] = first, to[4] = second;
  }
};

template <int NT, int T>
__global__ void __launch_bounds__(THREADS, 1) derby_mla_decode_attention(const __grid_constant__ Arguments given) {
  extern __shared__ __align__(16) unsigned char bytes[];
  if (given.splits > 1 && !Kernel<NT, T>::OVER) cluster_arrive_relaxed();
  Kernel<NT, T>(given, *reinterpret_cast<typename Kernel<NT, T>::Shared*>(bytes)).run();
}

template <int NT, int T>
cudaError_t start(const Arguments& given, int sequences, cudaStream_t stream) {
  using K = Kernel<NT, T>;
  auto kernel = derby_mla_decode_attention<NT, T>;
  static bool ready = [&] {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         sizeof(typename K::Shared) + sizeof(typename K::Tile));
    cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    return true;
  }();
  (void)ready;
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

// splits: blocks of a cluster that share a context, 1, 2, 4, 8 or 16. groups: of 8 heads to a block. tokens: of a tile.
// All addresses are multiples of 16.
extern "C" int derby_mla_decode_attention_sm90_run(const void* query, const void* cache, const void* context_lens,
                                                   void* output, int sequences, int heads, int slots, int longest,
                                                   float sm_scale, int splits, int groups, int tokens,
                                                   cudaStream_t stream) {
  Arguments given{static_cast<const __nv_bfloat16*>(query), static_cast<const __nv_bfloat16*>(cache),
                  static_cast<const int*>(context_lens), static_cast<__nv_bfloat16*>(output), heads,
                  (heads + 8 * groups - 1) / (8 * groups), slots, splits, longest, sm_scale * LOG2E};
  switch (groups * 100 + tokens) {
    case 116: return start<1, 16>(given, sequences, stream);
    case 132: return start<1, 32>(given, sequences, stream);
    case 216: return start<2, 16>(given, sequences, stream);
    case 232: return start<2, 32>(given, sequences, stream);
    case 264: return start<2, 64>(given, sequences, stream);
    case 432: return start<4, 32>(given, sequences, stream);
    case 832: return start<8, 32>(given, sequences, stream);
  }
  return cudaErrorInvalidValue;
}
