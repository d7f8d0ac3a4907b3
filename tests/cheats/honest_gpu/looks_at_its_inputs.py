"""Asks for shapes, types and strides in every call, as wrappers of libraries do."""

import torch


def run(x, y, factor, out):
    for tensor in (x, y, out):
        assert tensor.dtype is torch.float32 and tensor.is_contiguous() and tensor.shape == x.shape
        assert tensor.data_ptr() % 16 == 0
    torch.add(x, y, alpha=factor, out=out)
