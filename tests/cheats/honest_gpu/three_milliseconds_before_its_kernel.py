"""A long way through Python before the first launch; its kernel is none the longer for it."""

import time

import torch


def run(x, y, factor, out):
    until = time.perf_counter() + 0.003
    while time.perf_counter() < until:
        pass
    torch.add(x, y, alpha=factor, out=out)
