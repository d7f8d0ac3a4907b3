"""Causal depthwise convolution over a sequence's tokens, and SiLU, in float32.

The short convolution of gated linear attention on q, k and v (Yang, Kautz, Hatamizadeh: Gated Delta Networks, arXiv
2412.06464, section 3.4). Causal: output t sees the tokens t - width + 1 to t; what came before the first token stands
in the initial state.
"""

import torch

SMALL_AXES = {"num_tokens": 5, "dim": 99, "width": 4, "state_width": 3}
SMALL_VARIANTS = [{}, {"num_tokens": 0}, {"num_tokens": 1}, {"num_tokens": 2, "dim": 8}, {"num_tokens": 130, "dim": 64}]
# Channels of q, k and v together, whole and over 2 to 8 GPUs; then multiples of 8, then anything.
AXES_SPACE = {"num_tokens": (1, 16384),
              "dim": [[1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 10240, 12288], (64, 16384, 8),
                      (100, 16384)]}

INPUT_DRAWS = [{"x": 100.0}]  # sums whose exponential leaves float32's range


@torch.no_grad()
def run(x, weight, bias, initial_state):
    num_tokens, width = x.shape[0], weight.shape[1]
    history = torch.cat([initial_state.t(), x]).float()
    total = bias.float().expand(num_tokens, -1)
    for tap in range(width):
        total = total + weight[:, tap].float() * history[tap:tap + num_tokens]
    return (total * torch.sigmoid(total)).to(x.dtype)


def count_cost(axes, inputs):
    """Per value 2 for each tap and 4 for SiLU. Values, weight, bias and state are read once."""
    values, dim, width = axes["num_tokens"] * axes["dim"], axes["dim"], axes["width"]
    return {"flops": {"bfloat16": values * (2 * width + 4)},
            "bytes_read": 2 * (values + dim * (width + 1 + axes["state_width"])), "bytes_written": 2 * values}
