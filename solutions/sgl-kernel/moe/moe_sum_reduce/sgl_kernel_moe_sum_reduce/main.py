"""sgl-kernel's moe_sum_reduce."""

import torch


@torch.no_grad()
def run(expert_outputs, routed_scaling_factor, output):
    """expert_outputs bf16 [num_tokens, 8, hidden_size] -> output bf16 [num_tokens, hidden_size]."""
    import sgl_kernel  # noqa: F401  registers torch.ops.sgl_kernel

    torch.ops.sgl_kernel.moe_sum_reduce.default(expert_outputs, output, routed_scaling_factor)
