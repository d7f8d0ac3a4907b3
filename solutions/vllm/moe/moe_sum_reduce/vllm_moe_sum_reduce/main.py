"""vLLM's moe_sum."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
vllm_library = importlib.import_module(f"{__name__}.vllm_library")


@torch.no_grad()
def run(expert_outputs, routed_scaling_factor, output):
    """expert_outputs bf16 [num_tokens, 8, hidden_size] -> output bf16 [num_tokens, hidden_size]."""
    vllm_library.load("_moe_C").moe_sum(expert_outputs, output)
    if routed_scaling_factor != 1:
        output.mul_(routed_scaling_factor)
