"""sgl-kernel's own rmsnorm, which its Python function leaves for FlashInfer's where that is installed."""

import torch


@torch.no_grad()
def run(hidden_states, weight, eps, output):
    """hidden_states bf16 [num_tokens, hidden_size], weight bf16 [hidden_size] -> output, as hidden_states."""
    import sgl_kernel  # noqa: F401  registers torch.ops.sgl_kernel

    # False: programmatic dependent launch, which has nothing to overlap with here.
    torch.ops.sgl_kernel.rmsnorm.default(output, hidden_states, weight, eps, False)
