"""Plain torch: one sort by expert, the ends of the experts by binary search, one scatter. Nothing waits for the GPU."""

import torch

NUM_EXPERTS = 128


@torch.no_grad()
def run(topk_ids, block_slots, sorted_token_ids, expert_ids, num_tokens_post_padded):
    """topk_ids int32 [num_tokens, 8] -> pairs int32 [num_blocks, block_size], experts int32 [num_blocks], int32 [1]."""
    block_size = sorted_token_ids.shape[1]
    experts, pairs = topk_ids.flatten().sort()
    numbers = torch.arange(NUM_EXPERTS, dtype=torch.int32, device=topk_ids.device)
    ends = torch.searchsorted(experts, numbers, right=True)
    starts = torch.searchsorted(experts, numbers)
    block_ends = torch.cumsum((ends - starts + block_size - 1).div_(block_size, rounding_mode="floor"), 0)
    # How far the padding of all experts before moves an expert's pairs.
    shift = torch.zeros_like(starts)
    shift[1:] = block_ends[:-1] * block_size
    shift -= starts
    place = torch.arange(pairs.numel(), device=pairs.device).add_(shift[experts])
    sorted_token_ids.fill_(pairs.numel())
    sorted_token_ids.view(-1).scatter_(0, place, pairs.to(torch.int32))
    of_block = torch.searchsorted(block_ends, torch.arange(expert_ids.numel(), device=pairs.device), right=True)
    expert_ids.copy_(torch.where(of_block < NUM_EXPERTS, of_block, -1))
    num_tokens_post_padded.copy_(block_ends[-1:] * block_size)
