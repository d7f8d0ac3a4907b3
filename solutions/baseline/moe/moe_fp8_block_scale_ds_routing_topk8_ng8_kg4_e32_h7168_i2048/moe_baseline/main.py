"""Plain torch, one expert after the other: the competitor that runs anywhere.

Pipeline, for every chunk of tokens:
  routing   sigmoid affinities, group and expert selection, weights (torch sorts, stable, lower index first)
  experts   for each local expert: dequantise its weights to bf16, run it on every token of the chunk, add the result
            times the token's routing weight (0 where the token did not choose the expert) to a float32 sum
  cast      float32 sum to bf16

Which tokens chose an expert is known on the device only. Reading the count back would stop the host, so every expert
runs on every token: num_local_experts times the rows, and no synchronisation. Only torch is needed.
"""

import torch

NUM_GROUPS = 8
TOP_GROUPS = 4
TOP_K = 8
BLOCK = 128
# Rows at a time: bounds the bf16 and float32 intermediates to some 300 MB at the full sizes.
CHUNK = 4096


def route(routing_logits, routing_bias, routed_scaling_factor):
    """Expert ids int64 [rows, 8] and weights float32 [rows, 8]; equal scores go to the lower index."""
    rows, num_experts = routing_logits.shape
    affinity = torch.sigmoid(routing_logits.float())
    grouped = (affinity + routing_bias.float()).view(rows, NUM_GROUPS, num_experts // NUM_GROUPS)
    group_score = grouped.topk(2, dim=-1).values.sum(-1)
    groups = group_score.sort(dim=-1, descending=True, stable=True).indices[:, :TOP_GROUPS]
    allowed = torch.zeros_like(group_score, dtype=torch.bool).scatter_(1, groups, True)
    candidates = grouped.masked_fill(~allowed.unsqueeze(-1), float("-inf")).view(rows, num_experts)
    experts = candidates.sort(dim=-1, descending=True, stable=True).indices[:, :TOP_K]
    weights = affinity.gather(1, experts)
    return experts, weights / weights.sum(-1, keepdim=True) * routed_scaling_factor


def local_weights(experts, weights, local_expert_offset, num_local_experts):
    """Routing weight of every local expert for every row, float32 [rows, num_local_experts]; 0 where not chosen."""
    local = experts - local_expert_offset
    on_rank = (local >= 0) & (local < num_local_experts)
    dense = weights.new_zeros(experts.shape[0], num_local_experts + 1)
    # Experts of other ranks land in one column more, which is dropped.
    dense.scatter_(1, torch.where(on_rank, local, num_local_experts), weights)
    return dense[:, :num_local_experts]


def dequantize(values, scale):
    """values fp8 [rows, columns], scale float32 [rows / 128, columns / 128] -> bf16 [rows, columns]."""
    blocks = values.float().view(scale.shape[0], BLOCK, scale.shape[1], BLOCK)
    return blocks.mul_(scale[:, None, :, None]).view(values.shape).to(torch.bfloat16)


@torch.no_grad()
def run(routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights, gemm1_weights_scale,
        gemm2_weights, gemm2_weights_scale, local_expert_offset, routed_scaling_factor, output):
    """See the definition for the inputs. output bf16 [seq_len, hidden_size] is written."""
    seq_len, hidden_size = hidden_states.shape
    num_local_experts, _, intermediate_size = gemm2_weights.shape
    # seq_len 0 leaves the loop without an iteration.
    for start in range(0, seq_len, CHUNK):
        rows = slice(start, min(start + CHUNK, seq_len))
        experts, weights = route(routing_logits[rows], routing_bias, routed_scaling_factor)
        weights = local_weights(experts, weights, local_expert_offset, num_local_experts)
        blocks = hidden_states[rows].float().view(-1, hidden_size // BLOCK, BLOCK)
        scales = hidden_states_scale[:, rows].t().unsqueeze(-1)
        activations = (blocks * scales).view(-1, hidden_size).to(torch.bfloat16)
        total = torch.zeros(activations.shape, dtype=torch.float32, device=output.device)
        for local in range(num_local_experts):
            gemm1 = activations @ dequantize(gemm1_weights[local], gemm1_weights_scale[local]).t()
            up, gate = gemm1[:, :intermediate_size].float(), gemm1[:, intermediate_size:].float()
            activated = (torch.nn.functional.silu(gate) * up).to(torch.bfloat16)
            gemm2 = activated @ dequantize(gemm2_weights[local], gemm2_weights_scale[local]).t()
            total.addcmul_(gemm2, weights[:, local : local + 1])
        output[rows] = total.to(output.dtype)
