"""Its output is a view of a larger tensor, made anew in each call."""

import torch


def run(x, y, factor):
    held = torch.empty(len(x) + 3, x.shape[1], dtype=x.dtype, device=x.device)
    torch.add(x, y, alpha=factor, out=held[: len(x)])
    return held[: len(x)]
