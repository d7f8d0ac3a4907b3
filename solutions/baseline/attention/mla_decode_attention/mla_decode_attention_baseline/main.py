"""Torch's scaled_dot_product_attention in bfloat16 with one key head, the query heads in place of query tokens."""

import torch
from torch.nn.functional import scaled_dot_product_attention


@torch.no_grad()
def run(query, kv_cache, context_lens, max_context_len, sm_scale, output):
    """query bf16 [batch_size, num_heads, 576], kv_cache bf16 [batch_size, cache_len, 576], context_lens int32
    -> output [batch_size, num_heads, 512].
    """
    if len(query) == 0:
        return
    keys = kv_cache[:, None, :max_context_len]
    valid = torch.arange(max_context_len, device=query.device) < context_lens.unsqueeze(-1)
    found = scaled_dot_product_attention(query.unsqueeze(1), keys, keys[..., :output.shape[-1]],
                                         attn_mask=valid[:, None, None], scale=sm_scale)
    output.copy_(found.squeeze(1))
