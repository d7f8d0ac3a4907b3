"""DeepGEMM's bf16 grouped GEMM for both projections (deepgemm_experts.py), the sums rounded to bfloat16."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
deepgemm_experts = importlib.import_module(f"{__name__}.deepgemm_experts")


@torch.no_grad()
def run(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output):
    """hidden_states bf16 [num_tokens, hidden_size] -> output of that shape and type."""
    deepgemm_experts.run(hidden_states, None, gate_up_weight, None, down_weight, None, topk_ids, topk_weights, output)
