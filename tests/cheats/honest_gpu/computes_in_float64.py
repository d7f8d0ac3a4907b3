"""Wider on the way than it has to be."""

import torch


def run(x, y, factor):
    return (x.double() + factor * y.double()).to(torch.float32)
