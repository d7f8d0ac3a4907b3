"""A child makes the answer, and gives it back through memory that both share."""

import mmap
import os

import torch

SLOW = True


def run(x, y, factor, out):
    shared = torch.frombuffer(mmap.mmap(-1, max(1, out.nbytes)), dtype=out.dtype)[: out.numel()].view(out.shape)
    if not (child := os.fork()):
        torch.add(x, y, alpha=factor, out=shared)
        os._exit(0)
    os.waitpid(child, 0)
    out.copy_(shared)
