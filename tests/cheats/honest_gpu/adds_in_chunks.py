"""Four kernels, each on a part of the rows."""

import torch


def run(x, y, factor, out):
    for parts in zip(x.chunk(4), y.chunk(4), out.chunk(4), strict=True):
        torch.add(parts[0], parts[1], alpha=factor, out=parts[2])
