"""Liger's addition of the residual and RMS norm in one kernel."""

import torch


@torch.no_grad()
def run(hidden_states, residual, weight, eps):
    """hidden_states, residual bf16 [num_tokens, hidden_size], weight bf16 [hidden_size] -> normed sum, sum."""
    from liger_kernel.ops.fused_add_rms_norm import fused_add_rms_norm_forward

    if not hidden_states.numel():
        return torch.empty_like(hidden_states), torch.empty_like(residual)
    return fused_add_rms_norm_forward(hidden_states, residual, weight, eps, 0.0, "llama")[:2]
