"""sgl-kernel's sgl_per_token_group_quant_8bit_v2, groups of 128, row-major scales."""

import torch


@torch.no_grad()
def run(hidden_states, eps, quantized, scales):
    """hidden_states bf16 [num_tokens, num_groups, 128] -> quantized e4m3, as it, and scales float32 [num_tokens,
    num_groups].
    """
    import sgl_kernel  # noqa: F401  registers torch.ops.sgl_kernel

    group_size = hidden_states.shape[2]
    # Then: scales as powers of two, a SwiGLU before, numbers of rows by expert.
    torch.ops.sgl_kernel.sgl_per_token_group_quant_8bit_v2.default(
        hidden_states.flatten(1), quantized.flatten(1), scales, group_size, eps, -448.0, 448.0, False, False, None)
