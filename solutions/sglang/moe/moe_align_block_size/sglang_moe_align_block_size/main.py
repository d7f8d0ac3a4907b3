"""SGLang's JIT moe_align_block_size: counts and scan, then the sort."""

import torch

NUM_EXPERTS = 128


@torch.no_grad()
def run(topk_ids, block_slots, sorted_token_ids, expert_ids, num_tokens_post_padded):
    """topk_ids int32 [num_tokens, 8] -> sorted_token_ids int32 [num_blocks, 128], expert_ids int32 [num_blocks] and
    num_tokens_post_padded int32 [1]. block_slots only says num_blocks.
    """
    from sglang.kernels.ops.moe.moe_align import moe_align_block_size

    # It counts one expert more, the first: pairs of no expert (-1), of which there are none here.
    experts = NUM_EXPERTS + 1
    first_place = torch.empty(experts + 1, dtype=torch.int32, device=topk_ids.device)
    moe_align_block_size(
        topk_ids, experts, sorted_token_ids.shape[1], sorted_token_ids.view(-1), expert_ids, num_tokens_post_padded,
        first_place, True, pad_expert_ids=True)
