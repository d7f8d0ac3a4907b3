"""SGLang's JIT per_token_quant_fp8."""

import torch


@torch.no_grad()
def run(hidden_states, eps, quantized, scales):
    """hidden_states bf16 [num_tokens, hidden_size] -> quantized e4m3, as it, and scales float32 [num_tokens]."""
    from sglang.kernels.ops.quantization.per_token_quant_fp8 import per_token_quant_fp8

    if hidden_states.numel():
        per_token_quant_fp8(hidden_states, quantized, scales)
