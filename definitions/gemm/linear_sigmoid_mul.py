"""Linear layer, sigmoid and product (the gate on a shared expert's output), in float32."""

import torch

SMALL_AXES = {"num_tokens": 5, "hidden_size": 64, "out_features": 99}
SMALL_VARIANTS = [{}, {"num_tokens": 0}, {"num_tokens": 1}, {"hidden_size": 8, "out_features": 8},
                  {"num_tokens": 70, "hidden_size": 136, "out_features": 200}]

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
