"""The data that every profile source gives: spans of GPU work in order, or only their sums.

An export with events (nsys SQLite, Kineto) can be walked span by span. A summary (nsys stats, a copied table) has one
row per kernel name. Verbs that need an order give an error for a profile with sums only.
"""

from __future__ import annotations

import re
import statistics
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from kernelderby.profile.names import unnumbered
from kernelderby.profile.operators import CapturedGraph, LaunchOrigin, RangeCalls


class SpanKind(StrEnum):
    KERNEL = "kernel"
    MEMCPY = "memcpy"
    MEMSET = "memset"


@dataclass(slots=True)  # not frozen: a frozen one costs three seconds more for two million spans
class Span:
    """One kernel, copy or memset on a GPU. Treat it as immutable. Times in ns on the profile's clock.

    name: demangled kernel name; for copies and memsets nsys's bracketed operation, "[CUDA memcpy Host-to-Device]".
    ranges: NVTX ranges open on the launching thread at launch, outermost first; empty if none is known.
    """

    kind: SpanKind
    name: str
    start_ns: int
    end_ns: int
    process: int = 0
    device: int = 0
    stream: int = 0
    ranges: tuple[str, ...] = ()
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class KernelSum:
    """All spans of one name. Statistics that a source lacks are None. Only copies and memsets have bytes."""

    kind: SpanKind
    name: str
    instances: int
    total_ns: float
    median_ns: float | None = None
    min_ns: float | None = None
    max_ns: float | None = None
    stddev_ns: float | None = None
    bytes: float | None = None

    @property
    def average_ns(self) -> float:
        return self.total_ns / self.instances if self.instances else 0.0


@dataclass(frozen=True, slots=True)
class ApiSum:
    """All calls of one CUDA API function, host time."""

    name: str
    calls: int
    total_ns: float


@dataclass(frozen=True, slots=True)
class RangeInstance:
    """One NVTX or record_function range on the host, from start to end."""

    process: int
    start_ns: int
    end_ns: int
    name: str


T = TypeVar("T")


def outermost(found: Iterable[T], range_of: Callable[[T], RangeInstance]) -> list[T]:
    """The items by process and time, without those whose range lies inside the range of another."""
    kept: list[T] = []
    ends: dict[int, int] = {}
    ordered = sorted(found, key=lambda one: (range_of(one).process, range_of(one).start_ns, -range_of(one).end_ns))
    for one in ordered:
        each = range_of(one)
        if each.start_ns >= ends.get(each.process, each.start_ns):
            kept.append(one)
            ends[each.process] = each.end_ns
    return kept


class RangesByTime:
    """The ranges of each process by time. A moment belongs to the last one that began before it and still lasts."""

    def __init__(self, ranges: Iterable[RangeInstance]) -> None:
        self.of_process: dict[int, list[RangeInstance]] = defaultdict(list)
        for each in sorted(ranges, key=lambda one: (one.process, one.start_ns)):
            self.of_process[each.process].append(each)
        self._starts = {process: [each.start_ns for each in own] for process, own in self.of_process.items()}

    def place(self, process: int, moment: int) -> int:
        """The place of the moment's range among those of the process; -1 outside all of them."""
        place = bisect_right(self._starts.get(process, ()), moment) - 1
        return place if place >= 0 and moment < self.of_process[process][place].end_ns else -1


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """All launches of one kernel name with one configuration. shared_bytes: static and dynamic together; None if the
    profile lacks it."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int | None
    shared_bytes: int | None
    instances: int
    total_ns: float


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory of one GPU held by the framework's allocator, in bytes: the maximum, its moment, and the end.
    reserved: including memory kept for later; None if the profile lacks it."""

    process: int
    device: int
    peak_bytes: int
    peak_at_ns: int
    last_bytes: int
    reserved_bytes: int | None = None


# A span, and the start and end of the call that launched it; None if the profile lacks the call.
Launched = tuple[Span, int | None, int | None]


_SYNCHRONISE = re.compile(r"^(?:cu(?:da)?|hip)\w*(?:Synchronize|StreamWaitEvent)(?:_\w+)?$")
_VERSION = re.compile(r"(?:_v\d+|_ptsz|_ptds)+$")


def is_waiting(call: str) -> bool:
    """Whether calls of that name wait for the GPU."""
    return bool(_SYNCHRONISE.match(_VERSION.sub("", call)))


class Profile(ABC):
    """A profile file, open for reading. warnings: lines that every table prints. form: the kind of file, in words
    ("nsys SQLite, schema 3.25.0"). gpu: the name in the profile, None without one. has_events: whether spans() works;
    sums() always does. compute_capability: of that GPU ("9.0"), from the profile or from the GPU's name, if known.
    whole_graphs: number of CUDA graph launches recorded without their kernels.
    """

    has_events = False
    compute_capability: str | None = None
    whole_graphs = 0

    def __init__(self, path: Path, form: str, gpu: str | None = None, warnings: Iterable[str] = ()) -> None:
        self.path, self.form, self.gpu, self.warnings = path, form, gpu, list(warnings)

    def spans(self) -> Iterator[Span]:
        """Every span in order of start (then of end). DerbyError for a source that has sums only."""
        raise NotImplementedError

    @abstractmethod
    def sums(self) -> list[KernelSum]:
        """One row per kind and name, largest total first."""

    def names(self) -> list[str]:
        """Every name in the profile."""
        return list(dict.fromkeys(row.name for row in self.sums()))

    def api_sums(self) -> list[ApiSum]:
        """Host time by CUDA API function, largest first; empty if the source has none."""
        return []

    def launched(self) -> Iterator[Launched]:
        """Like spans(), each with its launch."""
        return ((span, None, None) for span in self.spans())

    def issued(self) -> Iterator[LaunchOrigin]:
        """For each of spans() the framework's operators around its launch. Ranges count only if their names give sizes.
        A torch.profiler trace must have been opened with operators. Consecutive kernels in ranges of the same names
        belong to one call."""
        calls = RangeCalls()
        for span in self.spans():
            yield LaunchOrigin(calls.chain(span.process, span.ranges))

    def captured_graphs(self) -> list[CapturedGraph]:
        """The graphs whose capture is in the file, in order."""
        return []

    def waits(self) -> list[tuple[int, int, int]]:
        """(process, start, end) of the host's calls that wait for the GPU, sorted by start."""
        return []

    def range_instances(self, pattern: re.Pattern[str] | None = None) -> list[RangeInstance]:
        """The ranges on the host whose name matches, sorted by start. Ranges that were never closed are left out."""
        return []

    def no_range(self, within: str) -> str:
        """The text of the error for an expression that matches no range."""
        names = sorted({unnumbered(each.name) for each in self.range_instances()})
        if not names:
            mark = "torch.cuda.nvtx.range_push, or in torch.profiler's traces record_function"
            return f"{self.path}: has no ranges, so none fits '{within}'; mark the steps in the program with {mark}"
        return f"{self.path}: no range fits '{within}'; there are {', '.join(names[:8])}; name one with --within REGEX"

    def modules(self) -> list[tuple[str, ...]]:
        """For each span in order the nn.Modules around its launch, "nn.Module: Linear_3", outermost first. Empty if the
        profile has none."""
        return []

    def launch_shapes(self) -> list[LaunchShape]:
        """Grid, block, registers and shared memory of the kernels, largest time first; empty if the profile lacks
        them."""
        return []

    def memory(self) -> list[MemoryUse]:
        """The allocator's memory by process and GPU; empty if the profile lacks it (torch.profiler records it with
        profile_memory)."""
        return []

    def restricted(
        self, window: tuple[int, int] | None, device: int | None, process: int | None, stream: int | None
    ) -> Profile | None:
        """The part that a Selection's fields of these names take, if the source can leave the rest unread; otherwise
        None."""
        return None

    def gpu_of(self, process: int, device: int) -> str:
        """The GPU that a process means by a device number, as a text that is equal only for the same GPU."""
        return f"{process}:{device}"

    def warn_unlinked(self, count: int) -> None:
        """Warns once about kernels without a launch, since their ranges are unknown."""
        told = "kernels have" if count != 1 else "kernel has"
        if count:
            self.warn(f"{count:,} {told} no launch in the file, so it is not known in which ranges they ran")

    def warn(self, warning: str) -> None:
        """Once."""
        if warning not in self.warnings:
            self.warnings.append(warning)

    @property
    def unlinked_launches(self) -> int:
        """Number of kernels whose launch is not in the profile, and which therefore have no ranges."""
        return 0


def sum_spans(spans: Iterable[Span]) -> list[KernelSum]:
    """One sum per kind and name, largest total first."""
    durations: dict[tuple[SpanKind, str], list[int]] = defaultdict(list)
    sizes: dict[tuple[SpanKind, str], int] = defaultdict(int)
    for span in spans:
        durations[span.kind, span.name].append(span.end_ns - span.start_ns)
        sizes[span.kind, span.name] += span.bytes
    sums = [
        KernelSum(
            kind,
            name,
            len(each),
            sum(each),
            statistics.median(each),
            min(each),
            max(each),
            statistics.stdev(each) if len(each) > 1 else 0.0,
            None if kind == SpanKind.KERNEL else sizes[kind, name],
        )
        for (kind, name), each in durations.items()
    ]
    return sorted(sums, key=lambda each: (-each.total_ns, each.instances, each.name))
