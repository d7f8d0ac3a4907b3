"""SGLang's JIT apply_rope_inplace on views of query and key heads, in place, with a table."""

import functools

import torch

MAX_POSITION = 1 << 17


@functools.lru_cache(maxsize=4)
def cos_sin_cache(rope_base, head_dim, device):
    """float32 [MAX_POSITION, head_dim]: cosines, then sines. A model makes it once at its start, and so do we."""
    half = head_dim // 2
    column = torch.arange(half, dtype=torch.float64, device=device)
    angle = torch.arange(MAX_POSITION, device=device).double()[:, None] * float(rope_base) ** (-column / half)
    return torch.cat([angle.cos(), angle.sin()], dim=1).float()


@torch.no_grad()
def run(qkv, positions, num_q_heads, num_kv_heads, rope_base, output):
    """qkv float16 [num_tokens, num_heads, head_dim], positions int32 [num_tokens] -> output, as qkv."""
    from sglang.kernels.ops.attention.rope import apply_rope_inplace

    if output.data_ptr() != qkv.data_ptr():
        output.copy_(qkv)
    if qkv.numel():
        query, key = output[:, :num_q_heads], output[:, num_q_heads:num_q_heads + num_kv_heads]
        apply_rope_inplace(query, key, cos_sin_cache(rope_base, qkv.shape[2], qkv.device), positions, is_neox=True)
