"""vLLM's silu_and_mul."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
vllm_library = importlib.import_module(f"{__name__}.vllm_library")


@torch.no_grad()
def run(gate_up, output):
    """gate_up bf16 [num_tokens, 2, intermediate_size], gate first -> output bf16 [num_tokens, intermediate_size]."""
    vllm_library.load("_C").silu_and_mul(output, gate_up.flatten(1))
