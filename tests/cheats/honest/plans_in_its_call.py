"""A plan for each shape, made in its first call, as wrappers of libraries do."""

import torch

plans = {}


def plan(shape):
    return [(start, min(start + 4, shape[0])) for start in range(0, shape[0], 4)]


def run(x, y, factor, out):
    if x.shape not in plans:
        plans[x.shape] = plan(x.shape)
    for start, end in plans[x.shape]:
        torch.add(x[start:end], y[start:end], alpha=factor, out=out[start:end])
