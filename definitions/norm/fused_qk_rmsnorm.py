"""RMS normalization of query and key heads between the QKV projection and attention, in float32."""

import torch

SMALL_AXES = {"num_tokens": 3, "num_heads": 6, "head_dim": 128, "num_q_heads": 4, "num_kv_heads": 1, "eps": 1e-6}
SMALL_VARIANTS = [
    {}, {"num_tokens": 0}, {"num_tokens": 1}, {"num_tokens": 40, "num_heads": 7, "num_q_heads": 3, "num_kv_heads": 2},
    {"num_heads": 3, "num_q_heads": 1},
]
# Groups of query heads that models have, over 1 to 8 GPUs.
AXES_SPACE = {"num_tokens": (1, 16384), "num_kv_heads": [1, 1, 2, 4, 8], "_group": [1, 2, 4, 5, 6, 7, 8, 12, 16],
              "num_q_heads": "_group * num_kv_heads", "num_heads": "num_q_heads + 2 * num_kv_heads",
              "eps": [1e-5, 1e-6]}

INPUT_DRAWS = [{"qkv": 1e-3}, {"qkv": 300.0}]  # so small that eps shows, so large that squares leave float16's range


@torch.no_grad()
def run(qkv, q_weight, k_weight, num_q_heads, num_kv_heads, eps):
    output = qkv.clone()
    keys = slice(num_q_heads, num_q_heads + num_kv_heads)
    for heads, weight in ((slice(0, num_q_heads), q_weight), (keys, k_weight)):
        x = qkv[:, heads].float()
        inverse = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
        output[:, heads] = (x * inverse * weight.float()).to(qkv.dtype)
    return output


def count_cost(axes, inputs):
    """As rms_norm, a row for each query and each key head. All of qkv is read and written, with its value heads;
    in place those stay."""
    normalized = axes["num_tokens"] * (inputs["num_q_heads"] + inputs["num_kv_heads"])
    values = axes["num_tokens"] * axes["num_heads"] * axes["head_dim"]
    return {"flops": {"float16": normalized * (3 * axes["head_dim"] + 1)},
            "bytes_read": 2 * (values + 2 * axes["head_dim"]), "bytes_written": 2 * values,
            "bytes_in_place": 4 * normalized * axes["head_dim"] + 4 * axes["head_dim"]}
