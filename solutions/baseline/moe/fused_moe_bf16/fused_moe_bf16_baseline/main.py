"""Plain torch: one expert after the other on its tokens, with library GEMMs, summed in float32 and rounded once. The
host reads which tokens an expert has."""

import torch
import torch.nn.functional as F


@torch.no_grad()
def run(hidden_states, gate_up_weight, down_weight, topk_ids, topk_weights, output):
    """hidden_states bf16 [num_tokens, hidden_size] -> output of that shape and type."""
    total = torch.zeros(output.shape, dtype=torch.float32, device=output.device)
    for expert in topk_ids.unique().tolist():
        token, slot = (topk_ids == expert).nonzero(as_tuple=True)
        gate, up = F.linear(hidden_states[token], gate_up_weight[expert]).chunk(2, dim=-1)
        result = F.linear(F.silu(gate).mul_(up), down_weight[expert])
        total.index_add_(0, token, result * topk_weights[token, slot, None])
    output.copy_(total)
