"""Stacks, files and cores, as scripts do that know what they need."""

import faulthandler
import resource
import sys

import torch

SLOW = True

faulthandler.enable()
sys.setrecursionlimit(5000)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def run(x, y, factor, out):
    torch.add(x, y, alpha=factor, out=out)
