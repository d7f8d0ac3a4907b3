"""SGLang's JIT per_token_group_quant, groups of 128, row-major scales."""

import torch


@torch.no_grad()
def run(hidden_states, eps, quantized, scales):
    """hidden_states bf16 [num_tokens, num_groups, 128] -> quantized e4m3, as it, and scales float32 [num_tokens,
    num_groups].
    """
    from sglang.kernels.ops.quantization.per_token_group_quant import per_token_group_quant

    if hidden_states.numel():
        per_token_group_quant(hidden_states.flatten(1), quantized.flatten(1), scales, hidden_states.shape[2])
