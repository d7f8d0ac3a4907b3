"""sgl-kernel's silu_and_mul."""

import torch


@torch.no_grad()
def run(gate_up, output):
    """gate_up bf16 [num_tokens, 2, intermediate_size], gate first -> output bf16 [num_tokens, intermediate_size]."""
    import sgl_kernel  # noqa: F401  registers torch.ops.sgl_kernel

    torch.ops.sgl_kernel.silu_and_mul.default(output, gate_up.flatten(1))
