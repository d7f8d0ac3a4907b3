"""DeepGEMM's FP8 grouped GEMM for both projections (deepgemm_experts.py); the intermediate is quantised to FP8."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
deepgemm_experts = importlib.import_module(f"{__name__}.deepgemm_experts")


@torch.no_grad()
def run(hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight, down_weight_scale,
        topk_ids, topk_weights, output):
    """hidden_states e4m3 [num_tokens, hidden_size] with scales -> output bfloat16 of that shape."""
    deepgemm_experts.run(hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight,
                         down_weight_scale, topk_ids, topk_weights, output)
