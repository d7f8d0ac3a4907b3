"""Each sequence's blocks side by side, then torch's scaled_dot_product_attention in bfloat16 with one key head."""

import torch
from torch.nn.functional import scaled_dot_product_attention


@torch.no_grad()
def run(query, kv_cache, block_table, context_lens, max_context_len, sm_scale, output):
    """query bf16 [batch_size, num_heads, 576], kv_cache bf16 [num_blocks, block_size, 576], block_table int32
    [batch_size, columns], context_lens int32 -> output [batch_size, num_heads, 512].
    """
    if len(query) == 0:
        return
    blocks = -(-max_context_len // kv_cache.shape[1])
    keys = kv_cache[block_table[:, :blocks].long()].flatten(1, 2)[:, None, :max_context_len]
    valid = torch.arange(max_context_len, device=query.device) < context_lens.unsqueeze(-1)
    found = scaled_dot_product_attention(query.unsqueeze(1), keys, keys[..., :output.shape[-1]],
                                         attn_mask=valid[:, None, None], scale=sm_scale)
    output.copy_(found.squeeze(1))
