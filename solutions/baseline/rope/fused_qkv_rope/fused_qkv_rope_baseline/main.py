"""Plain torch: x * cos + rotate_half(x) * sin in float32, after a copy of qkv."""

import torch


@torch.no_grad()
def run(qkv, positions, num_q_heads, num_kv_heads, rope_base, output):
    """qkv fp16 [num_tokens, num_heads, head_dim], positions int32 [num_tokens] -> output, as qkv."""
    head_dim = qkv.shape[-1]
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float32, device=qkv.device) / head_dim
    angle = torch.outer(positions.float(), 1.0 / rope_base**exponent).repeat(1, 2).unsqueeze(1)
    queries_and_keys = qkv[:, :num_q_heads + num_kv_heads].float()
    first, second = queries_and_keys.chunk(2, dim=-1)
    rotated_half = torch.cat((-second, first), dim=-1)
    output.copy_(qkv)
    output[:, :num_q_heads + num_kv_heads] = queries_and_keys * angle.cos() + rotated_half * angle.sin()
