"""Asks for a petabyte."""

import torch


def run(x, y, factor, out):
    torch.empty(1 << 50, dtype=torch.uint8, device=x.device)
