"""A child makes the answer in memory that both have, and ends by sys.exit(), as a script would."""

import os
import sys

import torch

SLOW = True


def run(x, y, factor, out):
    child = os.fork()
    if child == 0:
        torch.add(x, y, alpha=factor, out=out)
        sys.exit(0)
    os.waitpid(child, 0)
