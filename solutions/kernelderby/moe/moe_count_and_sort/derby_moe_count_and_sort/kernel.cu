// derby_moe_count_and_sort: one cluster, one launch; expert_sort.cuh does all of it but write.
// Constraints: sm_90 or later; 128 experts, top_k 8, ids int32 (others than 0 to 127 are passed over); topk_ids at a
// multiple of 16 bytes; one cluster of up to 16 blocks; more than 128 threads each.

#include "expert_sort.cuh"

namespace {

__global__ void __launch_bounds__(1024, 1) derby_moe_count_and_sort(const int* topk_ids, int* sorted_pairs,
                                                                 int* expert_counts, int* expert_offsets, int pairs) {
  SortShared& shared = shared_memory<SortShared>();
  ExpertSort<1> sort(shared, topk_ids, pairs / 4);
  sort.count();
  int expert = threadIdx.x;
  if (sort.rank == 0 && expert < EXPERTS) {
    expert_counts[expert] = shared.total[expert];
    expert_offsets[expert + 1] = shared.end[expert];
    if (expert == 0) expert_offsets[0] = 0;
  }
  sort.scatter([&](int pair, int slot) { sorted_pairs[slot] = pair; });
}

}  // namespace

extern "C" int derby_moe_count_and_sort_run(const int* topk_ids, int* sorted_pairs, int* expert_counts,
                                            int* expert_offsets, int pairs, int threads, int blocks,
                                            cudaStream_t stream) {
  return launch<SortShared>(derby_moe_count_and_sort, dim3(blocks), threads, blocks, stream, topk_ids, sorted_pairs,
                            expert_counts, expert_offsets, pairs);
}
