"""sgl-kernel's topk_softmax, without renormalisation."""

import torch


@torch.no_grad()
def run(gating_logits, topk_weights, topk_ids):
    """gating_logits float32 [num_tokens, num_experts] -> topk_weights float32, topk_ids int32 [num_tokens, 8]."""
    import sgl_kernel  # noqa: F401  registers torch.ops.sgl_kernel

    torch.ops.sgl_kernel.topk_softmax.default(topk_weights, topk_ids, gating_logits, False, 0.0, None)
