"""RMS normalization (Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467), in float32."""

import torch

# An odd row, which no vector load fits. No row, one row, and rows of one vector and of many follow.
SMALL_AXES = {"num_tokens": 5, "hidden_size": 99, "eps": 1e-6}
SMALL_VARIANTS = [{}, {"num_tokens": 0}, {"num_tokens": 1}, {"hidden_size": 8}, {"num_tokens": 70, "hidden_size": 2048}]
# Hidden sizes of models; then multiples of 8, then anything.
WIDTHS = [896, 1024, 1152, 1280, 1536, 2048, 2304, 2560, 2880, 3072, 3584, 3840, 4096, 5120, 5376, 6144, 7168, 8192,
          16384]
AXES_SPACE = {"num_tokens": (1, 16384), "hidden_size": [WIDTHS, WIDTHS, WIDTHS, (64, 20000, 8), (100, 20000)],
              "eps": [1e-5, 1e-6]}

# So small that eps shows, so large that squares leave float16's range.
INPUT_DRAWS = [{"hidden_states": 1e-3}, {"hidden_states": 1e4}]


@torch.no_grad()
def run(hidden_states, weight, eps):
    x = hidden_states.float()
    inverse = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return (x * inverse * weight.float()).to(hidden_states.dtype)


def count_cost(axes, inputs):
    """A square, a sum and a product for each value, a square root for each row. The weight is read once."""
    rows, columns = axes["num_tokens"], axes["hidden_size"]
    return {"flops": {"bfloat16": rows * (3 * columns + 1)}, "bytes_read": 2 * (rows * columns + columns),
            "bytes_written": 2 * rows * columns}
