"""A line in every call, on both streams, and a warning."""

import sys
import warnings

import torch

SLOW = True


def run(x, y, factor, out):
    print("called with", tuple(x.shape))
    print("progress: 100 %\r", file=sys.stderr, end="")
    warnings.warn("this is slow", stacklevel=2)
    torch.add(x, y, alpha=factor, out=out)
