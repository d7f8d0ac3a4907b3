"""Multiplies every row by its scale and a factor."""

import torch

SMALL_AXES = {"rows": 3, "columns": 4, "factor": 2.0}


def run(x, scale, factor):
    return x * scale[:, None] * factor


def generate_inputs(axes_and_scalars, device):
    generator = torch.Generator().manual_seed(int(axes_and_scalars.get("seed", 0)))
    return {"scale": torch.rand(axes_and_scalars["rows"], generator=generator).to(device)}


def count_cost(axes, inputs):
    elements = axes["rows"] * axes["columns"]
    return {
        "flops": {"float32": 2 * elements},
        "bytes_read": 4 * elements + 4 * axes["rows"],
        "bytes_written": 4 * elements,
        "facts": {"elements": elements},
    }
