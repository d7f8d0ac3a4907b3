"""vLLM's fused_qk_norm_rope with every position at 0, where the rotation is the identity."""

import functools
import importlib
import os

import torch

__path__ = [os.path.dirname(__file__)]
vllm_library = importlib.import_module(f"{__name__}.vllm_library")


@functools.lru_cache(maxsize=64)
def no_rotation(num_tokens, head_dim, dtype, device):
    """Position 0 for every token, int64, and the table's row for it, [1, head_dim]: cosines 1, sines 0."""
    table = torch.zeros(1, head_dim, dtype=dtype, device=device)
    table[:, :head_dim // 2] = 1
    return torch.zeros(num_tokens, dtype=torch.int64, device=device), table


@torch.no_grad()
def run(qkv, q_weight, k_weight, num_q_heads, num_kv_heads, eps, output):
    """qkv float16 [num_tokens, num_heads, head_dim], weights float16 [head_dim] -> output, as qkv."""
    if output.data_ptr() != qkv.data_ptr():
        output.copy_(qkv)
    num_tokens, num_heads, head_dim = qkv.shape
    positions, table = no_rotation(num_tokens, head_dim, qkv.dtype, qkv.device)
    vllm_library.load("_C").fused_qk_norm_rope(
        output.flatten(1), num_q_heads, num_kv_heads, num_heads - num_q_heads - num_kv_heads, head_dim, eps,
        q_weight, k_weight, table, True, positions)
