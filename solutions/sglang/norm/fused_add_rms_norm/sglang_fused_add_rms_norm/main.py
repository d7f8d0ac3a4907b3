"""SGLang's JIT fused_add_rmsnorm, in place on both tensors."""

import torch


@torch.no_grad()
def run(hidden_states, residual, weight, eps, output, residual_out):
    """hidden_states, residual bf16 [num_tokens, hidden_size], weight bf16 [hidden_size] -> output, residual_out, as
    they.
    """
    from sglang.kernels.ops.layernorm.norm import fused_add_rmsnorm

    if output.data_ptr() != hidden_states.data_ptr():
        output.copy_(hidden_states)
    if residual_out.data_ptr() != residual.data_ptr():
        residual_out.copy_(residual)
    if hidden_states.numel():
        fused_add_rmsnorm(output, residual_out, weight, eps)
