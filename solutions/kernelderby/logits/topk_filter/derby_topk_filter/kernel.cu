// derby_topk_filter: values below the row's k-th largest become filter_value. One launch, one read, one write.
//
// A block takes a row into its registers, finds the k-th largest (select.cuh) and writes the filtered row from there. A
// row that is too long for one block goes to a cluster: each block lists its own k largest, all blocks gather all lists
// through distributed shared memory and find the k-th largest of these, each for itself.
// Constraints: sm_90 or later; float32, contiguous; any row length from 1 on, vectors of 4 where length and addresses
// allow (`width`); k at least 1; at most 16 blocks share a row; forms (threads, values of each) as the switch at the
// end lists them.

#include "select.cuh"

namespace {

struct RowShared {
  List list;
  Sums sums;
  unsigned result;
};

constexpr int GATHERED = 6144;
struct ClusterShared : RowShared {
  List finalists;
  int sizes[16];
  int parts[2][16];
  unsigned gathered[GATHERED];
};

// ITEMS values of a row (or of a block's part of it) in each thread's registers, WIDTH at a time: 4 where rows are
// aligned to 16 bytes, else 1. Behind the end stands -infinity, which no bound counts. ITEMS 0: values stay in memory
// and are read alternately forwards and backwards, so that those read last are still in the second-level cache.
template <int ITEMS, int WIDTH>
struct Values {
  using Vector = typename Bits<4 * WIDTH>::Type;
  union Some {
    float of[WIDTH];
    Vector vector;
  };
  const float* row;
  int size;
  float held[ITEMS ? ITEMS : 1];

  __device__ __forceinline__ Values(const float* row, int size) : row(row), size(size) {
#pragma unroll
    for (int i = 0; i < ITEMS; i += WIDTH) {
      int place = (i / WIDTH * int(blockDim.x) + int(threadIdx.x)) * WIDTH;
      if constexpr (WIDTH == 4) {
        float4 four = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        if (place < size) four = __ldcs(reinterpret_cast<const float4*>(row + place));
        held[i] = four.x, held[i + 1] = four.y, held[i + 2] = four.z, held[i + 3] = four.w;
      } else {
        held[i] = place < size ? __ldcs(row + place) : -INFINITY;
      }
    }
  }
  template <class F>
  __device__ __forceinline__ void each(F f, bool backwards = false) const {
    if constexpr (ITEMS > 0) {
#pragma unroll
      for (int i = 0; i < ITEMS; i++) f(held[i]);
    } else {
      in_memory([&](int, int, float value) { f(value); }, backwards);
    }
  }
  // Calls f(place, place % WIDTH, value) for all values of a thread, with TURN loads on their way at once.
  template <class F>
  __device__ __forceinline__ void in_memory(F f, bool backwards) const {
    constexpr int TURN = 4;
    const int step = int(blockDim.x) * WIDTH, turns = (size + TURN * step - 1) / (TURN * step);
    for (int turn = 0; turn < turns; turn++) {
      int first = (backwards ? turns - 1 - turn : turn) * TURN * step + int(threadIdx.x) * WIDTH;
      float read[TURN][WIDTH];
#pragma unroll
      for (int i = 0; i < TURN; i++) {
        int place = first + i * step;
        if (place >= size) continue;
        if constexpr (WIDTH == 4) {
          float4 four = __ldg(reinterpret_cast<const float4*>(row + place));
          read[i][0] = four.x, read[i][1] = four.y, read[i][2] = four.z, read[i][3] = four.w;
        } else {
          read[i][0] = __ldg(row + place);
        }
      }
#pragma unroll
      for (int i = 0; i < TURN; i++) {
        if (first + i * step >= size) continue;
#pragma unroll
        for (int j = 0; j < WIDTH; j++) f(first + i * step + j, j, read[i][j]);
      }
    }
  }
  __device__ __forceinline__ float largest() const {
    float most = -INFINITY;
    each([&](float value) { most = fmaxf(most, value); });
    return most;
  }
  template <class F>
  __device__ __forceinline__ void reaching(float bound, F f) const {
    each([&](float value) { if (!(value < bound)) f(key_of(value)); }, true);
  }
  __device__ __forceinline__ int count(unsigned key) const {
    int found = 0;
    each([&](float value) { found += key_of(value) >= key; });
    return found;
  }
  static constexpr bool READ_AGAIN = ITEMS == 0;
  // Values that are not below the threshold stay: NaN stays, and with a threshold of NaN all values stay.
  __device__ __forceinline__ void write(float* target, float threshold, float filter) const {
    if constexpr (ITEMS > 0) {
#pragma unroll
      for (int i = 0; i < ITEMS; i += WIDTH) {
        int place = (i / WIDTH * int(blockDim.x) + int(threadIdx.x)) * WIDTH;
        if (place >= size) continue;
        Some kept;
#pragma unroll
        for (int j = 0; j < WIDTH; j++) kept.of[j] = held[i + j] < threshold ? filter : held[i + j];
        __stcs(reinterpret_cast<Vector*>(target + place), kept.vector);
      }
    } else {
      Some kept;
      in_memory([&](int place, int j, float value) {
        kept.of[j] = value < threshold ? filter : value;
        if (j == WIDTH - 1) __stcs(reinterpret_cast<Vector*>(target + place - j), kept.vector);
      }, false);
    }
  }
};

// Keys in shared memory, with the interface of a block's values.
struct Keys {
  const unsigned* keys;
  int size;
  static constexpr bool READ_AGAIN = false;

  __device__ __forceinline__ float largest() const {
    unsigned most = KEY_LOWEST;
    for (int i = threadIdx.x; i < size; i += blockDim.x) if (keys[i] < KEY_NAN) most = max(most, keys[i]);
    return value_of(most);
  }
  template <class F>
  __device__ __forceinline__ void reaching(float bound, F f) const {
    unsigned least = key_of(bound);
    for (int i = threadIdx.x; i < size; i += blockDim.x) if (keys[i] >= least) f(keys[i]);
  }
  __device__ __forceinline__ int count(unsigned key) const {
    int found = 0;
    for (int i = threadIdx.x; i < size; i += blockDim.x) found += keys[i] >= key;
    return found;
  }
};

// The k-th largest of a block's values, of which there are at least k.
template <class V>
__device__ __forceinline__ unsigned select(const V& values, int k, List& list, RowShared& shared) {
  int size = collect(values, k, list);
  if (size <= LIST) return ranked(list, size, k, shared.result);
  return bisect(k, [&](unsigned key, int turn) { return block_sum(values.count(key), shared.sums, turn); });
}

__device__ __forceinline__ void clear(RowShared& shared) {
  if (threadIdx.x == 0) shared.list.size = 0;
  if (threadIdx.x < 3) shared.sums.of[threadIdx.x] = 0;
}

// How many blocks a multiprocessor's registers should have room for: 40 warps if a thread holds few values.
constexpr int blocks_wanted(int threads, int items) { return threads == 1024 || items > 16 ? 1 : 1280 / threads; }

template <int THREADS, int ITEMS, int WIDTH>
__global__ void __launch_bounds__(THREADS, blocks_wanted(THREADS, ITEMS))
derby_topk_filter(const float* logits, float* output, int vocab, int k, float filter) {
  RowShared& shared = shared_memory<RowShared>();
  long long start = static_cast<long long>(blockIdx.x) * vocab;
  Values<ITEMS, WIDTH> values(logits + start, vocab);
  clear(shared);
  __syncthreads();
  float threshold = k < vocab ? value_of(select(values, k, shared.list, shared)) : -INFINITY;
  values.write(output + start, threshold, filter);
}

// How many keys of the whole cluster reach one; seen by all threads of all blocks.
template <class V>
__device__ __forceinline__ int cluster_count(const V& values, unsigned key, int turn, ClusterShared& shared) {
  int blocks = __clusterSizeInBlocks(), rank = __clusterRelativeBlockRank();
  int mine = block_sum(values.count(key), shared.sums, turn);
  if (int(threadIdx.x) < blocks) in_block(shared, threadIdx.x).parts[turn % 2][rank] = mine;
  cluster_sync();
  int sum = 0;
  for (int i = 0; i < blocks; i++) sum += shared.parts[turn % 2][i];
  return sum;
}

// Copies the lists of all blocks to shared.gathered of this one. Returns the number of keys, or -1 if any list
// overflowed or they are too many.
__device__ __forceinline__ int gather(ClusterShared& shared, int size) {
  int blocks = __clusterSizeInBlocks(), thread = threadIdx.x;
  if (thread == 0) shared.list.size = size;
  cluster_sync();
  if (thread < blocks) shared.sizes[thread] = in_block(shared, thread).list.size;
  __syncthreads();
  int total = 0;
  bool fits = true;
  for (int i = 0; i < blocks; i++) {
    fits &= shared.sizes[i] <= LIST;
    total += shared.sizes[i];
  }
  if (!fits || total > GATHERED) return -1;  // the same in every block
  int warps = int(blockDim.x) / 32, first = 0;
  for (int i = 0; i < blocks; i++) {
    if (i % warps == thread / 32) {
      const List& list = in_block(shared, i).list;
      for (int j = thread % 32; j < shared.sizes[i]; j += 32) shared.gathered[first + j] = list.keys[j];
    }
    first += shared.sizes[i];
  }
  __syncthreads();
  return total;
}

template <int THREADS, int ITEMS, int WIDTH>
__global__ void __launch_bounds__(THREADS, 1)
derby_topk_filter_cluster(const float* logits, float* output, int vocab, int k, float filter) {
  ClusterShared& shared = shared_memory<ClusterShared>();
  int blocks = __clusterSizeInBlocks(), rank = __clusterRelativeBlockRank();
  int part = ((vocab + blocks - 1) / blocks + 3) / 4 * 4;  // of the row, in whole float4
  int first = min(rank * part, vocab);
  long long start = static_cast<long long>(blockIdx.x / blocks) * vocab + first;
  Values<ITEMS, WIDTH> values(logits + start, min(part, vocab - first));
  clear(shared);
  if (threadIdx.x == 0) shared.finalists.size = 0;
  __syncthreads();
  float threshold = -INFINITY;
  if (k < vocab) {
    int total = gather(shared, collect(values, k, shared.list));
    if (total >= 0) {
      __cluster_barrier_arrive();  // this block has read what it needs of the others
      threshold = value_of(select(Keys{shared.gathered, total}, k, shared.finalists, shared));
    } else {
      threshold = value_of(bisect(k, [&](unsigned key, int turn) { return cluster_count(values, key, turn, shared); }));
      __cluster_barrier_arrive();
    }
  } else {
    __cluster_barrier_arrive();
  }
  values.write(output + start, threshold, filter);
  __cluster_barrier_wait();  // no block leaves while another one reads its shared memory
}

struct Call {
  const float* logits;
  float* output;
  int tokens, vocab, k, cluster;
  float filter;
  cudaStream_t stream;
};

template <int THREADS, int ITEMS, int WIDTH>
cudaError_t start(const Call& c) {
  if constexpr (THREADS == 1024) {
    if (c.cluster > 1) {
      return launch<ClusterShared>(derby_topk_filter_cluster<THREADS, ITEMS, WIDTH>, dim3(c.tokens * c.cluster),
                                   THREADS, c.cluster, c.stream, c.logits, c.output, c.vocab, c.k, c.filter);
    }
  }
  if (c.cluster > 1) return cudaErrorInvalidValue;
  return launch<RowShared>(derby_topk_filter<THREADS, ITEMS, WIDTH>, dim3(c.tokens), THREADS, 1, c.stream, c.logits,
                           c.output, c.vocab, c.k, c.filter);
}

template <int THREADS, int ITEMS>
cudaError_t start(const Call& c, int width) {
  return width == 4 ? start<THREADS, ITEMS, 4>(c) : start<THREADS, ITEMS, 1>(c);
}

}  // namespace

// threads, items: as compiled below. items 0: a row of any length, read from memory again and again. width 4 needs
// 16-byte aligned tensors and a vocabulary of whole float4. cluster: blocks a row, 1 to 16; more than 1 with 1024 threads.
extern "C" int derby_topk_filter_run(const float* logits, float* output, int tokens, int vocab, int k, float filter,
                                     int threads, int items, int width, int cluster, cudaStream_t stream) {
  Call call{logits, output, tokens, vocab, k, cluster, filter, stream};
  switch (threads * 100 + items) {
    case 12816: return start<128, 16>(call, width);
    case 12832: return start<128, 32>(call, width);
    case 25608: return start<256, 8>(call, width);
    case 25616: return start<256, 16>(call, width);
    case 51208: return start<512, 8>(call, width);
    case 102400: return start<1024, 0>(call, width);
    case 102404: return start<1024, 4>(call, width);
    case 102408: return start<1024, 8>(call, width);
    case 102412: return start<1024, 12>(call, width);
    case 102420: return start<1024, 20>(call, width);
  }
  return cudaErrorInvalidValue;
}
