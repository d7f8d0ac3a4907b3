"""Linear layer, sigmoid and product (the gate on a shared expert's output), in float32."""

import torch

SMALL_AXES = {"num_tokens": 5, "hidden_size": 64, "out_features": 99}
SMALL_VARIANTS = [{}, {"num_tokens": 0}, {"num_tokens": 1}, {"hidden_size": 8, "out_features": 8},
                  {"num_tokens": 70, "hidden_size": 136, "out_features": 200}]
# Gates of attention and of shared experts: square layers, one column, and anything.
AXES_SPACE = {"num_tokens": (1, 16384),
              "hidden_size": [896, 1024, 1536, 2048, 2880, 3072, 4096, 5120, 7168, 8192, (8, 8192, 8), (50, 8192)],
              "out_features": ["hidden_size", "hidden_size", 1, [512, 1024, 2048, 4096, 8192], (16, 8192)]}
SMALL_SPACE = {"num_tokens": (1, 70), "hidden_size": [(8, 300, 8), (1, 300)],
               "out_features": ["hidden_size", 1, (1, 300)]}

INPUT_DRAWS = [{"hidden_states": 30.0}]  # gates whose exponential leaves float32's range


@torch.no_grad()
def run(hidden_states, weight, bias, multiplier):
    gate = hidden_states.float() @ weight.float().t() + bias.float()
    return (torch.sigmoid(gate) * multiplier.float()).to(hidden_states.dtype)


def count_cost(axes, inputs):
    """The matrix product, and one for each output; the survey counts bias and sigmoid as nothing beside it."""
    rows, columns, outputs = axes["num_tokens"], axes["hidden_size"], axes["out_features"]
    return {"flops": {"bfloat16": rows * outputs * (2 * columns + 1)},
            "bytes_read": 2 * (rows * columns + outputs * columns + outputs + rows * outputs),
            "bytes_written": 2 * rows * outputs}
