"""Plain torch: one sum over the experts with a float32 accumulator, times the factor."""

import torch


@torch.no_grad()
def run(expert_outputs, routed_scaling_factor, output):
    """expert_outputs bf16 [num_tokens, top_k, hidden_size] -> output bf16 [num_tokens, hidden_size]."""
    output.copy_(torch.sum(expert_outputs, dim=1, dtype=torch.float32).mul_(routed_scaling_factor))
