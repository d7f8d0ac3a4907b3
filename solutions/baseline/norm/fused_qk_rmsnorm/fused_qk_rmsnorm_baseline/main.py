"""Plain torch: RMS normalization of query and of key heads by torch.nn.functional, in float32; values copied."""

import torch


@torch.no_grad()
def run(qkv, q_weight, k_weight, num_q_heads, num_kv_heads, eps, output):
    """qkv fp16 [num_tokens, num_heads, head_dim], weights fp16 [head_dim] -> output, as qkv."""
    queries, keys, values = qkv.split([num_q_heads, num_kv_heads, num_kv_heads], dim=1)
    head = qkv.shape[-1:]
    output[:, :num_q_heads] = torch.nn.functional.rms_norm(queries.float(), head, q_weight.float(), eps)
    output[:, num_q_heads:num_q_heads + num_kv_heads] = torch.nn.functional.rms_norm(
        keys.float(), head, k_weight.float(), eps)
    output[:, num_q_heads + num_kv_heads:] = values
