"""Plain torch: activations and one expert's weights at a time dequantized to bfloat16, library GEMMs.

Pairs of token and expert are sorted by expert; the host reads how many tokens each expert has, once, to cut them.
Experts without a token are never dequantized. Results are summed in float32.
"""

import torch
import torch.nn.functional as F

BLOCK = 128


def dequantize(values, scale):
    """values fp8 [rows, columns], scale float32 [rows / r, columns / 128] -> bf16 [rows, columns]; r is 1 or 128."""
    blocks = values.float().view(scale.shape[0], -1, scale.shape[1], BLOCK)
    return blocks.mul_(scale[:, None, :, None]).view(values.shape).to(torch.bfloat16)


@torch.no_grad()
def run(hidden_states, hidden_states_scale, gate_up_weight, gate_up_weight_scale, down_weight, down_weight_scale,
        topk_ids, topk_weights, output):
    """hidden_states fp8 [num_tokens, hidden_size] -> output bf16 of that shape."""
    if hidden_states.shape[0] == 0:
        return
    num_experts, top_k = gate_up_weight.shape[0], topk_ids.shape[1]
    chosen = topk_ids.flatten().long()
    order = chosen.argsort()
    counts = chosen.bincount(minlength=num_experts).tolist()
    weights = topk_weights.flatten()[order].unsqueeze(1)
    activations = dequantize(hidden_states, hidden_states_scale)
    total = torch.zeros(output.shape, dtype=torch.float32, device=output.device)
    for expert, (pairs, weight) in enumerate(zip(order.split(counts), weights.split(counts), strict=True)):
        if pairs.numel() == 0:
            continue
        tokens = pairs // top_k
        first = dequantize(gate_up_weight[expert], gate_up_weight_scale[expert])
        gate, up = F.linear(activations[tokens], first).chunk(2, dim=-1)
        second = dequantize(down_weight[expert], down_weight_scale[expert])
        total.index_add_(0, tokens, F.linear(F.silu(gate).mul_(up), second) * weight)
    output.copy_(total)
