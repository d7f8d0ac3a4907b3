"""Is slow once."""

import time

import torch

compiled = []


def run(x, y, factor, out):
    if not compiled:
        time.sleep(0.5)
        compiled.append(torch.add)
    compiled[0](x, y, alpha=factor, out=out)
