"""Liger's RMS norm."""

import torch


@torch.no_grad()
def run(hidden_states, weight, eps):
    """hidden_states bf16 [num_tokens, hidden_size], weight bf16 [hidden_size] -> as hidden_states."""
    from liger_kernel.ops.rms_norm import rms_norm_forward

    if not hidden_states.numel():
        return torch.empty_like(hidden_states)
    return rms_norm_forward(hidden_states, weight, eps, 0.0, "llama", None)[0]
