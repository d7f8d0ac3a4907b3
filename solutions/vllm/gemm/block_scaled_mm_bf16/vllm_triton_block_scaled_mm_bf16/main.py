"""vLLM's w8a8_triton_block_scaled_mm: 1x128 scales of x, 128x128 scales of the weight."""

import torch


@torch.no_grad()
def run(x, x_scale, weight, weight_scale):
    """x fp8 [m, k], x_scale float32 [m, k / 128], weight fp8 [n, k], weight_scale float32 [n / 128, k / 128] ->
    bf16 [m, n]."""
    from vllm.model_executor.layers.quantization.utils.fp8_utils import w8a8_triton_block_scaled_mm

    if not len(x):
        return torch.empty(0, len(weight), dtype=torch.bfloat16, device=x.device)
    return w8a8_triton_block_scaled_mm(x, weight, x_scale, weight_scale, [128, 128], torch.bfloat16)
