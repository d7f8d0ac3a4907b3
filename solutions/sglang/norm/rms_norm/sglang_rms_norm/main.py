"""SGLang's JIT rmsnorm."""

import torch


@torch.no_grad()
def run(hidden_states, weight, eps, output):
    """hidden_states bf16 [num_tokens, hidden_size], weight bf16 [hidden_size] -> output, as hidden_states."""
    from sglang.kernels.ops.layernorm.norm import rmsnorm

    if hidden_states.numel():
        rmsnorm(hidden_states, weight, output, eps)
