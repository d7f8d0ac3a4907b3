"""Liger's layer norm."""

import torch


@torch.no_grad()
def run(hidden_states, weight, bias, eps):
    """hidden_states bf16 [num_tokens, hidden_size], weight and bias bf16 [hidden_size] -> as hidden_states."""
    from liger_kernel.ops.layer_norm import layer_norm_forward

    if not hidden_states.numel():
        return torch.empty_like(hidden_states)
    return layer_norm_forward(hidden_states, weight, bias, eps)[0]
