"""vLLM's per_token_group_fp8_quant, groups of 128, row-major float32 scales."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
vllm_library = importlib.import_module(f"{__name__}.vllm_library")


@torch.no_grad()
def run(hidden_states, eps, quantized, scales):
    """hidden_states bf16 [num_tokens, num_groups, 128] -> quantized e4m3, as it, and scales float32 [num_tokens,
    num_groups].
    """
    group_size = hidden_states.shape[2]
    # The last three: scales as powers of two, scales transposed, scales padded for TMA.
    vllm_library.load("_C").per_token_group_fp8_quant(
        hidden_states.flatten(1), quantized.flatten(1), scales, group_size, eps, -448.0, 448.0, False, False, False)
