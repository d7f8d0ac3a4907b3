"""vLLM's topk_softmax, without renormalisation."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
vllm_library = importlib.import_module(f"{__name__}.vllm_library")


@torch.no_grad()
def run(gating_logits, topk_weights, topk_ids):
    """gating_logits float32 [num_tokens, num_experts] -> topk_weights float32, topk_ids int32 [num_tokens, 8]."""
    token_expert_indices = torch.empty_like(topk_ids)  # a third output, for vLLM's own permutation
    vllm_library.load("_moe_C").topk_softmax(topk_weights, topk_ids, token_expert_indices, gating_logits, False, None)
