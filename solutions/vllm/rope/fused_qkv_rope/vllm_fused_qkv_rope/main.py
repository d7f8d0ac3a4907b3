"""vLLM's rotary_embedding on views of query and key heads, in place, with a table of cosines and sines."""

import functools
import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
vllm_library = importlib.import_module(f"{__name__}.vllm_library")

MAX_POSITION = 1 << 17


@functools.lru_cache(maxsize=4)
def cos_sin_cache(rope_base, head_dim, device):
    """float32 [MAX_POSITION, head_dim]: cosines, then sines. A model makes it once at its start, and so do we."""
    half = head_dim // 2
    column = torch.arange(half, dtype=torch.float64, device=device)
    angle = torch.arange(MAX_POSITION, device=device).double()[:, None] * float(rope_base) ** (-column / half)
    return torch.cat([angle.cos(), angle.sin()], dim=1).to(torch.float32)


@torch.no_grad()
def run(qkv, positions, num_q_heads, num_kv_heads, rope_base, output):
    """qkv float16 [num_tokens, num_heads, head_dim], positions int32 [num_tokens] -> output, as qkv."""
    if output.data_ptr() != qkv.data_ptr():
        output.copy_(qkv)
    query, key = output[:, :num_q_heads], output[:, num_q_heads:num_q_heads + num_kv_heads]
    head_dim = qkv.shape[2]
    vllm_library.load("_C").rotary_embedding(
        positions.long(), query, key, head_dim, cos_sin_cache(rope_base, head_dim, qkv.device), True)
