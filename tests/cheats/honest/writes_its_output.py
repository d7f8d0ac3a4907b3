"""Destination passing."""

import torch


def run(x, y, factor, out):
    torch.add(x, y, alpha=factor, out=out)
