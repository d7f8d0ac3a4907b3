"""The floor of everything small: the time of a kernel that loads one number and stores it, under the same protocol."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
import triton
import triton.language as tl

from kernelderby.measure.clock.timing import Timer

_WARMUP = 20
_ITERATIONS = 60


def empty_kernel_us(timer: Timer, device: torch.device) -> dict[str, float | None]:
    """Medians as {"eager": us, "graph": us}; graph is None on a CPU. One block of one warp, four bytes in and out."""
    source, destination = torch.ones(1, device=device), torch.zeros(1, device=device)
    call = launcher(source, destination)
    for _ in range(_WARMUP):
        call()
    found = {"eager": _median(timer.spans(lambda _: call(), _ITERATIONS).spans_us), "graph": None}
    if device.type == "cuda":
        replay = timer.capture(call)
        replay()
        found["graph"] = _median(timer.spans(lambda _: replay(), _ITERATIONS).spans_us)
        if float(destination) != 1.0:
            raise RuntimeError("the empty kernel did not store what it loaded")
    return found


def _median(samples: list[float]) -> float:
    return round(statistics.median(samples), 3)


def launcher(source: torch.Tensor, destination: torch.Tensor) -> Callable[[], object]:
    if source.device.type != "cuda":
        return lambda: destination.copy_(source)
    return lambda: _load_store[(1,)](source, destination, num_warps=1)


@triton.jit
def _load_store(source, destination):  # type: ignore[no-untyped-def]
    tl.store(destination, tl.load(source))
