"""Its output has the strides of a transposed tensor."""

import torch


def run(x, y, factor):
    return torch.add(x.t().contiguous(), y.t().contiguous(), alpha=factor).t()
