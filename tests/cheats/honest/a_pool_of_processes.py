"""A pool that stays from call to call; its semaphores and queues lie in shared memory."""

import multiprocessing

import torch

pool = []


def work(x, y, factor):
    return [a + factor * b for a, b in zip(x, y, strict=True)]


def run(x, y, factor, out):
    if not pool:
        pool.append(multiprocessing.get_context("fork").Pool(2))
    found = pool[0].apply(work, (x.flatten().tolist(), y.flatten().tolist(), factor))
    out.copy_(torch.tensor(found).view(out.shape))
