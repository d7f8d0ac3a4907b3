"""sgl-kernel's sgl_per_token_quant_fp8."""

import torch


@torch.no_grad()
def run(hidden_states, eps, quantized, scales):
    """hidden_states bf16 [num_tokens, hidden_size] -> quantized e4m3, as it, and scales float32 [num_tokens]."""
    import sgl_kernel  # noqa: F401  registers torch.ops.sgl_kernel

    torch.ops.sgl_kernel.sgl_per_token_quant_fp8.default(hidden_states, quantized, scales.view(-1, 1))
