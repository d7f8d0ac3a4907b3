"""Residual add and RMS normalization, in float32: the sum is rounded for residual_out only, not for the norm."""

import torch

SMALL_AXES = {"num_tokens": 5, "hidden_size": 99, "eps": 1e-6}
SMALL_VARIANTS = [{}, {"num_tokens": 0}, {"num_tokens": 1}, {"hidden_size": 8}, {"num_tokens": 70, "hidden_size": 2048}]
# Hidden sizes of models; then multiples of 8, then anything.
WIDTHS = [896, 1024, 1152, 1280, 1536, 2048, 2304, 2560, 2880, 3072, 3584, 3840, 4096, 5120, 5376, 6144, 7168, 8192,
          16384]
AXES_SPACE = {"num_tokens": (1, 16384), "hidden_size": [WIDTHS, WIDTHS, WIDTHS, (64, 20000, 8), (100, 20000)],
              "eps": [1e-5, 1e-6]}

# So small that eps shows, so large that squares leave float16's range.
INPUT_DRAWS = [{"hidden_states": 1e-3, "residual": 1e-3}, {"hidden_states": 1e4, "residual": 1e4}]


@torch.no_grad()
def run(hidden_states, residual, weight, eps):
    total = hidden_states.float() + residual.float()
    inverse = torch.rsqrt(total.square().mean(dim=-1, keepdim=True) + eps)
    dtype = hidden_states.dtype
    return (total * inverse * weight.float()).to(dtype), total.to(dtype)


def count_cost(axes, inputs):
    """Add, square, sum and product for each value, a square root for each row. The weight is read once."""
    rows, columns = axes["num_tokens"], axes["hidden_size"]
    return {"flops": {"bfloat16": rows * (4 * columns + 1)}, "bytes_read": 2 * (2 * rows * columns + columns),
            "bytes_written": 2 * 2 * rows * columns}
