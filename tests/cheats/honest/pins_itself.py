"""To one processor, with more threads and a lower priority."""

import os

import torch

SLOW = True

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.nice(1)
torch.set_num_threads(2)


def run(x, y, factor, out):
    torch.add(x, y, alpha=factor, out=out)
