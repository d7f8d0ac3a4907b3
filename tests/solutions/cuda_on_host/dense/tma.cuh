// common/tma.cuh on the CPU: boxes of 128-byte rows with the 128-byte swizzle. A load lands when
// all threads wait, or with EMULATED_ORDER=reversed at once: the latest and the earliest that it could; a store reads shared memory when it is waited for or its thread ends, or at once too.
#pragma once
#include <deque>
#include <map>

#include <cuda.h>

#include "ptx.cuh"

namespace derby {

inline uint32_t swizzled(uint32_t address) { return address ^ ((address >> 7 & 7) << 4); }

// Each 16 bytes of a box: function(offset in the box, swizzled place in shared memory, address or nullptr outside).
template <class Function>
void each_chunk(const CUtensorMap& map, uint32_t to, int x, int y, Function function) {
  if (to % 1024) fprintf(stderr, "emulated CUDA: a box at an odd place\n"), abort();
  for (int r = 0; r < int(map.box[1]); r++)
    for (int c = 0; c < 8; c++) {
      int64_t element = map.strides[0], row = y + r, column = x + c * 16 / element;
      bool inside = row < int64_t(map.sizes[1]) && column < int64_t(map.sizes[0]);
      function(swizzled(to + r * 128 + c * 16), map.tensor + (row * map.sizes[0] + column) * element, inside);
    }
}
inline void box_in(const CUtensorMap& map, uint32_t to, int x, int y) {
  each_chunk(map, to, x, y, [](uint32_t place, const char* from, bool inside) {
    if (inside) memcpy(at_shared<uint4>(place), from, 16);
    else memset(at_shared<uint4>(place), 0, 16);
  });
}
struct Load { CUtensorMap map; uint32_t to, barrier; int x, y; };
inline std::deque<Load> loads;  // under way

inline bool land() {
  if (loads.empty()) return false;
  Load one = loads.front();
  loads.pop_front();
  box_in(one.map, one.to, one.x, one.y);
  mbarrier_complete_tx(one.barrier, one.map.box[1] * 128);
  return true;
}
inline uint32_t in_cluster(uint32_t address) {
  return address >> 24 ? address : cluster_address(address, emulated::current->block->rank);
}
inline void tma_load(uint32_t to, const void* map, uint32_t barrier, int x, int y) {
  emulated::when_stuck = land;
  loads.push_back({*(const CUtensorMap*)map, in_cluster(to), in_cluster(barrier), x, y});
  const char* order = getenv("EMULATED_ORDER");
  if (order && *order) land();
  emulated::progress++;
}
inline void tma_load_multicast(uint32_t to, const void* map, uint32_t barrier, uint16_t ctas, int x, int y) {
  for (int rank = 0; rank < 16; rank++)
    if (ctas >> rank & 1) tma_load(cluster_address(to, rank), map, cluster_address(barrier, rank), x, y);
}
inline void prefetch_tensor_map(const void*) {}

struct Store { const CUtensorMap* map; uint32_t from; int x, y; };
inline std::map<emulated::Fiber*, std::deque<std::vector<Store>>> stores;  // groups of a thread; the last one is open

inline void box_out(const Store& one) {
  each_chunk(*one.map, one.from, one.x, one.y, [](uint32_t place, char* to, bool inside) {
    if (inside) memcpy(to, at_shared<uint4>(place), 16);
  });
}
inline void tma_store(const void* map, uint32_t from, int x, int y) {
  auto& mine = stores[emulated::current];
  if (mine.empty()) mine.emplace_back();
  mine.back().push_back({(const CUtensorMap*)map, from, x, y});
  const char* order = getenv("EMULATED_ORDER");
  if (order && *order) box_out(mine.back().back()), mine.back().pop_back();
}
inline void bulk_commit_group() {
  auto& mine = stores[emulated::current];
  if (mine.empty()) mine.emplace_back();
  mine.emplace_back();
}
template <int PENDING = 0>
void bulk_wait_group_read() {
  auto& mine = stores[emulated::current];
  for (; mine.size() > PENDING + 1; mine.pop_front())
    for (auto& one : mine.front()) box_out(one);
}
inline void fence_async_proxy() {}

}  // namespace derby
