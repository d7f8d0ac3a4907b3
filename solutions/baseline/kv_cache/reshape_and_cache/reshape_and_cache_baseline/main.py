"""Plain torch: which token each slot gets, then a choice between that token's row and the old one.

Indexing by a mask of the tokens that are no padding would be shorter, but waits for the GPU to count them.
"""

import torch


@torch.no_grad()
def run(key, value, key_cache, value_cache, slot_mapping, key_cache_out, value_cache_out):
    """key, value bf16 [num_tokens, num_heads, head_dim], caches bf16 [num_blocks, block_size, num_heads, head_dim],
    slot_mapping int64 [num_tokens] -> caches."""
    num_tokens, slots = key.shape[0], key_cache.shape[0] * key_cache.shape[1]
    if num_tokens == 0:
        key_cache_out.copy_(key_cache)
        value_cache_out.copy_(value_cache)
        return
    token_of_slot = torch.full((slots + 1,), -1, dtype=torch.int64, device=key.device)  # the last one is for padding
    place = torch.where(slot_mapping < 0, slots, slot_mapping)
    token_of_slot.scatter_(0, place, torch.arange(num_tokens, device=key.device))
    token_of_slot = token_of_slot[:slots]
    written, source = (token_of_slot >= 0).view(slots, 1, 1), token_of_slot.clamp(min=0)
    for tokens, cache, output in ((key, key_cache, key_cache_out), (value, value_cache, value_cache_out)):
        rows = tokens.index_select(0, source)
        torch.where(written, rows, cache.view(rows.shape), out=output.view(rows.shape))
