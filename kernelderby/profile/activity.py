"""Busy time of every GPU of a profile, idle time with causes, communication beside computing, and the lead of the host.

A gap is a stretch in which nothing ran on the GPU. The operation that ended it decides its cause:
  host late         it was launched after the gap had begun, and no call had waited for the GPU in between
  synchronisation   as before, but a call of that process was waiting for the GPU when the gap began, or after
  communication     it had been launched, and it or what ran before the gap moves data between GPUs
  dependency        it had been launched, and waited for something else: an event, another stream, the launch itself
  unknown           its launch is not in the profile
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from kernelderby.profile import intervals
from kernelderby.profile.critical_path import PathRow, critical_path
from kernelderby.profile.kernels.attribution import Role, attribute
from kernelderby.profile.names import unnumbered
from kernelderby.profile.spans import ApiSum, LaunchShape, MemoryUse, Profile, Span, SpanKind
from kernelderby.profile.timeline import gpu_label
from kernelderby.store.bounds import expect_few
from kernelderby.store.counts import counted

CAUSES = ("host late", "synchronisation", "communication", "dependency", "unknown")


@dataclass(frozen=True, slots=True)
class GpuActivity:
    """One GPU of one profile. *_ns of communication and computing are unions over streams; overlap_ns: both at once.
    launch: time from the call's start to the operation's start, for operations with a known call. queue: at each
    launch, the number of operations launched but not yet started. Percentiles are None without a known launch."""

    label: str
    process: int
    device: int
    operations: int
    wall_ns: int
    busy_ns: int
    idle_ns: dict[str, int]
    gaps: dict[str, int]
    communication_ns: int
    computing_ns: int
    overlap_ns: int
    launch_median_ns: float | None
    launch_95_ns: float | None
    queue_median: float | None
    queue_largest: int | None

    @property
    def exposed_ns(self) -> int:
        """Time of communication without computing beside it."""
        return self.communication_ns - self.overlap_ns


@dataclass(frozen=True, slots=True)
class RangeActivity:
    """All ranges of one name: their time on the host, and the operations launched in them or in ranges inside them."""

    name: str
    instances: int
    host_ns: int
    operations: int
    gpu_ns: int


@dataclass(frozen=True, slots=True)
class Activity:
    """gpus: by process and number. ranges, api, shapes: the largest first; empty if the profile has none. critical: the
    operations on the critical path, if several streams had work. memory: the allocator's memory."""

    path: Path
    form: str
    gpu: str | None
    gpus: tuple[GpuActivity, ...]
    ranges: tuple[RangeActivity, ...]
    api: tuple[ApiSum, ...]
    shapes: tuple[LaunchShape, ...]
    unlinked: int
    warnings: tuple[str, ...]
    critical: tuple[PathRow, ...] = ()
    memory: tuple[MemoryUse, ...] = ()


def activity_of(profile: Profile) -> Activity:
    """DerbyError for a profile that has sums only."""
    states: dict[str, _Gpu] = {}
    places: dict[tuple[int, int], _Gpu] = {}
    waits = _Waits(profile.waits())
    inside: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    early, earliest = 0, 0
    for span, launch, _ in profile.launched():
        if launch is not None and launch > span.start_ns:
            early, earliest = early + 1, max(earliest, launch - span.start_ns)
        place = span.process, span.device
        state = places.get(place)
        if state is None:
            state = places[place] = states.setdefault(profile.gpu_of(*place), _Gpu(*place))
            expect_few(str(profile.path), "GPUs", len(states))
        state.take(span, launch, waits)
        for name in {unnumbered(name) for name in span.ranges}:
            tally = inside[name]
            tally[0] += 1
            tally[1] += span.end_ns - span.start_ns
    several = len({state.process for state in states.values()}) > 1
    ordered = sorted(states.values(), key=lambda state: (state.process, state.device))
    return Activity(
        profile.path,
        profile.form,
        profile.gpu,
        tuple(state.finished(gpu_label(state.process, state.device, several)) for state in ordered),
        _ranges(profile, inside),
        tuple(profile.api_sums()),
        tuple(profile.launch_shapes()),
        profile.unlinked_launches,
        tuple(dict.fromkeys((*profile.warnings, *_clocks(early, earliest)))),
        critical_path(profile),
        tuple(profile.memory()),
    )


def _clocks(early: int, by_ns: int) -> Iterator[str]:
    """early: operations that start before their launch, at most by by_ns."""
    if early:
        told = counted(early, "operation starts", "operations start")
        yield (
            f"{told} before the launch, by up to {by_ns / 1e3:.1f} us: "
            "the clocks of host and GPU differ, so launch, queue and the causes of idle time may be wrong"
        )


def _ranges(profile: Profile, inside: dict[str, list[int]]) -> tuple[RangeActivity, ...]:
    host: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for each in profile.range_instances():
        tally = host[unnumbered(each.name)]
        tally[0] += 1
        tally[1] += each.end_ns - each.start_ns
    found = [RangeActivity(name, *host.get(name, (0, 0)), *inside.get(name, (0, 0))) for name in {**host, **inside}]
    return tuple(sorted(found, key=lambda each: (-each.gpu_ns, -each.host_ns, each.name)))


class _Waits:
    """The host's waiting calls, process by process."""

    def __init__(self, waits: list[tuple[int, int, int]]) -> None:
        self.ends: dict[int, list[int]] = defaultdict(list)
        for process, _, end in sorted(waits, key=lambda each: each[2]):
            self.ends[process].append(end)

    def between(self, process: int, first: int, last: int) -> bool:
        """Whether a call ended between `first` and `last`: then it was waiting when the gap began, or began in the
        gap."""
        ends = self.ends.get(process, [])
        place = bisect_left(ends, first)
        return place < len(ends) and ends[place] <= last


@dataclass(slots=True)
class _Gpu:
    process: int
    device: int
    first: int | None = None
    end: int = 0
    busy: int = 0
    before: bool = False  # whether the operation that ended last communicates
    idle: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    gaps: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    communication: array[int] = field(default_factory=lambda: array("q"))  # start, end, start, end ...
    computing: array[int] = field(default_factory=lambda: array("q"))
    launches: array[int] = field(default_factory=lambda: array("q"))
    starts: array[int] = field(default_factory=lambda: array("q"))
    operations: int = 0

    def take(self, span: Span, launch: int | None, waits: _Waits) -> None:
        start, end = span.start_ns, span.end_ns
        communicates = moves_data(span)
        self.operations += 1
        if self.first is None:
            self.first = self.end = start
        if start > self.end:
            cause = self._cause(span, launch, communicates, waits)
            self.idle[cause] += start - self.end
            self.gaps[cause] += 1
        if end > self.end:
            self.busy += end - max(start, self.end)
            self.end, self.before = end, communicates
        if end > start:
            (self.communication if communicates else self.computing).extend((start, end))
        if launch is not None:
            self.launches.append(launch)
            self.starts.append(start)

    def _cause(self, span: Span, launch: int | None, communicates: bool, waits: _Waits) -> str:
        if launch is None:
            return "unknown"
        if launch >= self.end:
            return "synchronisation" if waits.between(span.process, self.end, launch) else "host late"
        return "communication" if communicates or self.before else "dependency"

    def finished(self, label: str) -> GpuActivity:
        communication, computing = _union(self.communication), _union(self.computing)
        return GpuActivity(
            label,
            self.process,
            self.device,
            self.operations,
            self.end - (self.first or 0),
            self.busy,
            self.idle,
            self.gaps,
            intervals.length(communication),
            intervals.length(computing),
            intervals.common(communication, computing),
            *self._launched(),
        )

    def _launched(self) -> tuple[float | None, float | None, float | None, int | None]:
        """Median and 95th percentile of the time from launch to start; median and maximum of the operations launched
        but not started at each launch."""
        if not self.launches:
            return None, None, None, None
        launches, starts = np.frombuffer(self.launches, np.int64), np.frombuffer(self.starts, np.int64)
        waited = starts - launches
        ahead = np.arange(len(launches)) - np.searchsorted(np.sort(starts), np.sort(launches), side="right")
        waiting = np.maximum(ahead, 0)
        return (
            float(np.median(waited)),
            float(np.percentile(waited, 95)),
            float(np.median(waiting)),
            int(waiting.max()),
        )


def moves_data(span: Span) -> bool:
    """Whether an operation moves data between GPUs: a collective's kernel, or a copy from peer to peer."""
    return _communicates(span.name) if span.kind is SpanKind.KERNEL else "Peer" in span.name


@lru_cache(maxsize=100_000)
def _communicates(kernel: str) -> bool:
    return attribute(kernel).role is Role.COMMUNICATION


def _union(times: array[int]) -> np.ndarray:
    """Disjoint stretches [n, 2], from start, end, start, end ..."""
    pairs = np.frombuffer(times, np.int64).reshape(-1, 2)
    return intervals.union(pairs[:, 0], pairs[:, 1])
