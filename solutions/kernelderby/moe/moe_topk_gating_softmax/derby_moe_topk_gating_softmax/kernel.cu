// derby_moe_topk_gating_softmax for many tokens: one row a warp, with few instructions.
//
// The eighth largest of the lanes' maxima is a lower bound of the row's eighth largest logit, and on average nine
// logits reach it. These go to a list in shared memory. Each lane counts how many of the list come before its own,
// which is its place in the output. Rows with many equal logits, which overflow the list, are searched in rounds.
// Constraints: sm_90 or later; float32, contiguous; top_k 8; 8 to 1024 experts; vectors of 4 where their number and
// the address allow (`width`); whole warps.

#include "cluster.cuh"

namespace {

constexpr int TOP_K = 8;
constexpr int LIST = 32;      // one a lane
constexpr int MOST_WARPS = 8;
constexpr unsigned ALL = 0xffffffffu;

struct Shared {
  unsigned long long list[MOST_WARPS][LIST];  // keys above, experts upside down below: the larger comes first
};

// Unsigned integers in the order of the floats, and back. + 0.0f makes -0 a 0: equal logits have equal keys.
__device__ __forceinline__ unsigned key_of(float value) {
  unsigned bits = __float_as_uint(value + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float value_of(unsigned key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// One row in the registers of a warp: a lane has ITEMS logits, WIDTH of them beside each other. Beyond the last expert
// values are minus infinity and keys 0, below those of all numbers.
template <int ITEMS, int WIDTH>
struct Row {
  unsigned keys[ITEMS];
  float values[ITEMS];  // kept for the sum: turning a key back would take three instructions
  int lane;

  __device__ __forceinline__ int expert(int i) const { return i / WIDTH * 32 * WIDTH + lane * WIDTH + i % WIDTH; }

  __device__ __forceinline__ void load(const float* logits, int experts) {
#pragma unroll
    for (int i = 0; i < ITEMS; i += WIDTH) {
      bool there = expert(i) < experts;
      if constexpr (WIDTH == 4) {
        float4 four = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        if (there) four = __ldg(reinterpret_cast<const float4*>(logits + expert(i)));
        values[i] = four.x, values[i + 1] = four.y, values[i + 2] = four.z, values[i + 3] = four.w;
      } else {
        values[i] = there ? __ldg(logits + expert(i)) : -INFINITY;
      }
    }
#pragma unroll
    for (int i = 0; i < ITEMS; i++) keys[i] = expert(i) < experts ? key_of(values[i]) : 0;
  }

  __device__ __forceinline__ unsigned largest() const {
    unsigned most = keys[0];
#pragma unroll
    for (int i = 1; i < ITEMS; i++) most = max(most, keys[i]);
    return most;
  }

  // Sum of exp(logit - top) over the row, in every lane.
  __device__ __forceinline__ float total(float top) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) sum += __expf(values[i] - top);
#pragma unroll
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(ALL, sum, step);
    return sum;
  }

  // Writes logits that are `bound` or larger to the list, as many as fit. Returns how many there are.
  __device__ __forceinline__ int collect(unsigned bound, unsigned long long* list) const {
    unsigned below = (1u << lane) - 1;
    int size = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
      bool chosen = keys[i] >= bound;
      unsigned lanes = __ballot_sync(ALL, chosen);
      int place = size + __popc(lanes & below);
      if (chosen && place < LIST) list[place] = static_cast<unsigned long long>(keys[i]) << 32 | ~unsigned(expert(i));
      size += __popc(lanes);
    }
    return size;
  }

  // Finds the k-th largest key and its expert for lane k, in rounds; of equal keys the lowest expert comes first.
  __device__ __forceinline__ void search(unsigned& best, int& id) {
    for (int k = 0; k < TOP_K; k++) {
      unsigned most = __reduce_max_sync(ALL, largest());
      unsigned first = ALL;
#pragma unroll
      for (int i = ITEMS - 1; i >= 0; i--) if (keys[i] == most) first = expert(i);
      first = __reduce_min_sync(ALL, first);
#pragma unroll
      for (int i = 0; i < ITEMS; i++) if (expert(i) == int(first)) keys[i] = 0;
      if (lane == k) best = most, id = int(first);
    }
  }
};

// logits [tokens, experts] -> weights, ids [tokens, 8]; ITEMS x 32 >= experts >= 8. A block has blockDim.x / 32 rows.
template <int ITEMS, int WIDTH>
__global__ void __launch_bounds__(MOST_WARPS * 32) derby_moe_topk_gating_softmax(
    const float* __restrict__ logits, float* __restrict__ weights, int* __restrict__ ids, int tokens, int experts) {
  int warp = int(threadIdx.x) / 32;
  int token = int(blockIdx.x) * int(blockDim.x / 32) + warp;
  if (token >= tokens) return;  // whole warps; no barrier below is wider
  Row<ITEMS, WIDTH> row;
  row.lane = int(threadIdx.x) % 32;
  row.load(logits + static_cast<long long>(token) * experts, experts);

  unsigned mine = row.largest(), top_key = __reduce_max_sync(ALL, mine), bound = top_key;
#pragma unroll
  for (int k = 1; k < TOP_K; k++) {
    mine = mine == bound ? 0 : mine;
    bound = __reduce_max_sync(ALL, mine);
  }
  float top = value_of(top_key), total = row.total(top);
  unsigned long long* list = shared_memory<Shared>().list[warp];
  int size = row.collect(max(bound, 1u), list);
  __syncwarp();

  unsigned best = 0;
  int id = 0, place = TOP_K;
  if (size <= LIST && size >= TOP_K) {
    unsigned long long own = row.lane < size ? list[row.lane] : 0;
    place = row.lane < size ? 0 : TOP_K;
    for (int i = 0; i < size; i++) place += list[i] > own;
    best = static_cast<unsigned>(own >> 32);
    id = static_cast<int>(~static_cast<unsigned>(own));
  } else {  // fewer than eight: a NaN that compares below all
    row.search(best, id);
    place = row.lane;
  }
  if (place < TOP_K) {
    long long to = static_cast<long long>(token) * TOP_K + place;
    weights[to] = __fdividef(__expf(value_of(best) - top), total);
    ids[to] = id;
  }
}

}  // namespace

// experts from 8 to 1024; width 4 where 4 divides it and logits lie at multiples of 16 bytes, else 1. threads: 32 to 256,
// whole warps.
extern "C" int derby_moe_topk_gating_softmax_run(const float* logits, float* weights, int* ids, int tokens, int experts,
                                                 int width, int threads, cudaStream_t stream) {
  int rows = threads / 32;
  if (threads % 32 || rows < 1 || rows > MOST_WARPS || experts < TOP_K) return cudaErrorInvalidValue;
  dim3 grid((tokens + rows - 1) / rows);
  auto go = [&](auto kernel) {
    return launch<Shared>(kernel, grid, threads, 1, stream, logits, weights, ids, tokens, experts);
  };
  int items = experts <= 128 ? 4 : experts <= 256 ? 8 : experts <= 512 ? 16 : experts <= 1024 ? 32 : 0;
  switch (items * 10 + width) {
    case 41: return go(derby_moe_topk_gating_softmax<4, 1>);
    case 44: return go(derby_moe_topk_gating_softmax<4, 4>);
    case 81: return go(derby_moe_topk_gating_softmax<8, 1>);
    case 84: return go(derby_moe_topk_gating_softmax<8, 4>);
    case 161: return go(derby_moe_topk_gating_softmax<16, 1>);
    case 164: return go(derby_moe_topk_gating_softmax<16, 4>);
    case 321: return go(derby_moe_topk_gating_softmax<32, 1>);
    case 324: return go(derby_moe_topk_gating_softmax<32, 4>);
  }
  return cudaErrorInvalidValue;
}
