"""vLLM's topk_softmax, without renormalisation."""

import functools
import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
vllm_library = importlib.import_module(f"{__name__}.vllm_library")


@functools.cache
def without(op, given):
    """None for each argument of the op behind the given ones: a bias, and from vLLM 0.33 on a mask of padded tokens."""
    return (None,) * (len(op.default._schema.arguments) - given)


@torch.no_grad()
def run(gating_logits, topk_weights, topk_ids):
    """gating_logits float32 [num_tokens, num_experts] -> topk_weights float32, topk_ids int32 [num_tokens, 8]."""
    token_expert_indices = torch.empty_like(topk_ids)  # a third output, for vLLM's own permutation
    op = vllm_library.load("_moe_C").topk_softmax
    op(topk_weights, topk_ids, token_expert_indices, gating_logits, False, *without(op, 5))
