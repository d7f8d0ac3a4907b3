// In the place of solutions/kernelderby/common/tma.cuh: see ptx.cuh here.

#pragma once
#include <array>

#include "cuda.h"
#include "ptx.cuh"

namespace derby {

// Calls move(offset in the box, element of the tensor or nullptr) for each element of a box.
template <class Move>
void for_box(const CUtensorMap& map, std::array<int, 3> first, Move move) {
  uint32_t offset = 0;
  auto box = [&](int i) { return i < map.dimensions ? map.box[i] : 1; };
  for (unsigned z = 0; z < box(2); z++)
    for (unsigned y = 0; y < box(1); y++)
      for (unsigned x = 0; x < box(0); x++, offset += 2) {
        const unsigned at[3] = {x, y, z};
        char* element = map.tensor;
        for (int i = 0; i < map.dimensions; i++) {
          int64_t index = int64_t(first[i]) + at[i];
          if (index < 0 || index >= int64_t(map.sizes[i])) element = nullptr;
          if (element) element += index * int64_t(map.strides[i]);
        }
        move(offset, element);
      }
}
inline uint32_t swizzled(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

inline void tma_load(uint32_t to, const void* map, uint32_t barrier, int x, int y, int z) {
  if (to % 1024) abort();
  loads[{emulated::current->block, barrier}].push_back([=] {
    int bytes = 0;
    for_box(*static_cast<const CUtensorMap*>(map), {x, y, z}, [&](uint32_t offset, char* from) {
      unsigned short value = 0;
      if (from) memcpy(&value, from, 2);
      memcpy(shared_at(swizzled(to + offset)), &value, 2), bytes += 2;
    });
    barrier_at(barrier).bytes -= bytes, barrier_at(barrier).changed();
  });
}
inline void bulk_load(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  loads[{emulated::current->block, barrier}].push_back([=] {
    memcpy(shared_at(to), from, bytes);
    barrier_at(barrier).bytes -= bytes, barrier_at(barrier).changed();
  });
}

inline std::map<emulated::Fiber*, std::deque<Work>> copies;  // cp.async of a thread, not yet done
inline void cp_async4(uint32_t to, const void* from) {
  copies[emulated::current].push_back([=] { memcpy(shared_at(to), from, 4); });
}
inline void cp_async_wait_all() {
  for (auto& mine = copies[emulated::current]; !mine.empty(); mine.pop_front()) mine.front()();
}
inline void mbarrier_arrive_on_cp_async(uint32_t barrier) {
  std::deque<Work> mine = std::move(copies[emulated::current]);
  copies[emulated::current].clear();
  loads[{emulated::current->block, barrier}].push_back([=] {
    for (const Work& copy : mine) copy();
    mbarrier_arrive(barrier);
  });
}

inline std::map<emulated::Fiber*, std::deque<std::vector<Work>>> stores;  // of a thread; the last group is open
inline void later_store(Work work) {
  auto& groups = stores[emulated::current];
  if (groups.empty()) groups.emplace_back();
  groups.back().push_back(work);
}
inline void tma_store(const void* map, uint32_t from, int x, int y, int z) {
  if (from % 1024) abort();
  later_store([=] {
    for_box(*static_cast<const CUtensorMap*>(map), {x, y, z}, [&](uint32_t offset, char* to) {
      if (to) memcpy(to, shared_at(swizzled(from + offset)), 2);
    });
  });
}
inline void bulk_store(void* to, uint32_t from, int bytes) {
  later_store([=] { memcpy(to, shared_at(from), bytes); });
}
inline void bulk_commit_group() { stores[emulated::current].emplace_back(); }
template <int PENDING = 0>
void bulk_wait_group_read() {
  auto& groups = stores[emulated::current];
  for (; groups.size() > PENDING + 1; groups.pop_front()) {
    for (Work& work : groups.front()) work();
  }
}
template <int PENDING = 0>
void bulk_wait_group() { bulk_wait_group_read<PENDING>(); }
inline void fence_async_proxy() {}
inline void prefetch_tensor_map(const void*) {}

}  // namespace derby
