"""Torch's scaled_dot_product_attention in bfloat16 over keys and values gathered up to the longest context."""

import torch
from torch.nn.functional import scaled_dot_product_attention


@torch.no_grad()
def run(query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale, output):
    """query bf16 [num_seqs, num_query_heads, head_dim], key_cache and value_cache bf16 [num_blocks, block_size,
    num_kv_heads, head_dim], block_table and context_lens int32 -> output of query's shape.

    The query heads of one key head take the place of its query tokens, so that no key is repeated.
    """
    if len(query) == 0:
        return
    block_size, kv_heads, head_dim = key_cache.shape[1:]
    blocks = block_table[:, :-(-max_context_len // block_size)]
    keys, values = (cache[blocks].flatten(1, 2).transpose(1, 2) for cache in (key_cache, value_cache))
    valid = torch.arange(keys.shape[2], device=query.device) < context_lens.unsqueeze(-1)
    found = scaled_dot_product_attention(query.unflatten(1, (kv_heads, -1)), keys, values,
                                         attn_mask=valid[:, None, None], scale=sm_scale)
    output.copy_(found.flatten(1, 2))
