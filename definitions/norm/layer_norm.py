"""Layer normalization (Ba, Kiros and Hinton, arXiv 1607.06450), in float32 and in two passes: the mean first."""

import torch

SMALL_AXES = {"num_tokens": 5, "hidden_size": 99, "eps": 1e-6}
SMALL_VARIANTS = [{}, {"num_tokens": 0}, {"num_tokens": 1}, {"hidden_size": 8}, {"num_tokens": 70, "hidden_size": 1152}]
# Hidden sizes of models; then multiples of 8, then anything.
WIDTHS = [896, 1024, 1152, 1280, 1536, 2048, 2304, 2560, 2880, 3072, 3584, 3840, 4096, 5120, 5376, 6144, 7168, 8192,
          16384]
AXES_SPACE = {"num_tokens": (1, 16384), "hidden_size": [WIDTHS, WIDTHS, WIDTHS, (64, 20000, 8), (100, 20000)],
              "eps": [1e-5, 1e-6]}

# So small that eps shows; far from zero, where a variance of few digits loses all of them.
INPUT_DRAWS = [{"hidden_states": 1e-3}, {"hidden_states": "plus 64"}]


@torch.no_grad()
def run(hidden_states, weight, bias, eps):
    x = hidden_states.float()
    centred = x - x.mean(dim=-1, keepdim=True)
    inverse = torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + eps)
    return (centred * inverse * weight.float() + bias.float()).to(hidden_states.dtype)


def count_cost(axes, inputs):
    """Seven for each value: sum, difference, square, sum, two products, sum. Weight and bias are read once."""
    rows, columns = axes["num_tokens"], axes["hidden_size"]
    return {"flops": {"bfloat16": 7 * rows * columns}, "bytes_read": 2 * (rows * columns + 2 * columns),
            "bytes_written": 2 * rows * columns}
