"""Captures one call into a CUDA graph, and cleans up after a failed capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_CHARACTERS = 300


class NotCapturable(Exception):
    """A call cannot be captured; the message says why. spoiled: the process must be replaced, because its stream, its
    context or torch's allocator are still in the capture."""

    def __init__(self, message: str, spoiled: bool = False) -> None:
        super().__init__(message)
        self.spoiled = spoiled


class Replay:
    """Launches the captured kernels on the current stream and returns the captured call's result. stream: the stream of
    the capture."""

    def __init__(self, graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, returned: object) -> None:
        self.stream, self._graph, self._returned = stream, graph, returned

    def __call__(self) -> object:
        self._graph.replay()
        return self._returned


def captured(call: Callable[[], object], device: torch.device, pool: Any = None) -> Replay:
    """Captures a call and gives its replay. pool: memory for its allocations; default a pool of its own.

    The call first runs once on the capturing stream, since libraries set up handles and workspaces per stream. Memory
    that the call allocates during the capture belongs to the graph and lives as long as the replay.
    """
    if device.type != "cuda":
        raise NotCapturable("a CPU has no CUDA graphs")
    stream, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        call()
    torch.cuda.synchronize(device)
    pool = pool or torch.cuda.graph_pool_handle()
    problem = returned = None
    with torch.cuda.stream(stream):
        # Not torch.cuda.graph(), which empties the allocator's cache, so that the next eager call would pay for new
        # memory. thread_local: a library's activity in another thread is not the call's fault.
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            returned = call()
        except BaseException as error:  # sys.exit included: the capture must end whatever it raises  # noqa: BLE001
            problem = error
        try:
            graph.capture_end()
        except RuntimeError as error:
            problem = problem or error
    if problem is not None:
        first_line, *_ = [*str(problem).strip().splitlines(), ""]
        message = f"{type(problem).__name__}: {first_line}"[:_CHARACTERS]
        raise NotCapturable(message, spoiled=not _recovered(device, pool)) from problem
    return Replay(graph, stream, returned)


def _recovered(device: torch.device, pool: tuple[int, int]) -> bool:
    """Whether the process works again after a failed capture: no stream captures, memory can be allocated and freed,
    and another capture works."""
    try:  # noqa: SIM105
        # A capture that ends in an error leaves torch's allocator in the graph's pool. Otherwise this raises.
        torch._C._cuda_endAllocateToPool(device.index or 0, pool)
    except (RuntimeError, AttributeError):
        pass
    try:
        torch.cuda.synchronize(device)
        if torch.cuda.is_current_stream_capturing():
            return False
        probe = torch.zeros(1 << 16, device=device)
        torch.cuda.empty_cache()
        stream, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            probe.add_(1)
            graph.capture_end()
        graph.replay()
        return float(probe.sum()) == probe.numel()
    except RuntimeError:
        return False
