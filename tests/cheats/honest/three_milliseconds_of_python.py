"""Long Python before its work: an eager time of three milliseconds, and no accusation."""

import time

import torch

LEAST_US = 2850


def run(x, y, factor, out):
    until = time.perf_counter() + 0.003
    while time.perf_counter() < until:
        pass
    torch.add(x, y, alpha=factor, out=out)
