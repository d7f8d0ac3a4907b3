"""FlashAttention 3 as vLLM builds it: full attention over packed sequences."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
vllm_library = importlib.import_module(f"{__name__}.vllm_library")
fa3 = importlib.import_module(f"{__name__}.flash_attention_3")

vllm_library.FILES[fa3.NAMESPACE] = fa3.FILE


@torch.no_grad()
def run(query, key, value, cu_seqlens_q, cu_seqlens_k, max_seqlen, sm_scale, output):
    """query, key, value bf16 [num_tokens, num_heads, head_dim] -> output, as query."""
    if not query.numel():
        return
    fa3.forward(vllm_library.load(fa3.NAMESPACE), query, key, value, output, sm_scale, False, max_seqlen, max_seqlen,
                cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
