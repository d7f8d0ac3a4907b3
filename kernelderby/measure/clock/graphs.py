"""One call captured into a CUDA graph, and the cleaning up after a broken capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_CHARACTERS = 300


class NotCapturable(Exception):
    """A call that has no CUDA graph; the message says why. spoiled: the process can no longer be trusted (its stream,
    its context or torch's allocator still hang in the capture) and must be replaced."""

    def __init__(self, message: str, spoiled: bool = False) -> None:
        super().__init__(message)
        self.spoiled = spoiled


class Replay:
    """Launches the captured kernels on the current stream and returns what the captured call returned. stream: on
    which it was captured."""

    def __init__(self, graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, returned: object) -> None:
        self.stream, self._graph, self._returned = stream, graph, returned

    def __call__(self) -> object:
        self._graph.replay()
        return self._returned


def captured(call: Callable[[], object], device: torch.device, pool: Any = None) -> Replay:
    """The replay of a call. pool: memory for what it allocates; its own without.

    The call runs once on the capturing stream first, since libraries set up handles and workspaces per stream. What
    the call allocates while it is captured belongs to the graph and lives as long as the replay.
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
        # memory. thread_local: what a library does in another thread meanwhile is no fault of the call.
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
    """Whether the process is whole again after a broken capture: no stream captures, memory can be had and freed, and
    another capture works."""
    try:  # noqa: SIM105
        # A capture that ends in an error leaves torch's allocator in the graph's pool. Where it did not, this raises.
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
