"""vLLM's fused_add_rms_norm, in place on both tensors."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
vllm_library = importlib.import_module(f"{__name__}.vllm_library")


@torch.no_grad()
def run(hidden_states, residual, weight, eps, output, residual_out):
    """hidden_states, residual bf16 [num_tokens, hidden_size], weight bf16 [hidden_size] -> output, residual_out, as
    they.
    """
    if output.data_ptr() != hidden_states.data_ptr():
        output.copy_(hidden_states)
    if residual_out.data_ptr() != residual.data_ptr():
        residual_out.copy_(residual)
    vllm_library.load("_C").fused_add_rms_norm(output, residual_out, weight, eps)
