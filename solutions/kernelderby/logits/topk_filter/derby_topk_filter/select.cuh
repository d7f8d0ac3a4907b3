// The k-th largest of the values that the threads of a block hold.
//
// It is found in two steps. Each thread's largest value stands for its values; if at least k of these reach a bound, at
// least k values reach it, so the k-th largest is not below the bound. A bisection over the sortable keys finds a bound
// that only few more than k reach, with as many block-wide counts as it takes to find the right scale. The values that
// reach it, k and a few more, go into a list, and the k-th largest is the one with the right number of larger ones. If
// that fails (too many ties, or k above the number of threads), a bisection that counts all values finds it exactly,
// only more slowly.

#pragma once
#include "cluster.cuh"

constexpr unsigned KEY_LOWEST = 0x007fffffu;  // of -infinity
constexpr unsigned KEY_NAN = 0xff800001u;     // one above +infinity: NaN counts as the largest, as in a sort
constexpr int LIST = 1024;                    // values a list has room for
constexpr int OVERFLOW = LIST + 1;

// Unsigned integers in the order of the floats. -0 comes below 0 although they are equal, which does no harm: as
// thresholds they are equal too.
__device__ __forceinline__ unsigned key_of(float value) {
  unsigned bits = __float_as_uint(value);
  unsigned key = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return value != value ? KEY_NAN : key;
}
__device__ __forceinline__ float value_of(unsigned key) {
  if (key >= KEY_NAN) return __uint_as_float(0x7fffffffu);
  return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

struct List {
  int size;
  unsigned keys[LIST];
};
struct Sums {  // of three consecutive counts, in turn: one barrier each is enough
  int of[3];
};

// The whole block's sum of `mine`, seen by all threads. turn: 0, 1, 2 ... of consecutive sums; all of `sums` zero before.
__device__ __forceinline__ int block_sum(int mine, Sums& sums, int turn) {
  int warp_sum = __reduce_add_sync(0xffffffffu, unsigned(mine));
  if (threadIdx.x % 32 == 0 && warp_sum) atomicAdd(&sums.of[turn % 3], warp_sum);
  if (threadIdx.x == 0) sums.of[(turn + 1) % 3] = 0;
  __syncthreads();
  return sums.of[turn % 3];
}

// The largest key that at least k keys reach; count(key, turn) tells how many reach a key. All keys reach KEY_LOWEST.
template <class Count>
__device__ __forceinline__ unsigned bisect(int k, Count count) {
  unsigned low = KEY_LOWEST, high = KEY_NAN;
  for (int turn = 0; low < high; turn++) {
    unsigned middle = low + (high - low + 1) / 2;
    if (count(middle, turn) >= k) low = middle; else high = middle - 1;
  }
  return low;
}

// Puts at least k of the largest values into `list`, and all that are as large as any of these. values.largest() is the
// thread's largest but for NaN, values.reaching(bound, f) calls f(key) for its values that are not below the bound;
// READ_AGAIN: from memory.
// Returns their number, OVERFLOW if the list would not hold them. list.size is 0 before, and a barrier lies between.
template <class Values>
__device__ __forceinline__ int collect(const Values& values, int k, List& list) {
  unsigned mine = key_of(values.largest());
  unsigned low = KEY_LOWEST, high = KEY_NAN - 1;
  int most = k + max(k / 2, 16);
  if (k > int(blockDim.x)) return OVERFLOW;
  while (low < high) {
    unsigned middle = low + (high - low + 1) / 2;
    int count = __syncthreads_count(mine >= middle);
    if (count < k) {
      high = middle - 1;
    } else {
      low = middle;
      if (count <= most) break;
    }
  }
  if (low == KEY_LOWEST) return OVERFLOW;  // fewer than k groups have a value above -infinity
  float bound = value_of(low);
  if constexpr (Values::READ_AGAIN) {  // a place each, rather than all values once more to count them
    values.reaching(bound, [&](unsigned key) {
      int place = atomicAdd(&list.size, 1);
      if (place < LIST) list.keys[place] = key;
    });
    __syncthreads();
    return list.size <= LIST ? list.size : OVERFLOW;
  }
  int count = 0;
  values.reaching(bound, [&](unsigned) { count++; });
  if (count) {
    int place = atomicAdd(&list.size, count);
    values.reaching(bound, [&](unsigned key) {
      if (place < LIST) list.keys[place] = key;
      place++;
    });
  }
  __syncthreads();
  return list.size <= LIST ? list.size : OVERFLOW;
}

// The k-th largest of the list's keys, seen by all threads.
__device__ __forceinline__ unsigned ranked(const List& list, int size, int k, unsigned& result) {
  for (int i = threadIdx.x; i < size; i += blockDim.x) {
    unsigned mine = list.keys[i];
    int larger = 0, equal = 0;
    for (int j = 0; j < size; j++) {
      unsigned other = list.keys[j];
      larger += other > mine;
      equal += other == mine;
    }
    if (larger < k && k <= larger + equal) result = mine;  // every thread that writes writes the same
  }
  __syncthreads();
  return result;
}
