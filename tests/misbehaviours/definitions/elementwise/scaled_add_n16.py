"""out = x + factor * y, the smallest operator on which a solution can misbehave."""

SMALL_AXES = {"rows": 4, "columns": 16, "factor": 2.0}


def run(x, y, factor):
    return x + factor * y


def generate_inputs(axes_and_scalars, device):
    """y is generated, x is random."""
    import torch

    generator = torch.Generator().manual_seed(axes_and_scalars["seed"])
    return {"y": torch.randn(axes_and_scalars["rows"], axes_and_scalars["columns"], generator=generator).to(device)}


def count_cost(axes, inputs):
    elements = axes["rows"] * axes["columns"]
    return {
        "flops": {"float32": 2 * elements},
        "bytes_read": 8 * elements,
        "bytes_written": 4 * elements,
        "facts": {"nonzero": int((inputs["y"] != 0).sum())},
    }
