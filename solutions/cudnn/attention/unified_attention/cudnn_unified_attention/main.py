"""cuDNN's paged attention: queries are the last tokens of their sequences."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
sdpa = importlib.import_module(f"{__name__}.sdpa")

def setup(cu_seqlens_q, seq_lens, block_table):
    return {"step": sdpa.Step(cu_seqlens_q, seq_lens)}


@torch.no_grad()
def run(query, key_cache, value_cache, cu_seqlens_q, seq_lens, block_table, max_query_len, max_seq_len, sm_scale,
        output, **prepared):
    """query bf16 [num_tokens, heads, head_dim], caches bf16 [blocks, 16, kv_heads, head_dim] -> output, as query."""
    if query.numel():
        step = prepared.get("step") or sdpa.Step(cu_seqlens_q, seq_lens)
        sdpa.paged(step, query, key_cache, value_cache, block_table, int(max_query_len), int(max_seq_len),
                   max_query_len > 1, float(sm_scale), output)
