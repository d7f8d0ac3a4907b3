"""Rotary position embedding of query and key heads between the QKV projection and attention; angles in float64.

RoFormer (arXiv 2104.09864) with the pairs of GPT-NeoX: column j of a head turns together with column j + head_dim / 2,
by the angle position * rope_base ** (-2 j / head_dim).
"""

import torch

MAX_POSITION = 8192  # of the generated positions; not a limit of the operator

SMALL_AXES = {"num_tokens": 3, "num_heads": 6, "head_dim": 128, "num_q_heads": 4, "num_kv_heads": 1,
              "rope_base": 10000.0}
SMALL_VARIANTS = [
    {}, {"num_tokens": 0}, {"num_tokens": 1}, {"num_tokens": 40, "num_heads": 7, "num_q_heads": 3, "num_kv_heads": 2},
    {"num_heads": 3, "num_q_heads": 1}, {"rope_base": 1000000.0},
]
# Groups of query heads that models have, over 1 to 8 GPUs.
AXES_SPACE = {"num_tokens": (1, 16384), "num_kv_heads": [1, 1, 2, 4, 8], "_group": [1, 2, 4, 5, 6, 7, 8, 12, 16],
              "num_q_heads": "_group * num_kv_heads", "num_heads": "num_q_heads + 2 * num_kv_heads",
              "rope_base": [10000.0, 500000.0, 1000000.0]}


@torch.no_grad()
def run(qkv, positions, num_q_heads, num_kv_heads, rope_base):
    half = qkv.shape[-1] // 2
    column = torch.arange(half, dtype=torch.float64, device=qkv.device)
    angle = positions.double()[:, None, None] * float(rope_base) ** (-column / half)
    cos, sin = angle.cos().float(), angle.sin().float()
    rotated = slice(0, num_q_heads + num_kv_heads)
    first, second = qkv[:, rotated, :half].float(), qkv[:, rotated, half:].float()
    output = qkv.clone()
    output[:, rotated, :half] = (first * cos - second * sin).to(qkv.dtype)
    output[:, rotated, half:] = (second * cos + first * sin).to(qkv.dtype)
    return output


def generate_inputs(axes_and_scalars, device):
    """positions int32 [num_tokens], uniform from 0 to 8191: the next token of requests that are anywhere in their text.

    Drawn on the CPU from `seed`. Random integers would be negative half of the time.
    """
    generator = torch.Generator().manual_seed(int(axes_and_scalars.get("seed", 0)))
    size = (axes_and_scalars["num_tokens"],)
    return {"positions": torch.randint(0, MAX_POSITION, size, generator=generator, dtype=torch.int32).to(device)}


def count_cost(axes, inputs):
    """3 a rotated value (two products, a sum), and 3 an angle (itself, its cosine, its sine), once for all heads of a
    token. All of qkv is read and written, with its value heads; in place those stay."""
    tokens, head_dim = axes["num_tokens"], axes["head_dim"]
    rotated = tokens * (inputs["num_q_heads"] + inputs["num_kv_heads"]) * head_dim
    values = tokens * axes["num_heads"] * head_dim
    return {"flops": {"float16": 3 * rotated + 3 * tokens * head_dim // 2},
            "bytes_read": 2 * values + 4 * tokens, "bytes_written": 2 * values,
            "bytes_in_place": 4 * rotated + 4 * tokens}
