"""Plain torch: softmax of whole rows, then torch.topk."""

import torch


@torch.no_grad()
def run(gating_logits, topk_weights, topk_ids):
    """gating_logits float32 [num_tokens, num_experts] -> weights float32 and experts int32, both [num_tokens, 8]."""
    weights, experts = torch.softmax(gating_logits, dim=-1).topk(topk_ids.shape[1], dim=-1)
    topk_weights.copy_(weights)
    topk_ids.copy_(experts)
