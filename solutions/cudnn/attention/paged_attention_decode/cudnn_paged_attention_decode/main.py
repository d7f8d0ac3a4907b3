"""cuDNN's paged attention: one query a sequence."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
sdpa = importlib.import_module(f"{__name__}.sdpa")

def first_rows(context_lens):
    return torch.arange(len(context_lens) + 1, dtype=torch.int32, device=context_lens.device)


def setup(block_table, context_lens):
    return {"step": sdpa.Step(first_rows(context_lens), context_lens)}


@torch.no_grad()
def run(query, key_cache, value_cache, block_table, context_lens, max_context_len, sm_scale, output, **prepared):
    """query bf16 [num_seqs, heads, head_dim], caches bf16 [blocks, 16, kv_heads, head_dim] -> output, as query."""
    if query.numel():
        step = prepared.get("step") or sdpa.Step(first_rows(context_lens), context_lens)
        sdpa.paged(step, query, key_cache, value_cache, block_table, 1, int(max_context_len), False, float(sm_scale),
                   output)
