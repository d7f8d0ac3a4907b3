"""How long one call takes: launched by the host, and replayed as a CUDA graph. Protocol 2 (docs/protocol.md).

    timer = make_timer(find_protocol(device)[0], device)
    spans = timer.spans(call, iterations)              # eager: Spans, one entry per iteration
    replay = timer.capture(lambda: run(x, out))        # a CUDA graph; NotCapturable says why there is none
    spans = timer.spans(lambda _: replay(), iterations)  # graph: the same window around a replay
    timer.graph_us(lambda: run(x, out), 20)            # both in one: the median, for a tuner

`before(i)` and `after(i)` run outside the window of iteration i: new contents, poison, a look at the outputs. L2 is
flushed between `before` and the window. Every time is in microseconds:
    spans_us  first record's start to last record's end on the GPU (the launch of the first is not in it)
    busy_us the part in which a kernel, copy or fill ran (the union of their intervals); [] without CUPTI host_us   the
    host's clock around the call alone, before any synchronisation: time to enqueue wall_us   the host's clock from
    before the call until the GPU is idle again outside records between the flush and the next one that are in no
    window: work outside all spans; NO_FLUSH without a flush before the window; [] without CUPTI

Every row has the protocol's name. Change the name whenever a change here could move a number: rows of different
protocols are never compared.
"""

from __future__ import annotations

import math
import statistics
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from kernelderby.measure.clock.graphs import NotCapturable, captured
from kernelderby.measure.clock.shift import shifts
from kernelderby.measure.clock.spans import Spans
from kernelderby.store.counts import counted

CUPTI = "cupti-graph-eager-2"
CUDA_EVENTS = "events-graph-eager-2"
CPU_WALL = "cpu-wall"  # only for tests of the machinery; no figure of a GPU

MINIMUM_FLUSH_BYTES = 256 << 20  # flashinfer-bench's buffer; 2 x L2 is more on future GPUs
# By the error of the clocks' alignment (shift.py) a record may seem to start before the timestamp in front of the call,
# or to end after the one behind it. The flush before starts, and the next one ends, at least 256 MB / 4.8 TB/s = 53 us
# outside the window, so this much is safe. What `after` launches waits as long.
SLACK_NS = 20_000
_SETTLE_NS = 2 * SLACK_NS
NO_FLUSH = -1
_FLUSH_BYTES_PER_NS = 16_000  # faster than any memory
_FILLS = "FillFunctor"  # in the name of the kernel of torch's zero_()


class TimingFailed(Exception):
    """No time can be given for a call; the message says why."""


Call = Callable[[int], object]  # given the number of the iteration


def flush_bytes(device: torch.device) -> int:
    return max(MINIMUM_FLUSH_BYTES, 2 * torch.cuda.get_device_properties(device).L2_cache_size)


def make_timer(protocol: str, device: torch.device) -> Timer:
    if protocol == CUPTI:
        return CuptiTimer(device)
    return EventTimer(device) if protocol == CUDA_EVENTS else WallTimer()


def find_protocol(device: torch.device) -> tuple[str, str]:
    """The protocol that works here, and the reason if it is a fallback. Tries CUPTI on a real kernel, launched and
    replayed, because a CUPTI without records of a graph's nodes would leave the graph without a time."""
    if device.type != "cuda":
        return CPU_WALL, ""
    try:
        # The call must launch work, and a matrix product also makes the library behind it load its kernels.
        ones, result = torch.ones(256, 256, device=device), torch.empty(256, 256, device=device)
        torch.mm(ones, ones, out=result)
        timer = CuptiTimer(device)
        timer.spans(lambda _: torch.mm(ones, ones, out=result), 2)
    except Exception as error:  # any error from CUPTI, its bindings or the driver's permissions  # noqa: BLE001
        return CUDA_EVENTS, f"no CUPTI: {type(error).__name__}: {error}"
    try:
        timer.graph_us(lambda: (torch.mm(ones, ones, out=result), result.add_(1)), 2)
    except (TimingFailed, NotCapturable) as error:
        return CUDA_EVENTS, f"CUPTI records no kernels of a CUDA graph: {error}"
    return CUPTI, ""


class Timer:
    """The common part of the timers. A window is the measured part of one iteration."""

    protocol: str
    device: torch.device

    def spans(self, call: Call, iterations: int, before: Call | None = None, after: Call | None = None) -> Spans:
        """TimingFailed if an iteration has no time. Exceptions of `call`, `before` and `after` pass through."""
        raise NotImplementedError

    def capture(self, call: Callable[[], object], pool: Any = None) -> Callable[[], object]:
        """Runs `call` once on a stream of its own, captures it, and gives the replay. Replaying returns the captured
        call's result. pool: memory shared with graphs that never run at the same time. NotCapturable with the
        reason."""
        return captured(call, self.device, pool)

    def graph_us(self, call: Callable[[], object], iterations: int) -> float:
        """Median span of a call replayed as a CUDA graph. NotCapturable, TimingFailed."""
        replay = self.capture(call)
        replay()
        return statistics.median(self.spans(lambda _: replay(), iterations).spans_us)


class _GpuTimer(Timer):
    """Flush, synchronise, window: the same for CUPTI and events."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._flush_bytes = device, flush_bytes(device)
        self._flush = torch.empty(self._flush_bytes, dtype=torch.uint8, device=device)

    def _windows(
        self,
        call: Call,
        iterations: int,
        before: Call | None,
        after: Call | None,
        opened: Callable[[], None],
        closed: Callable[[], None],
        spans: Spans,
        flushing: Callable[[], None] = lambda: None,
    ) -> None:
        """The timer's actions before the flush, right before the call, and after the GPU is idle again: flushing,
        opened, closed."""
        clock, synchronize, device = time.perf_counter_ns, torch.cuda.synchronize, self.device
        for iteration in range(iterations):
            if before is not None:
                before(iteration)
            flushing()
            self._flush.zero_()
            synchronize(device)
            opened()
            start = clock()
            call(iteration)
            enqueued = clock()
            synchronize(device)
            end = clock()
            closed()
            spans.host_us.append((enqueued - start) / 1e3)
            spans.wall_us.append((end - start) / 1e3)
            if after is not None:
                while clock() - end < _SETTLE_NS:
                    pass
                after(iteration)


class CuptiTimer(_GpuTimer):
    """First kernel's start to last kernel's end (copies and fills count as kernels), from CUPTI activity records.

    The time on the GPU between the two, gaps between kernels included; launching the first one is not in it. Kernels
    of a replayed graph leave a record each, because the activity kind GRAPH_TRACE, which would fold a graph into one
    record, stays off.
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
            pass  # unpacked without its metadata: version unknown
        super().__init__(device)
        kinds = cupti.ActivityKind
        self._cupti = cupti
        self._kinds = (kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET)
        self._records: list[tuple[int, int]] = []  # start, end in ns on the clock of get_timestamp()
        self._fills: list[tuple[int, int]] = []  # those that look like the flush

    def _buffer_completed(self, activities: list[Any]) -> None:
        for activity in activities:
            if activity.kind in self._kinds:  # CUPTI owns the memory, so take the numbers now
                self._records.append((activity.start, activity.end))
                if self._looks_like_a_flush(activity):
                    self._fills.append(self._records[-1])

    def _looks_like_a_flush(self, activity: Any) -> bool:
        if not activity.start or (activity.end - activity.start) * _FLUSH_BYTES_PER_NS < self._flush_bytes:
            return False
        if activity.kind == self._cupti.ActivityKind.CONCURRENT_KERNEL:
            return _FILLS in str(activity.name)
        return bool(activity.kind == self._cupti.ActivityKind.MEMSET and activity.bytes == self._flush_bytes)

    def spans(self, call: Call, iterations: int, before: Call | None = None, after: Call | None = None) -> Spans:
        cupti, stamps, flushes, timed = self._cupti, [], [], Spans([])
        self._records.clear()
        self._fills.clear()
        # Each time, since torch's profiler in a call registers others. 8 MiB: of a buffer; 0: any number of records.
        cupti.activity_register_callbacks(lambda: (8 << 20, 0), self._buffer_completed)
        for kind in self._kinds:
            cupti.activity_enable(kind)
        try:

            def stamp() -> None:
                stamps.append(cupti.get_timestamp())

            self._windows(
                call, iterations, before, after, stamp, stamp, timed, lambda: flushes.append(cupti.get_timestamp())
            )
        finally:
            try:
                torch.cuda.synchronize(self.device)
                cupti.activity_flush_all(0)
            finally:
                for kind in self._kinds:
                    cupti.activity_disable(kind)
        windows = list(zip(stamps[::2], stamps[1::2], strict=True))
        moved = shifts(self._fills, flushes, windows, self._records, SLACK_NS)
        # On the records' clock from here on.
        windows = [(opened - by, closed - by) for (opened, closed), by in zip(windows, moved, strict=True)]
        flushes = [begun - by for begun, by in zip(flushes, moved, strict=True)]
        found = spans_of_records(self._records, windows)
        outside = outside_of_windows(self._records, windows, flushes, self._flush_bytes)
        if max(map(abs, moved), default=0) > SLACK_NS:
            found.notes.append("the clock of the records was off, and set by the flushes")
        return Spans(found.spans_us, found.notes, found.busy_us, timed.host_us, timed.wall_us, outside)


def spans_of_records(
    records: Sequence[tuple[int, int]], windows: Sequence[tuple[int, int]], slack_ns: int = SLACK_NS
) -> Spans:
    """Assigns the records to the windows of the iterations (timestamps before and after, in ns, with slack_ns), and
    gives spans_us, busy_us and notes. TimingFailed if a window holds no record. A note if the windows hold different
    numbers of records: the solution took another path, or records were lost.
    """
    known = sorted((start, end) for start, end in records if start and end)
    starts = [start for start, _ in known]
    found, counts = Spans([]), []
    for number, (before, after) in enumerate(windows):
        started = known[bisect_left(starts, before - slack_ns) : bisect_right(starts, after)]
        inside = [(start, end) for start, end in started if end <= after + slack_ns]
        if not inside:
            seen = _nearest(starts, before, after)
            raise TimingFailed(f"iteration {number}: no GPU activity was recorded, so it has no time ({seen})")
        found.spans_us.append((max(end for _, end in inside) - inside[0][0]) / 1e3)
        found.busy_us.append(covered(inside) / 1e3)
        counts.append(len(inside))
    if len(known) < len(records):
        found.notes.append(f"left out: {counted(len(records) - len(known), 'record')} without timestamps")
    if len(set(counts)) > 1:
        found.notes.append(f"iterations launched {min(counts)} to {counted(max(counts), 'kernel')} and copies")
    return found


def _nearest(starts: Sequence[int], before: int, after: int) -> str:
    """How far off the record is that begins nearest to this window without a record of its own."""
    if not starts:
        return "there are no records"
    away = min(max(before - start, start - after, 0) for start in starts)
    return f"the nearest of {counted(len(starts), 'record')} begins {away / 1e3:.0f} us away"


def outside_of_windows(
    records: Sequence[tuple[int, int]],
    windows: Sequence[tuple[int, int]],
    flushes: Sequence[int],
    flush_bytes: int,
    slack_ns: int = SLACK_NS,
) -> list[int]:
    """For each iteration the number of records between the beginnings of its flush and of the next one (timestamps),
    without the flush and the window. NO_FLUSH if no record before the window is long enough for a flush of this many
    bytes."""
    known = sorted((start, end) for start, end in records if start and end)
    starts = [start for start, _ in known]
    found = []
    for (opened, closed), begin, following in zip(windows, flushes, [*flushes[1:], math.inf], strict=True):
        first, until = (bisect_left(starts, at - slack_ns) for at in (begin, following))
        own = known[first:until]
        flushed = [end - start for start, end in own if end < opened + slack_ns]
        if not flushed or max(flushed) * _FLUSH_BYTES_PER_NS < flush_bytes:
            found.append(NO_FLUSH)
            continue
        inside = sum(opened - slack_ns <= start <= closed and end <= closed + slack_ns for start, end in own)
        found.append(len(own) - inside - 1)
    return found


def covered(intervals: Sequence[tuple[int, int]]) -> int:
    """Length of the union of intervals that are sorted by their start."""
    total, reached = 0, intervals[0][0]
    for start, end in intervals:
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


class EventTimer(_GpuTimer):
    """CUDA events around the call: the fallback. The time includes launch overhead before the first kernel."""

    protocol = CUDA_EVENTS

    def spans(self, call: Call, iterations: int, before: Call | None = None, after: Call | None = None) -> Spans:
        pairs, timed = [], Spans([])

        def opened() -> None:
            one, other = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            pairs.append((one, other))
            pairs[-1][0].record()

        def bracketed(iteration: int) -> None:
            call(iteration)
            pairs[-1][1].record()

        self._windows(bracketed, iterations, before, after, opened, lambda: None, timed)
        timed.spans_us = [start.elapsed_time(end) * 1e3 for start, end in pairs]
        return timed


class WallTimer(Timer):
    """The CPU's clock around the call."""

    protocol = CPU_WALL
    device = torch.device("cpu")

    def spans(self, call: Call, iterations: int, before: Call | None = None, after: Call | None = None) -> Spans:
        timed = Spans([])
        for iteration in range(iterations):
            if before is not None:
                before(iteration)
            start = time.perf_counter_ns()
            call(iteration)
            timed.spans_us.append((time.perf_counter_ns() - start) / 1e3)
            if after is not None:
                after(iteration)
        timed.host_us, timed.wall_us = list(timed.spans_us), list(timed.spans_us)
        return timed
