"""FlashInfer's apply_rope_pos_ids_inplace on views of query and key heads; angles in the kernel."""

import torch


@torch.no_grad()
def run(qkv, positions, num_q_heads, num_kv_heads, rope_base, output):
    """qkv float16 [num_tokens, num_heads, head_dim], positions int32 [num_tokens] -> output, as qkv."""
    import flashinfer.rope

    if output.data_ptr() != qkv.data_ptr():
        output.copy_(qkv)
    query, key = output[:, :num_q_heads], output[:, num_q_heads:num_q_heads + num_kv_heads]
    flashinfer.rope.apply_rope_pos_ids_inplace(query, key, positions, rope_theta=rope_base)
