"""The judge's own buffer, by which it drives everything out of L2 and sees whether a GPU is at rest."""

from __future__ import annotations

import functools
import statistics
import time

import torch

from kernelderby.measure.clock.timing import flush_bytes
from kernelderby.measure.judge.correctness import synchronize

_PROBES = 9
_IDLE_US = 120  # a kernel of the judge's takes 13 to 30 us on an idle H200; behind another process 270 us to 1.3 ms


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


def is_busy(device: torch.device) -> bool:
    """By what a kernel of this process takes until it has run."""
    if device.type != "cuda":
        return False
    took = []
    for _ in range(_PROBES):
        start = time.perf_counter()
        wait_for_gpu(device)
        took.append((time.perf_counter() - start) * 1e6)
    return statistics.median(took) > _IDLE_US


@functools.cache
def _flush_buffer(device: torch.device) -> torch.Tensor:
    return torch.empty(flush_bytes(device), dtype=torch.uint8, device=device)
