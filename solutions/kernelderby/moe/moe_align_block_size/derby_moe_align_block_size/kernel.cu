// derby_moe_align_block_size: one cluster, one launch. expert_sort.cuh finds the slots; the padding of each expert's
// last block and the blocks that no expert fills are shared out among all warps, one block a warp.
// Constraints: sm_90 or later; 128 experts, top_k 8, ids int32 (others than 0 to 127 are passed over); blocks of 128
// pairs; topk_ids at a multiple of 16 bytes; one cluster of up to 16 blocks; more than 128 threads each.

#include "expert_sort.cuh"

namespace {

constexpr int BLOCK_SIZE = 128;

// The expert of a used block: the first one whose blocks end above it.
__device__ __forceinline__ int expert_of(int block, const int (&end)[EXPERTS]) {
  int expert = 0;
#pragma unroll
  for (int step = EXPERTS / 2; step; step /= 2) {
    if (end[expert + step - 1] <= block) expert += step;
  }
  return expert;
}

__global__ void __launch_bounds__(1024, 1) derby_moe_align_block_size(const int* topk_ids, int* sorted_token_ids,
                                                                   int* expert_ids, int* num_tokens_post_padded,
                                                                   int pairs, int num_blocks) {
  SortShared& shared = shared_memory<SortShared>();
  ExpertSort<BLOCK_SIZE> sort(shared, topk_ids, pairs / 4);
  sort.count();
  int used = shared.end[EXPERTS - 1], thread = threadIdx.x, warps = blockDim.x / 32;
  if (sort.rank == 0 && thread == 0) *num_tokens_post_padded = used * BLOCK_SIZE;
  for (int block = thread / 32 * sort.blocks + sort.rank; block < num_blocks; block += warps * sort.blocks) {
    int expert = -1, filled = 0;
    if (block < used) {
      expert = expert_of(block, shared.end);
      int first = shared.end[expert] - (shared.total[expert] + BLOCK_SIZE - 1) / BLOCK_SIZE;
      filled = min(shared.total[expert] - (block - first) * BLOCK_SIZE, BLOCK_SIZE);
    }
    if (thread % 32 == 0) expert_ids[block] = expert;
    for (int i = thread % 32; i < BLOCK_SIZE; i += 32) {
      if (i >= filled) sorted_token_ids[static_cast<long long>(block) * BLOCK_SIZE + i] = pairs;
    }
  }
  int slots = num_blocks * BLOCK_SIZE;
  sort.scatter([&](int pair, int slot) { if (slot < slots) sorted_token_ids[slot] = pair; });
}

}  // namespace

extern "C" int derby_moe_align_block_size_run(const int* topk_ids, int* sorted_token_ids, int* expert_ids,
                                              int* num_tokens_post_padded, int pairs, int num_blocks, int threads,
                                              int blocks, cudaStream_t stream) {
  return launch<SortShared>(derby_moe_align_block_size, dim3(blocks), threads, blocks, stream, topk_ids,
                            sorted_token_ids, expert_ids, num_tokens_post_padded, pairs, num_blocks);
}
