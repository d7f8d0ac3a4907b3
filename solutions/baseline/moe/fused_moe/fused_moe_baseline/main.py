"""Plain torch: pairs of token and expert sorted by expert, then one expert after the other with library GEMMs.

The host reads how many tokens each expert has, once, to cut the sorted pairs; experts without a token cost nothing.
Results are added to the float32 output.
"""

import torch
import torch.nn.functional as F


@torch.no_grad()
def run(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output):
    """hidden_states bf16 [num_tokens, hidden_size] -> output float32 of that shape."""
    num_experts, top_k = gate_up_weight.shape[0], topk_ids.shape[1]
    chosen = topk_ids.flatten().long()
    order = chosen.argsort()
    counts = chosen.bincount(minlength=num_experts).tolist()
    weights = topk_weights.flatten()[order].unsqueeze(1)
    output.zero_()
    for expert, (pairs, weight) in enumerate(zip(order.split(counts), weights.split(counts), strict=True)):
        if pairs.numel() == 0:
            continue
        tokens = pairs // top_k
        gate, up = F.linear(hidden_states[tokens], gate_up_weight[expert]).chunk(2, dim=-1)
        result = F.linear(F.silu(gate).mul_(up), down_weight[expert])
        output.index_add_(0, tokens, result * weight)
