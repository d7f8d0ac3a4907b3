"""FlashInfer's silu_and_mul."""

import torch


@torch.no_grad()
def run(gate_up, output):
    """gate_up bf16 [num_tokens, 2, intermediate_size], gate first -> output bf16 [num_tokens, intermediate_size]."""
    import flashinfer.activation

    # False: programmatic dependent launch, which has nothing to overlap with here.
    flashinfer.activation.silu_and_mul(gate_up.flatten(1), out=output, enable_pdl=False)
