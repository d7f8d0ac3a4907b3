"""Divides the rows among threads and waits for them."""

from concurrent.futures import ThreadPoolExecutor

import torch

GRAPH = False  # a thread's current stream is not the one that is captured
pool = ThreadPoolExecutor(2)


def run(x, y, factor, out):
    halves = [slice(0, len(x) // 2), slice(len(x) // 2, None)]
    for each in [pool.submit(torch.add, x[part], y[part], alpha=factor, out=out[part]) for part in halves]:
        each.result()
