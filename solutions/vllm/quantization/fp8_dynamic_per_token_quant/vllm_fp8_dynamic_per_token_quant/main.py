"""vLLM's dynamic_per_token_scaled_fp8_quant."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
vllm_library = importlib.import_module(f"{__name__}.vllm_library")


@torch.no_grad()
def run(hidden_states, eps, quantized, scales):
    """hidden_states bf16 [num_tokens, hidden_size] -> quantized e4m3, as it, and scales float32 [num_tokens]."""
    vllm_library.load("_C").dynamic_per_token_scaled_fp8_quant(quantized, hidden_states, scales.view(-1, 1), None)
