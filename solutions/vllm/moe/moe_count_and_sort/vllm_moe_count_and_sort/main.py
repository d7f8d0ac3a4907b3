"""vLLM's get_cutlass_moe_mm_data, which sorts the pairs for a grouped GEMM."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
vllm_library = importlib.import_module(f"{__name__}.vllm_library")

NUM_EXPERTS = 128


@torch.no_grad()
def run(topk_ids, sorted_pairs, expert_counts, expert_offsets):
    """topk_ids int32 [num_tokens, 8] -> sorted_pairs, as topk_ids, expert_counts int32 [128], expert_offsets int32
    [129].
    """
    pairs = topk_ids.numel()
    problem_sizes = torch.empty(2, NUM_EXPERTS, 3, dtype=torch.int32, device=topk_ids.device)
    place_of_pair = torch.empty(pairs, dtype=torch.int32, device=topk_ids.device)
    # One expert a "token": the row that the op stores for each place is the pair's own number then.
    vllm_library.load("_C").get_cutlass_moe_mm_data(
        topk_ids.view(pairs, 1), expert_offsets, problem_sizes[0], problem_sizes[1], sorted_pairs.view(-1),
        place_of_pair, NUM_EXPERTS, 1, 1, None, True)
    torch.sub(expert_offsets[1:], expert_offsets[:-1], out=expert_counts)
