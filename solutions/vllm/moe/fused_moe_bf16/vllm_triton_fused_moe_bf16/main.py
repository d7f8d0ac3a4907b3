"""vLLM's Triton fused_experts in bfloat16."""

import torch


@torch.no_grad()
def run(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights):
    """hidden_states bf16 [tokens, hidden], gate_up_weight bf16 [experts, 2 * inner, hidden], down_weight bf16 [experts,
    hidden, inner], topk_ids int32 and topk_weights float32 [tokens, top_k] -> bf16 [tokens, hidden]."""
    from vllm.model_executor.layers.fused_moe import fused_experts

    if not hidden_states.numel():
        return torch.empty_like(hidden_states)
    return fused_experts(hidden_states, gate_up_weight, down_weight, topk_weights, topk_ids)
