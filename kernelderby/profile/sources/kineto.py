"""Traces of torch.profiler (Kineto's Chrome trace, .json or .json.gz), and JAX's traces, which events.py brings into
the same form.

GPU work has the categories kernel, gpu_memcpy and gpu_memset. Its launch is the cuda_runtime or cuda_driver event with
the same `correlation`. Its ranges are the user_annotation events (record_function, NVTX) that were open on that thread
at the launch. A trace of the GPU alone has only gpu_user_annotation events, which lie on the streams and are matched by
time. Unlike an SQLite export, a trace is read at once: 0.5 kB per GPU operation stays in memory.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from kernelderby.errors import DerbyError
from kernelderby.profile.names import fits
from kernelderby.profile.operators import OPERATORS, CapturedGraph, LaunchOrigin
from kernelderby.profile.sources.events import CALLS, CUDA_MEMORY, GPU, MEND, MODULES, RANGES, load
from kernelderby.profile.sources.in_memory import NO_TIME, InMemoryProfile, whole_number
from kernelderby.profile.sources.launches import HostOperators
from kernelderby.profile.sources.operations import operation
from kernelderby.profile.sources.ranges import Paths, RangeTimeline, swept_timeline
from kernelderby.profile.sources.rocprof import TOOL, open_rocprof_json
from kernelderby.profile.spans import ApiSum, Launched, MemoryUse, Profile, RangeInstance, Span, SpanKind, is_waiting
from kernelderby.store.counts import counted

_MOST_BYTES = 1 << 60
_DIGITS = 20  # of a time in us; a number of a million digits would take long
_NUMBER = re.compile(r"[0-9]{1,20}")


class KinetoProfile(InMemoryProfile):
    memory_use: tuple[MemoryUse, ...] = ()  # times as in the file

    def __init__(self, path: Path, gpu: str | None, events: list[dict[str, Any]], operators: bool = False) -> None:
        """events: the events of phase X that events.load keeps. KeyError, TypeError or ValueError for a malformed
        one."""
        super().__init__(path, "torch.profiler trace", gpu)
        host, work = _Host(), []
        host.operators.is_wanted = operators
        twice = _Twice()
        for event in events:
            category = str(event["cat"]).lower()
            if (category in GPU or category in CALLS) and twice.is_known(event):
                continue
            if category in GPU:
                work.append((event, GPU[category]))
            else:
                host.take(event, category)
        self._calls = host.api_sums()
        self._captured = host.operators.captured_graphs(host.ranges)
        self._waits = sorted(host.waits, key=lambda each: each[1])
        self._ranges = [
            RangeInstance(_integer(place[0]), start, end, name)
            for place, ranges in (host.ranges or host.gpu_ranges).items()
            for start, end, name in ranges
        ]
        self._unlinked = 0
        self._place(work, host)
        if twice.count:
            told = counted(twice.count, "GPU operation or call", "GPU operations and calls")
            self.warnings.append(f"left out: {told} that the file has twice")

    def _place(self, work: list[tuple[dict[str, Any], SpanKind]], host: _Host) -> None:
        """Adds the GPU work as spans in order of start, each with the ranges around its launch."""
        nesting, lone = _Nesting(host), host.only_process()
        found: list[tuple[Span, tuple[int | None, int | None], LaunchOrigin, tuple[str, ...]]] = []
        for event, kind in work:
            args = _args(event)
            start, duration, name = _nanoseconds(event.get("ts")), _duration(event), _name(event)
            launch = host.launch(args.get("correlation"), start)
            if kind is SpanKind.KERNEL:  # ROCm 7.1 writes copies as kernels
                kind, name = operation(name)
            if start is None or duration is None:
                self.untimed += 1
                continue
            self._unlinked += launch is None and kind == SpanKind.KERNEL
            process = _integer(launch[1]) if launch else lone  # without a launch: of the only process
            span = _span(name, start, start + duration, kind, args, process, nesting.around(event, start, launch))
            issued = host.operators.issued(args, launch)
            found.append((span, (launch[0], launch[3]) if launch else (None, None), issued, nesting.modules(launch)))
            if kind is SpanKind.KERNEL and (shape := _shape(args)):
                self.count_shape(duration, name, *shape)
        found.sort(key=lambda each: (each[0].start_ns, each[0].end_ns))
        self._modules = [each[3] for each in found] if host.modules else []
        self.held = [each[0] for each in found]
        self.settle()
        self._launches = [each[1] for each in found]
        self._issued = [each[2] for each in found]
        if host.untimed:
            told = counted(host.untimed, "call or range", "calls or ranges")
            self.warnings.append(f"left out: {told} without valid times")
        if host.is_shared:
            told = "processes gave the same ids to their launches (traces merged into one?); give each trace alone"
            self.warnings.append(f"which launch belongs to which kernel is not known: several {told}")
        self.warn_unlinked(self._unlinked)

    def launched(self) -> Iterator[Launched]:
        return ((span, *launch) for span, launch in zip(self.held, self._launches, strict=True))

    def modules(self) -> list[tuple[str, ...]]:
        return self._modules

    def issued(self) -> Iterator[LaunchOrigin]:
        return iter(self._issued)

    def captured_graphs(self) -> list[CapturedGraph]:
        return list(self._captured)

    def waits(self) -> list[tuple[int, int, int]]:
        return list(self._waits)

    def memory(self) -> list[MemoryUse]:
        """Times from the first operation."""
        first = self.held[0].start_ns if self.held else 0
        return [replace(each, peak_at_ns=each.peak_at_ns - first) for each in self.memory_use]

    def range_instances(self, pattern: re.Pattern[str] | None = None) -> list[RangeInstance]:
        found = [each for each in self._ranges if pattern is None or fits(pattern, each.name)]
        return sorted(found, key=lambda each: (each.start_ns, each.end_ns))

    def api_sums(self) -> list[ApiSum]:
        return list(self._calls)

    @property
    def unlinked_launches(self) -> int:
        return self._unlinked


def open_kineto(path: Path, packed: bool = False, operators: bool = False) -> Profile:
    """operators: with the framework's operators (issued()); a trace of a graph's capture then needs no GPU work.
    DerbyError if the JSON is truncated, is not a trace, or has no GPU work."""
    document, found = load(path, packed, operators)
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if isinstance(document, dict) and TOOL in document:
        return open_rocprof_json(path, packed)
    if not isinstance(events, list):
        raise DerbyError(f"{path}: JSON, but no trace of torch.profiler (no traceEvents in it); {MEND}")
    kept = [event for event in events if isinstance(event, dict)]
    events = [event for event in kept if event.get("ph") == "X"]
    try:
        profile = KinetoProfile(path, _gpu(document), events, operators)
        profile.compute_capability = _capability(document)
        profile.form = "JAX trace" if found.is_xla else profile.form
        held = [(_nanoseconds(event.get("ts")), _args(event)) for event in kept if event.get("ph") == "i"]
        profile.memory_use = tuple(_memory_of((time, args) for time, args in held if time is not None))
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise DerbyError(f"{path}: an event of the trace is malformed ({error!r}); {MEND}") from None
    if found.halves:
        told = counted(found.halves, "GPU operation")
        profile.warnings.append(f"left out: {told} in two halves (ph B and E); write whole events (ph X)")
    if not profile.captured_graphs():
        profile.expect_work("profile code that uses the GPU, activities=[CPU, CUDA]", "the trace")
    return profile


def _gpus(document: object) -> list[dict[str, Any]]:
    properties = document.get("deviceProperties") if isinstance(document, dict) else None
    return [each for each in properties if isinstance(each, dict)] if isinstance(properties, list) else []


def _capability(document: object) -> str | None:
    found = {(each.get("computeMajor"), each.get("computeMinor")) for each in _gpus(document)}
    [(major, minor)] = found if len(found) == 1 else [(None, None)]
    return f"{major}.{minor}" if _is_version(major) and _is_version(minor) else None


def _is_version(value: object) -> bool:
    return type(value) is int and 0 <= value < 1000


def _gpu(document: object) -> str | None:
    names = [str(each["name"]) for each in _gpus(document) if each.get("name")]
    return ", ".join(dict.fromkeys(names)) or None


def _memory_of(events: Iterable[tuple[int, dict[str, Any]]]) -> list[MemoryUse]:
    """The memory use of each GPU, from the allocator's [memory] events (time in ns, arguments). Events of hosts, and
    invalid numbers of bytes, do not count."""
    found: dict[int, MemoryUse] = {}
    for time, args in sorted(events, key=lambda each: each[0]):
        device, held, kept = (args.get(name) for name in ("Device Id", "Total Allocated", "Total Reserved"))
        if args.get("Device Type") != CUDA_MEMORY or type(device) is not int or type(held) is not int:
            continue
        if not 0 <= held < _MOST_BYTES or device < 0:
            continue
        known = found.get(device, MemoryUse(0, device, -1, time, held))
        peak, at = max((known.peak_bytes, known.peak_at_ns), (held, time), key=lambda each: each[0])
        reserved = [each for each in (kept, known.reserved_bytes) if type(each) is int and 0 <= each < _MOST_BYTES]
        found[device] = MemoryUse(0, device, peak, at, held, max(reserved, default=None))
    return [found[device] for device in sorted(found)]


@dataclass(slots=True)
class _Host:
    """The host's activity. launches: correlation id -> (start, process, thread, end) of its first call. repeated: all
    calls of an id that has several. calls: name -> (count, ns). ranges, gpu_ranges, modules: (process, thread) -> list
    of (start, end, name)."""

    launches: dict[Any, tuple[Any, ...]] = field(default_factory=dict[str, Any])
    repeated: dict[Any, list[tuple[Any, ...]]] = field(default_factory=dict)
    outermost: dict[Any, list[tuple[Any, ...]]] = field(default_factory=dict)  # of repeated; see _outermost
    calls: dict[str, tuple[int, int]] = field(default_factory=dict)
    waits: list[tuple[int, int, int]] = field(default_factory=list)
    untimed: int = 0
    is_shared: bool = False  # an id of GPU work has calls of several processes
    operators: HostOperators = field(default_factory=HostOperators)
    ranges: dict[tuple[Any, ...], list[Any]] = field(default_factory=lambda: defaultdict(list[Any]))
    gpu_ranges: dict[tuple[Any, ...], list[Any]] = field(default_factory=lambda: defaultdict(list[Any]))
    modules: dict[tuple[Any, ...], list[Any]] = field(default_factory=lambda: defaultdict(list[Any]))

    def take(self, event: dict[str, Any], category: str) -> None:
        start, duration, name = _nanoseconds(event.get("ts")), _duration(event) or 0, _name(event)
        place = event.get("pid"), event.get("tid")
        if start is None:
            self.untimed += 1
            return
        if category in OPERATORS:
            self.operators.take(place, name, start, duration, _args(event))
        elif category in CALLS:
            count, total = self.calls.get(name, (0, 0))
            self.calls[name] = count + 1, total + duration
            correlation = _args(event).get("correlation")
            self.operators.launched(place, name, start, _args(event))
            if correlation:
                call = start, *place, start + duration
                known = self.launches.setdefault(correlation, call)
                if known is not call:
                    self.repeated.setdefault(correlation, [known]).append(call)
                    self.launches[correlation] = min(known, call, key=lambda each: each[0])
            if is_waiting(name):
                self.waits.append((_integer(place[0]), start, start + duration))
        elif category == MODULES:
            self.modules[place].append((start, start + duration, name))
        else:
            ranges = self.ranges if category == RANGES else self.gpu_ranges
            ranges[place].append((start, start + duration, name))

    def launch(self, correlation: Any, start: int | None) -> tuple[Any, ...] | None:
        """The call that launched the work with this id and start. The driver's call inside the runtime's has the same
        id. Ids can come again: then the last call before the work launched it. Ids of several processes (traces merged
        into one file) lead to no call, because GPU work does not name its process."""
        if correlation not in self.repeated or start is None:
            return self.launches.get(correlation)
        calls = self.outermost.get(correlation)
        if calls is None:
            calls = self.outermost[correlation] = _outermost(self.repeated[correlation])
        self.is_shared |= not calls
        return calls[max(bisect_right(calls, start, key=lambda each: each[0]) - 1, 0)] if calls else None

    def only_process(self) -> int:
        """The only process that launched work; 0 if several did, or none."""
        processes = {launch[1] for launch in self.launches.values()}
        return _integer(processes.pop()) if len(processes) == 1 else 0

    def api_sums(self) -> list[ApiSum]:
        sums = [ApiSum(name, count, total) for name, (count, total) in self.calls.items()]
        return sorted(sums, key=lambda each: -each.total_ns)


def _outermost(calls: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Those that begin after the ones before have ended, in order of start; none if several processes made them."""
    found: list[tuple[Any, ...]] = []
    for call in sorted(calls, key=lambda each: each[0]):
        if found and call[1] != found[0][1]:
            return []
        if not found or call[0] >= found[-1][3]:
            found.append(call)
    return found


class _Twice:
    """Finds GPU operations and calls that a file has twice, such as traces merged that overlap: nothing else has the
    same id, and runs at the same time in the same place. count: number of those found."""

    def __init__(self) -> None:
        self.count = 0
        self._known: set[tuple[object, ...]] = set()

    def is_known(self, event: dict[str, Any]) -> bool:
        correlation = _args(event).get("correlation")
        if not correlation or not event.get("dur"):
            return False
        key = (correlation, *(event.get(each) for each in ("ts", "dur", "pid", "tid", "name")))
        try:
            is_known = key in self._known
            self._known.add(key)
        except TypeError:  # a list is no id
            return False
        self.count += is_known
        return is_known


class _Nesting:
    """The ranges around a GPU operation: on its launching thread, or in a trace of the GPU alone on its stream."""

    def __init__(self, host: _Host) -> None:
        self._paths = Paths()
        self._of_threads = self._timelines(host.ranges)
        self._of_modules = self._timelines(host.modules)
        self._of_streams = {} if self._of_threads else self._timelines(host.gpu_ranges)

    def _timelines(self, ranges: dict[tuple[Any, ...], list[Any]]) -> dict[tuple[Any, ...], RangeTimeline]:
        found = {}
        for place, own in ranges.items():
            lasting = sorted((each for each in own if each[1] > each[0]), key=lambda each: (each[0], -each[1]))
            found[place] = swept_timeline(lasting, self._paths)
        return found

    def _at(self, timeline: RangeTimeline | None, time: int) -> tuple[str, ...]:
        return self._paths.names[int(timeline.at(np.array([time]))[0])] if timeline else ()

    def modules(self, launch: tuple[Any, ...] | None) -> tuple[str, ...]:
        """The nn.Modules open on the launching thread at the launch."""
        return self._at(self._of_modules.get(launch[1:3]), launch[0]) if launch else ()

    def around(self, event: dict[str, Any], start: int, launch: tuple[Any, ...] | None) -> tuple[str, ...]:
        if self._of_streams:
            return self._at(self._of_streams.get((event.get("pid"), event.get("tid"))), start)
        return self._at(self._of_threads.get(launch[1:3]), launch[0]) if launch else ()


def _span(
    name: str, start: int, end: int, kind: SpanKind, args: dict[str, Any], process: int, ranges: tuple[str, ...]
) -> Span:
    name = name if kind == SpanKind.KERNEL else operation(name)[1]
    device, stream, moved = (_integer(args.get(each)) for each in ("device", "stream", "bytes"))
    return Span(kind, name, start, end, process, device, stream, ranges, moved)


def _shape(args: dict[str, Any]) -> tuple[Any, ...] | None:
    """Grid, block, registers and shared memory; None if the trace has no grid."""
    grid, block = args.get("grid"), args.get("block")
    if not all(isinstance(each, list) and len(each) == 3 for each in (grid, block)):
        return None
    numbers = [_integer(value) for value in (*grid, *block)]  # type: ignore[misc]
    more = (args.get(name) for name in ("registers per thread", "shared memory"))
    return tuple(numbers[:3]), tuple(numbers[3:]), *(each if isinstance(each, int) else None for each in more)


def _name(event: dict[str, Any]) -> str:
    if not isinstance(event["name"], str):
        raise TypeError(f"name {event['name']!r:.40} is no text")
    return event["name"]


def _duration(event: dict[str, Any]) -> int | None:
    """The event's duration; None if it is missing or below 0."""
    duration = _nanoseconds(event.get("dur"))
    return None if duration is None or duration < 0 else duration


def _nanoseconds(microseconds: object) -> int | None:
    """The time in ns; None if the value is not a possible time (missing, not a number, NaN, infinite or too large)."""
    if not isinstance(microseconds, (int, str)) or isinstance(microseconds, bool):
        return None
    if isinstance(microseconds, str) and not microseconds.isascii():  # Decimal accepts digits of every script
        return None
    try:
        if isinstance(microseconds, int):
            return microseconds * 1000 if abs(microseconds) < NO_TIME // 1000 else None
        exact = Decimal(microseconds)
        found = round(exact * 1000) if exact.adjusted() < _DIGITS else NO_TIME
    except (ArithmeticError, ValueError):
        return None
    return found if abs(found) < NO_TIME else None


def _args(event: dict[str, Any]) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _integer(value: object) -> int:
    """0 for what is none, or does not fit into 64 bits."""
    return whole_number(int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value)
