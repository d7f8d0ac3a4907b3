"""SGLang's JIT fused_inplace_qknorm on views of the query and of the key heads."""

import torch


@torch.no_grad()
def run(qkv, q_weight, k_weight, num_q_heads, num_kv_heads, eps, output):
    """qkv float16 [num_tokens, num_heads, head_dim], weights float16 [head_dim] -> output, as qkv."""
    from sglang.kernels.ops.layernorm.norm import fused_inplace_qknorm

    if output.data_ptr() != qkv.data_ptr():
        output.copy_(qkv)
    if qkv.numel():
        query, key, _ = output.split([num_q_heads, num_kv_heads, qkv.shape[1] - num_q_heads - num_kv_heads], dim=1)
        fused_inplace_qknorm(query, key, q_weight, k_weight, eps)
