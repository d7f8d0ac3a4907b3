"""vLLM's rms_norm_dynamic_per_token_quant, which adds into the residual in place."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
vllm_library = importlib.import_module(f"{__name__}.vllm_library")


@torch.no_grad()
def run(hidden_states, residual, weight, eps, quant_eps, quantized, scales, residual_out):
    """hidden_states, residual bf16 [num_tokens, hidden_size], weight bf16 [hidden_size] -> quantized e4m3 and
    residual_out bf16, as they, and scales float32 [num_tokens].
    """
    if residual_out.data_ptr() != residual.data_ptr():
        residual_out.copy_(residual)
    vllm_library.load("_C").rms_norm_dynamic_per_token_quant(
        quantized, hidden_states, weight, scales.view(-1, 1), eps, None, residual_out)
