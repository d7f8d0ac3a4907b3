"""The data of every profile source: spans of GPU work in order, or only their sums.

An export with events (nsys SQLite, Kineto) can be walked span by span and is never loaded whole; a summary (nsys stats,
a copied table) has one row a kernel name. Verbs that need order say so when only sums are there.
"""

from __future__ import annotations

import re
import statistics
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from kernelderby.profile.names import unnumbered
from kernelderby.profile.operators import CapturedGraph, Issued, RangeCalls


class SpanKind(StrEnum):
    KERNEL = "kernel"
    MEMCPY = "memcpy"
    MEMSET = "memset"


@dataclass(slots=True)  # not frozen: that makes two million of them cost three seconds more
class Span:
    """One kernel, copy or memset on a GPU, which nobody changes. Times in ns on the profile's clock.

    name: demangled kernel name; of copies and memsets nsys's bracketed operation, "[CUDA memcpy Host-to-Device]".
    ranges: NVTX ranges that were open on the launching thread at launch, outermost first; empty when none is known.
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
    """All spans of one name. Statistics that a source does not give are None; bytes only for copies and memsets."""

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
    """By process and time, without those whose range lies in another one's."""
    kept: list[T] = []
    ends: dict[int, int] = {}
    ordered = sorted(found, key=lambda one: (range_of(one).process, range_of(one).start_ns, -range_of(one).end_ns))
    for one in ordered:
        each = range_of(one)
        if each.start_ns >= ends.get(each.process, each.start_ns):
            kept.append(one)
            ends[each.process] = each.end_ns
    return kept


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """All launches of one kernel name with one configuration. shared_bytes: static and dynamic together; None: not in
    the profile."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int | None
    shared_bytes: int | None
    instances: int
    total_ns: float


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What the framework's allocator held of one GPU's memory, in bytes: at most, when, and at the end. reserved: with
    what it keeps for later; None where the profile does not have it."""

    process: int
    device: int
    peak_bytes: int
    peak_at_ns: int
    last_bytes: int
    reserved_bytes: int | None = None


# A span, and the start and end of the call that launched it; None where the profile does not have it.
Launched = tuple[Span, int | None, int | None]


_SYNCHRONISE = re.compile(r"^(?:cu(?:da)?|hip)\w*(?:Synchronize|StreamWaitEvent)(?:_\w+)?$")
_VERSION = re.compile(r"(?:_v\d+|_ptsz|_ptds)+$")


def is_waiting(call: str) -> bool:
    """Whether a call of that name waits for the GPU."""
    return bool(_SYNCHRONISE.match(_VERSION.sub("", call)))


class Profile(ABC):
    """A profile file, open for reading. warnings: what a reader of the tables must know (printed with every table).

    form: what it is, in words ("nsys SQLite, schema 3.25.0"). gpu: name as the profile has it, None when it does not.
    has_events: whether spans() works; sums() always does. compute_capability: of that GPU ("9.0"), where the profile
    or its GPU's name tells it. whole_graphs: launches of CUDA graphs that were recorded without their kernels.
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
        """One row a (kind, name), largest total first."""

    def names(self) -> list[str]:
        """Every name in it."""
        return list(dict.fromkeys(row.name for row in self.sums()))

    def api_sums(self) -> list[ApiSum]:
        """Host time by CUDA API function, largest first; empty when the source has none."""
        return []

    def launched(self) -> Iterator[Launched]:
        """As spans(), each with its launch."""
        return ((span, None, None) for span in self.spans())

    def issued(self) -> Iterator[Issued]:
        """Beside spans(): the framework's operators around each launch. Of ranges only those that tell their sizes;
        of a torch.profiler trace only where it was opened with operators. Kernels that follow one another in ranges of
        the same names are of one call."""
        calls = RangeCalls()
        for span in self.spans():
            yield Issued(calls.chain(span.process, span.ranges))

    def captured_graphs(self) -> list[CapturedGraph]:
        """The graphs whose capture the file shows, in order."""
        return []

    def waits(self) -> list[tuple[int, int, int]]:
        """(process, start, end) of the host's calls that wait for the GPU, by start."""
        return []

    def range_instances(self, pattern: re.Pattern[str] | None = None) -> list[RangeInstance]:
        """The ranges on the host whose name fits, by start; those that nobody closed are left out."""
        return []

    def no_range(self, within: str) -> str:
        """For the error where an expression fits no range."""
        names = sorted({unnumbered(each.name) for each in self.range_instances()})
        there = f"there are {', '.join(names[:8])}" if names else "the profile has no ranges"
        return f"{self.path}: no range fits '{within}'; {there}"

    def modules(self) -> list[tuple[str, ...]]:
        """Of each span in order the nn.Modules around its launch, "nn.Module: Linear_3", outermost first; empty where
        the profile has none."""
        return []

    def launch_shapes(self) -> list[LaunchShape]:
        """Grid, block, registers and shared memory of the kernels, largest time first; empty where it has none."""
        return []

    def memory(self) -> list[MemoryUse]:
        """By process and GPU; empty where the profile has none (torch.profiler's has it with profile_memory)."""
        return []

    def restricted(
        self, window: tuple[int, int] | None, device: int | None, process: int | None, stream: int | None
    ) -> Profile | None:
        """Only what a Selection's fields of these names take, where the source can leave the rest unread; else None."""
        return None

    def gpu_of(self, process: int, device: int) -> str:
        """Which GPU a process means by a device number: a text that is the same only for the same GPU."""
        return f"{process}:{device}"

    def warn_unlinked(self, count: int) -> None:
        """Once: kernels whose launch is missing cannot be placed in the ranges around it."""
        told = "kernels have" if count != 1 else "kernel has"
        if count:
            self.warn(f"{count:,} {told} no launch in the file, so it is not known in which ranges they ran")

    def warn(self, warning: str) -> None:
        """Once."""
        if warning not in self.warnings:
            self.warnings.append(warning)

    @property
    def unlinked_launches(self) -> int:
        """Kernels whose launch is not in the profile, which therefore have no ranges."""
        return 0


def sum_spans(spans: Iterable[Span]) -> list[KernelSum]:
    """One sum a kind and name, largest total first."""
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
