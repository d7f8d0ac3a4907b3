"""SGLang's JIT topk_softmax, without renormalisation."""

import torch


@torch.no_grad()
def run(gating_logits, topk_weights, topk_ids):
    """gating_logits float32 [num_tokens, num_experts] -> topk_weights float32, topk_ids int32 [num_tokens, 8]."""
    from sglang.kernels.ops.moe.moe_topk_softmax import topk_softmax

    if gating_logits.numel():
        topk_softmax(topk_weights, topk_ids, gating_logits)
