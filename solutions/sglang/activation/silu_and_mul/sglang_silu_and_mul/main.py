"""SGLang's JIT silu_and_mul."""

import torch


@torch.no_grad()
def run(gate_up, output):
    """gate_up bf16 [num_tokens, 2, intermediate_size], gate first -> output bf16 [num_tokens, intermediate_size]."""
    from sglang.kernels.ops.activation.activation import silu_and_mul

    if gate_up.numel():
        silu_and_mul(gate_up.flatten(1), output)
