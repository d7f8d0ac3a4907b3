"""FlashAttention 3 as vLLM builds it: one query a sequence over a paged cache."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
vllm_library = importlib.import_module(f"{__name__}.vllm_library")
fa3 = importlib.import_module(f"{__name__}.flash_attention_3")

vllm_library.FILES[fa3.NAMESPACE] = fa3.FILE


@torch.no_grad()
def run(query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale, output):
    """query bf16 [num_seqs, heads, head_dim], caches bf16 [blocks, 16, kv_heads, head_dim] -> output, as query."""
    if not query.numel():
        return
    fa3.forward(vllm_library.load(fa3.NAMESPACE), query.unsqueeze(1), key_cache, value_cache, output.unsqueeze(1),
                sm_scale, False, 1, max_context_len, lengths=context_lens, block_table=block_table, pack_gqa=True)
