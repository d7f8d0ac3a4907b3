"""FlashInfer's rmsnorm on views of the query and of the key heads, in place."""

import torch


@torch.no_grad()
def run(qkv, q_weight, k_weight, num_q_heads, num_kv_heads, eps, output):
    """qkv float16 [num_tokens, num_heads, head_dim], weights float16 [head_dim] -> output, as qkv."""
    import flashinfer.norm

    if output.data_ptr() != qkv.data_ptr():
        output.copy_(qkv)
    query, key = output[:, :num_q_heads], output[:, num_q_heads:num_q_heads + num_kv_heads]
    # False: programmatic dependent launch, which has nothing to overlap with here.
    flashinfer.norm.rmsnorm(query, q_weight, eps, out=query, enable_pdl=False)
    flashinfer.norm.rmsnorm(key, k_weight, eps, out=key, enable_pdl=False)
