"""Trusted calls in the form of solutions: a kernel that loads four bytes and stores them, and a copy of all inputs.

The kernel's time, by the protocol of the rows, is the floor of everything small.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import torch
import triton
import triton.language as tl

from kernelderby.catalog import Definition, TensorSpec
from kernelderby.measure.clock.timing import Timer
from kernelderby.measure.worker.candidate import Candidate

_WARMUP = 20
_ITERATIONS = 60


def empty_kernel_us(timer: Timer, device: torch.device) -> dict[str, float | None]:
    """The medians as {"eager": us, "graph": us}; graph is None on a CPU. The kernel has one block of one warp, four
    bytes in and out."""
    source, destination = torch.ones(1, device=device), torch.zeros(1, device=device)
    call = _launcher(source, destination)
    for _ in range(_WARMUP):
        call()

    def median_us(run: Callable[[], object]) -> float:
        return round(statistics.median(timer.spans(lambda _: run(), _ITERATIONS).spans_us), 3)

    found = {"eager": median_us(call), "graph": None}
    if device.type == "cuda":
        replay = timer.capture(call)
        replay()
        found["graph"] = median_us(replay)
        if float(destination) != 1.0:
            raise RuntimeError("the empty kernel did not store what it loaded")
    return found


def _launcher(source: torch.Tensor, destination: torch.Tensor) -> Callable[[], object]:
    if source.device.type != "cuda":
        return lambda: destination.copy_(source)
    return lambda: _load_store[(1,)](source, destination, num_warps=1)


@triton.jit
def _load_store(source, destination):  # type: ignore[no-untyped-def]
    tl.store(destination, tl.load(source))


def trusted_definition(count: int = 1) -> Definition:
    spec = TensorSpec(("one",), "float32")
    axes: dict[str, int | None] = {"one": count}
    return Definition("trusted", "", axes, {"source": spec}, {"destination": spec}, (), "", Path(), None, "", None)


def trusted_candidate(copies: bool = False) -> Candidate:
    def call(source: torch.Tensor, destination: torch.Tensor) -> object:
        return destination.copy_(source) if copies else _launcher(source, destination)()

    return Candidate(call, True, trusted_definition())
