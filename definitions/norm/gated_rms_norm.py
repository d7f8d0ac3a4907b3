"""RMS normalization, then a SiLU gate, in float32."""

import torch

SMALL_AXES = {"num_rows": 5, "hidden_size": 99, "eps": 1e-6}
SMALL_VARIANTS = [{}, {"num_rows": 0}, {"num_rows": 1}, {"hidden_size": 8}, {"num_rows": 70, "hidden_size": 128}]
# Rows are tokens x heads in linear attention, tokens alone in a layer's norm.
AXES_SPACE = {"num_rows": (1, 524288),
              "hidden_size": [64, 128, 128, 256, 2048, 4096, 5120, 8192, (8, 8192, 8), (50, 8192)],
              "eps": [1e-5, 1e-6]}

# So small that eps shows; squares that leave float16's range, and gates whose exponential leaves float32's.
INPUT_DRAWS = [{"hidden_states": 1e-3}, {"hidden_states": 1e4, "gate": 100.0}]


@torch.no_grad()
def run(hidden_states, gate, weight, eps):
    x, z = hidden_states.float(), gate.float()
    inverse = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return (x * inverse * weight.float() * (z * torch.sigmoid(z))).to(hidden_states.dtype)


def count_cost(axes, inputs):
    """For each value three of the norm, five of the gate (four of its SiLU, one product); a square root for each row.

    The weight is read once.
    """
    rows, columns = axes["num_rows"], axes["hidden_size"]
    return {"flops": {"bfloat16": rows * (8 * columns + 1)}, "bytes_read": 2 * (2 * rows * columns + columns),
            "bytes_written": 2 * rows * columns}
