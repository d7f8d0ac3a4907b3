"""Counts its calls by shape, and says it now and then."""

import collections

import torch

calls = collections.Counter()


def run(x, y, factor, out):
    calls[tuple(x.shape)] += 1
    if calls[tuple(x.shape)] % 8 == 0:
        print(f"{calls[tuple(x.shape)]} calls of {tuple(x.shape)}")
    torch.add(x, y, alpha=factor, out=out)
