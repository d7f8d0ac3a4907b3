"""vLLM's moe_align_block_size: one block counts and scans while another fills, then the sort."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
vllm_library = importlib.import_module(f"{__name__}.vllm_library")

NUM_EXPERTS = 128


@torch.no_grad()
def run(topk_ids, block_slots, sorted_token_ids, expert_ids, num_tokens_post_padded):
    """topk_ids int32 [num_tokens, 8] -> sorted_token_ids int32 [num_blocks, 128], expert_ids int32 [num_blocks] and
    num_tokens_post_padded int32 [1]. block_slots only says num_blocks.
    """
    vllm_library.load("_moe_C").moe_align_block_size(
        topk_ids, NUM_EXPERTS, sorted_token_ids.shape[1], sorted_token_ids.view(-1), expert_ids, num_tokens_post_padded,
        None)
