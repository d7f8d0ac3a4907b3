"""FlashAttention 3 as vLLM builds it: latent attention over blocks, the latent part of queries apart (q_v)."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
vllm_library = importlib.import_module(f"{__name__}.vllm_library")
fa3 = importlib.import_module(f"{__name__}.flash_attention_3")

vllm_library.FILES[fa3.NAMESPACE] = fa3.FILE
LATENT = 512


@torch.no_grad()
def run(query, kv_cache, block_table, context_lens, max_context_len, sm_scale, output):
    """query bf16 [batch, heads, 576], kv_cache bf16 [blocks, block_size, 576] -> output bf16 [batch, heads, 512]."""
    if not query.numel():
        return
    queries, slots = query.unsqueeze(1), kv_cache.unsqueeze(2)
    fa3.forward(vllm_library.load(fa3.NAMESPACE), queries[..., LATENT:], slots[..., LATENT:], slots[..., :LATENT],
                output.unsqueeze(1), sm_scale, False, 1, max_context_len, latent_query=queries[..., :LATENT],
                lengths=context_lens, block_table=block_table, pack_gqa=True)
