"""A pool whose process is started anew, and imports this file by the name of its module."""

import multiprocessing

import torch

SLOW = True
GRAPH = False  # it reads its inputs on the host
pool = []


def work(x, y, factor):
    return [a + factor * b for a, b in zip(x, y, strict=True)]


def run(x, y, factor, out):
    if not pool:
        pool.append(multiprocessing.get_context("spawn").Pool(1))
    found = pool[0].apply(work, (x.flatten().tolist(), y.flatten().tolist(), factor))
    out.copy_(torch.tensor(found).view(out.shape))
