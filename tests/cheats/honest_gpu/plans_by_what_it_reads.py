"""Reads its inputs on the host and chooses by them, as planning wrappers do: no graph, an eager time with the host."""

import torch

GRAPH = False


def run(x, y, factor, out):
    if float(y.abs().max()) == 0.0:
        out.copy_(x)
    else:
        torch.add(x, y, alpha=factor, out=out)
