"""The judge's own buffer, by which it drives everything out of L2 and sees whether a GPU is at rest."""

from __future__ import annotations

import functools

import torch

from kernelderby.measure.clock.timing import flush_bytes
from kernelderby.measure.judge.correctness import synchronize


def evict_inputs(device: torch.device) -> None:
    """What the judge has just written leaves L2, so that nothing is gained where a solution has disabled the flush of
    its own process. That one follows, and leaves L2 as it is before every call."""
    if device.type == "cuda":
        _flush_buffer(device).zero_()


def wait_for_gpu(device: torch.device) -> None:
    """Until a kernel of the judge's has run: where the worker's are not at their end yet, behind them."""
    if device.type == "cuda":
        _flush_buffer(device)[:1].zero_()
        synchronize(device)


@functools.cache
def _flush_buffer(device: torch.device) -> torch.Tensor:
    return torch.empty(flush_bytes(device), dtype=torch.uint8, device=device)
