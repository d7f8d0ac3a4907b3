"""Plain torch: one sort by expert, the offsets by binary search. Nothing waits for the GPU."""

import torch


@torch.no_grad()
def run(topk_ids, sorted_pairs, expert_counts, expert_offsets):
    """topk_ids int32 [num_tokens, 8] -> pairs int32 of that shape, counts int32 [128], offsets int32 [129]."""
    experts, pairs = topk_ids.flatten().sort()
    bounds = torch.arange(expert_offsets.numel(), dtype=torch.int32, device=topk_ids.device)
    expert_offsets.copy_(torch.searchsorted(experts, bounds))
    torch.sub(expert_offsets[1:], expert_offsets[:-1], out=expert_counts)
    sorted_pairs.view(-1).copy_(pairs)
