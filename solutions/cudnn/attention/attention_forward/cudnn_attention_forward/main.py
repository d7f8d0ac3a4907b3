"""cuDNN's attention over packed sequences."""

import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
sdpa = importlib.import_module(f"{__name__}.sdpa")

def setup(cu_seqlens_q, cu_seqlens_k):
    return {"step": sdpa.Step(cu_seqlens_q, bounds_k=cu_seqlens_k)}


@torch.no_grad()
def run(query, key, value, cu_seqlens_q, cu_seqlens_k, max_seqlen, sm_scale, output, **prepared):
    """query, key, value bf16 [num_tokens, heads, head_dim] -> output, as query."""
    if query.numel():
        step = prepared.get("step") or sdpa.Step(cu_seqlens_q, bounds_k=cu_seqlens_k)
        sdpa.packed(step, query, key, value, int(max_seqlen), float(sm_scale), output)
