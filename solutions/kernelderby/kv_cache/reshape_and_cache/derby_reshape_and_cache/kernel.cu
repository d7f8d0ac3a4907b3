// derby_reshape_and_cache: one launch, every row of the new caches written once. Two kinds of blocks run side by side.
// Each of the first kind has a stretch of slots, finds those that no token goes to, and copies their old rows; the
// others write tokens into their slots. Old rows that are overwritten are not read.
// Constraints: sm_90 or later; every tensor contiguous; a row (heads times head_dim values) a multiple of `width`
// bytes, which divides all addresses (main.py chooses 16 to 2); blocks of 16 slots; slot_mapping int64; outputs lie in
// no input.

#include "cluster.cuh"

namespace {

constexpr int MOST_SLOTS = 1024;  // of a block of the first kind

struct Shared {
  int kept;  // length of `list`
  unsigned char taken[MOST_SLOTS];
  short list[MOST_SLOTS];
};

struct Rows {  // of V: a row is `length` of them
  const void *key, *value, *key_cache, *value_cache;
  const long long* slot_mapping;
  void *key_out, *value_out;
  int tokens, length;
  long long slots;
};

// Marks which of the slots first ... first + count - 1 a token goes to.
__device__ __forceinline__ void mark(const Rows& rows, long long first, int count, Shared& shared) {
  constexpr int PAIRS = 8;  // of slots, loaded by a thread together, since the search waits for memory
  auto take = [&](long long slot) {
    long long place = slot - first;
    if (place >= 0 && place < count) shared.taken[place] = 1;
  };
  int pairs = reinterpret_cast<unsigned long long>(rows.slot_mapping) % 16 ? 0 : rows.tokens / 2;
  const longlong2* mapping = reinterpret_cast<const longlong2*>(rows.slot_mapping);
  for (int start = threadIdx.x; start < pairs; start += PAIRS * int(blockDim.x)) {
    longlong2 two[PAIRS];
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
      int i = start + j * int(blockDim.x);
      two[j].x = two[j].y = -1;
      if (i < pairs) two[j] = __ldg(mapping + i);
    }
#pragma unroll
    for (int j = 0; j < PAIRS; j++) take(two[j].x), take(two[j].y);
  }
  for (int i = 2 * pairs + threadIdx.x; i < rows.tokens; i += blockDim.x) take(__ldg(rows.slot_mapping + i));
}

template <class V>
__device__ __forceinline__ void keep(const Rows& rows, long long first, int count, bool mostly, Shared& shared) {
  const V* key = static_cast<const V*>(rows.key_cache) + first * rows.length;
  const V* value = static_cast<const V*>(rows.value_cache) + first * rows.length;
  V* key_out = static_cast<V*>(rows.key_out) + first * rows.length;
  V* value_out = static_cast<V*>(rows.value_out) + first * rows.length;
  int thread = threadIdx.x, all = count * rows.length;
  for (int i = thread; i < count; i += blockDim.x) shared.taken[i] = 0;
  if (thread == 0) shared.kept = 0;
  V first_key = {}, first_value = {};
  if (mostly && thread < all) first_key = __ldcs(key + thread), first_value = __ldcs(value + thread);
  __syncthreads();
  mark(rows, first, count, shared);
  __syncthreads();
  if (mostly) {  // few slots are taken: no list, and the first rows were loaded while slots were looked at
    for (int i = thread; i < all; i += blockDim.x) {
      if (shared.taken[i / rows.length]) continue;
      __stcs(key_out + i, i == thread ? first_key : __ldcs(key + i));
      __stcs(value_out + i, i == thread ? first_value : __ldcs(value + i));
    }
    return;
  }
  for (int i = thread; i < count; i += blockDim.x) {
    if (!shared.taken[i]) shared.list[atomicAdd(&shared.kept, 1)] = static_cast<short>(i);
  }
  __syncthreads();
  for (int i = thread; i < shared.kept * rows.length; i += blockDim.x) {
    int place = shared.list[i / rows.length] * rows.length + i % rows.length;
    V old_key = __ldcs(key + place), old_value = __ldcs(value + place);
    __stcs(key_out + place, old_key);
    __stcs(value_out + place, old_value);
  }
}

// Writes tokens first ... first + count - 1 into their slots; each thread has ITEMS vectors of keys and of values in
// flight.
template <class V, int ITEMS>
__device__ __forceinline__ void put(const Rows& rows, long long first, int count) {
  const V* key = static_cast<const V*>(rows.key) + first * rows.length;
  const V* value = static_cast<const V*>(rows.value) + first * rows.length;
  int all = count * rows.length;
  for (int start = threadIdx.x; start < all; start += ITEMS * blockDim.x) {
    V keys[ITEMS], values[ITEMS];
    long long slots[ITEMS];
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
      int i = start + j * int(blockDim.x);
      slots[j] = -1;
      if (i >= all) continue;
      slots[j] = __ldg(rows.slot_mapping + first + i / rows.length);
      keys[j] = __ldcs(key + i);
      values[j] = __ldcs(value + i);
    }
#pragma unroll
    for (int j = 0; j < ITEMS; j++) {
      if (slots[j] < 0 || slots[j] >= rows.slots) continue;  // padding
      long long place = slots[j] * rows.length + (start + j * int(blockDim.x)) % rows.length;
      __stcs(static_cast<V*>(rows.key_out) + place, keys[j]);
      __stcs(static_cast<V*>(rows.value_out) + place, values[j]);
    }
  }
}

template <class V, int ITEMS>
__global__ void __launch_bounds__(256, 4) derby_reshape_and_cache(Rows rows, int keepers, int slots_each, bool mostly,
                                                               int tokens_each) {
  int block = blockIdx.x;
  if (block < keepers) {
    long long first = static_cast<long long>(block) * slots_each;
    int count = static_cast<int>(min(static_cast<long long>(slots_each), rows.slots - first));
    keep<V>(rows, first, count, mostly, shared_memory<Shared>());
  } else {
    int first = (block - keepers) * tokens_each;
    put<V, ITEMS>(rows, first, min(tokens_each, rows.tokens - first));
  }
}

template <class V>
cudaError_t start(const Rows& rows, int items, dim3 grid, cudaStream_t stream, int keepers, int slots_each,
                  bool mostly, int tokens_each) {
  auto kernel = items == 1 ? derby_reshape_and_cache<V, 1> : items == 2 ? derby_reshape_and_cache<V, 2>
                                                                         : derby_reshape_and_cache<V, 4>;
  return launch<Shared>(kernel, grid, 256, 1, stream, rows, keepers, slots_each, mostly, tokens_each);
}

}  // namespace

// row_bytes: of a slot of one cache. width: bytes that a thread moves at once, 16, 8, 4 or 2, a divisor of row_bytes and
// of all addresses. keepers x slots_each >= slots, slots_each <= 1024; mostly: few slots are taken.
extern "C" int derby_reshape_and_cache_run(const void* key, const void* value, const void* key_cache,
                                           const void* value_cache, const void* slot_mapping, void* key_out,
                                           void* value_out, int tokens, long long slots, int row_bytes, int width,
                                           int items, int keepers, int slots_each, int mostly, int tokens_each,
                                           cudaStream_t stream) {
  Rows rows{key, value, key_cache, value_cache, static_cast<const long long*>(slot_mapping), key_out, value_out,
            tokens, row_bytes / width, slots};
  dim3 grid(keepers + (tokens + tokens_each - 1) / tokens_each);
  switch (width) {
    case 16: return start<uint4>(rows, items, grid, stream, keepers, slots_each, mostly, tokens_each);
    case 8: return start<uint2>(rows, items, grid, stream, keepers, slots_each, mostly, tokens_each);
    case 4: return start<unsigned>(rows, items, grid, stream, keepers, slots_each, mostly, tokens_each);
    case 2: return start<unsigned short>(rows, items, grid, stream, keepers, slots_each, mostly, tokens_each);
  }
  return cudaErrorInvalidValue;
}
