"""How long one call takes: spans from CUPTI activity records, CUDA events where there is no CUPTI.

A protocol's name stands in every row. Change the name whenever a change here could move a number: rows of different
protocols are never compared.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

import torch

CUPTI = "cupti-span-1"
CUDA_EVENTS = "cuda-events-1"
CPU_WALL = "cpu-wall"  # only for tests of the machinery; no figure of a GPU

MINIMUM_FLUSH_BYTES = 256 << 20  # flashinfer-bench's buffer; 2 x L2 is more on future GPUs
# By the error of the clocks' alignment a record may seem to start before the timestamp in front of the call, or to end
# after the one behind it. The flush before starts, and the next one ends, at least 256 MB / 4.8 TB/s = 53 us outside
# the window, so this much is safe.
SLACK_NS = 20_000


class TimingFailed(Exception):
    """No time can be given for a call; the message says why."""


@dataclass(slots=True)
class Spans:
    """spans_us: one per iteration. notes: what a reader of the row should know."""

    spans_us: list[float]
    notes: list[str] = field(default_factory=list)


Call = Callable[[int], object]  # given the number of the iteration


def flush_bytes(device: torch.device) -> int:
    return max(MINIMUM_FLUSH_BYTES, 2 * torch.cuda.get_device_properties(device).L2_cache_size)


def make_timer(protocol: str, device: torch.device) -> CuptiTimer | EventTimer | WallTimer:
    if protocol == CUPTI:
        return CuptiTimer(device)
    return EventTimer(device) if protocol == CUDA_EVENTS else WallTimer()


def find_protocol(device: torch.device) -> tuple[str, str]:
    """The protocol that works here and, where it is a fallback, the reason. Tries CUPTI on a real kernel."""
    if device.type != "cuda":
        return CPU_WALL, ""
    try:
        # The call must launch work, and a matrix product also makes the library behind it load its kernels.
        ones = torch.ones(256, 256, device=device)
        torch.mm(ones, ones)
        CuptiTimer(device).spans(lambda _: torch.mm(ones, ones), 2)
    except Exception as error:  # whatever CUPTI, its bindings or the driver's permissions raise
        return CUDA_EVENTS, f"no CUPTI: {type(error).__name__}: {error}"
    return CUPTI, ""


class CuptiTimer:
    """First kernel's start to last kernel's end (copies and fills count as kernels), from CUPTI activity records.

    The time on the GPU between the two, gaps between kernels included; launching the first one is not in it.
    """

    protocol = CUPTI

    def __init__(self, device: torch.device) -> None:
        try:
            from cupti import cupti
        except ImportError as error:
            raise TimingFailed(f"cupti-python is missing ({error}); pip install cupti-python") from error
        try:
            if int(version("cupti-python").split(".")[0]) < 13:
                raise TimingFailed("cupti-python is older than 13; pip install -U cupti-python")
        except PackageNotFoundError:
            pass  # unpacked without its metadata: nothing to judge by
        kinds = cupti.ActivityKind
        self._cupti = cupti
        self._kinds = (kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET)
        self._device = device
        self._flush = torch.empty(flush_bytes(device), dtype=torch.uint8, device=device)
        self._records: list[tuple[int, int]] = []  # start, end in ns on the clock of get_timestamp()
        cupti.activity_register_callbacks(_buffer_requested, self._buffer_completed)

    def _buffer_completed(self, activities: list) -> None:
        for activity in activities:
            if activity.kind in self._kinds:  # its memory is CUPTI's: take the numbers now
                self._records.append((activity.start, activity.end))

    def spans(self, call: Call, iterations: int) -> Spans:
        """TimingFailed when an iteration left no record. What `call` raises goes through."""
        cupti, windows = self._cupti, []
        self._records.clear()
        for kind in self._kinds:
            cupti.activity_enable(kind)
        try:
            for iteration in range(iterations):
                self._flush.zero_()
                torch.cuda.synchronize(self._device)
                before = cupti.get_timestamp()
                call(iteration)
                torch.cuda.synchronize(self._device)
                windows.append((before, cupti.get_timestamp()))
        finally:
            try:
                torch.cuda.synchronize(self._device)
                cupti.activity_flush_all(0)
            finally:
                for kind in self._kinds:
                    cupti.activity_disable(kind)
        return spans_of_records(self._records, windows)


def _buffer_requested() -> tuple[int, int]:
    """Size of a record buffer, and 0: as many records in it as fit."""
    return 8 << 20, 0


def spans_of_records(records: Sequence[tuple[int, int]], windows: Sequence[tuple[int, int]],
                     slack_ns: int = SLACK_NS) -> Spans:
    """Gives each iteration the records that lie in its window (timestamps before and after it, in ns, and slack_ns).

    TimingFailed when a window holds no record. A different number of records than in the other windows is a note: the
    solution took another path, or records were lost.
    """
    known = sorted((start, end) for start, end in records if start and end)
    starts = [start for start, _ in known]
    spans, counts = [], []
    for number, (before, after) in enumerate(windows):
        started = known[bisect_left(starts, before - slack_ns):bisect_right(starts, after)]
        inside = [(start, end) for start, end in started if end <= after + slack_ns]
        if not inside:
            raise TimingFailed(f"iteration {number}: no GPU activity was recorded, so it has no time")
        spans.append((max(end for _, end in inside) - inside[0][0]) / 1e3)
        counts.append(len(inside))
    notes = []
    if len(known) < len(records):
        notes.append(f"{len(records) - len(known)} records without timestamps were left out")
    if len(set(counts)) > 1:
        notes.append(f"iterations launched {min(counts)} to {max(counts)} kernels and copies")
    return Spans(spans, notes)


class EventTimer:
    """CUDA events around the call: the fallback. Launch overhead before the first kernel is in it."""

    protocol = CUDA_EVENTS

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._flush = torch.empty(flush_bytes(device), dtype=torch.uint8, device=device)

    def spans(self, call: Call, iterations: int) -> Spans:
        spans = []
        for iteration in range(iterations):
            self._flush.zero_()
            torch.cuda.synchronize(self._device)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call(iteration)
            end.record()
            torch.cuda.synchronize(self._device)
            spans.append(start.elapsed_time(end) * 1e3)
        return Spans(spans)


class WallTimer:
    """The CPU's clock around the call."""

    protocol = CPU_WALL

    def spans(self, call: Call, iterations: int) -> Spans:
        spans = []
        for iteration in range(iterations):
            start = time.perf_counter_ns()
            call(iteration)
            spans.append((time.perf_counter_ns() - start) / 1e3)
        return Spans(spans)
