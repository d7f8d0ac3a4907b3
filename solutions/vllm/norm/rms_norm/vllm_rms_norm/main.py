"""vLLM's rms_norm: a block a row, one vectorised pass for the sum and a second for the product."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
vllm_library = importlib.import_module(f"{__name__}.vllm_library")


@torch.no_grad()
def run(hidden_states, weight, eps, output):
    """hidden_states bf16 [num_tokens, hidden_size], weight bf16 [hidden_size] -> output, as hidden_states."""
    vllm_library.load("_C").rms_norm(output, hidden_states, weight, eps)
