"""Traces of torch.profiler (Kineto's Chrome trace, .json or .json.gz).

GPU work has the categories kernel, gpu_memcpy and gpu_memset; its launch is the cuda_runtime or cuda_driver event with
the same `correlation`, and the ranges are the user_annotation events (record_function, NVTX) open on that thread then.
A trace of the GPU alone has only gpu_user_annotation events, which lie on the streams; these are taken by time.

Unlike an SQLite export a trace is read at once: 0.5 kB a GPU operation stays in memory, the rest is dropped in reading.
"""

from __future__ import annotations

import gzip
import json
import statistics
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path

import numpy as np

from kernelderby.errors import DerbyError
from kernelderby.profile.sources.operations import operation
from kernelderby.profile.sources.sqlite.launches import OpenRanges, Paths, Timeline
from kernelderby.profile.spans import ApiSum, KernelSum, Profile, Span, SpanKind

_GPU = {"kernel": SpanKind.KERNEL, "gpu_memcpy": SpanKind.MEMCPY, "gpu_memset": SpanKind.MEMSET,
        "memcpy": SpanKind.MEMCPY, "memset": SpanKind.MEMSET}  # the short ones: torch before 2.0
_CALLS = {"cuda_runtime", "cuda_driver", "runtime", "driver"}
_RANGES, _GPU_RANGES = "user_annotation", "gpu_user_annotation"
_KEPT = {*_GPU, *_CALLS, _RANGES, _GPU_RANGES}
_ARGS = {"correlation", "device", "stream", "bytes"}
_MEND = "write it again with `profiler.export_chrome_trace(...)`"


@dataclass(slots=True)
class Kineto(Profile):
    _spans: list[Span] = field(default_factory=list, repr=False)
    _calls: list[ApiSum] = field(default_factory=list, repr=False)

    def spans(self) -> Iterator[Span]:
        return iter(self._spans)

    def sums(self) -> list[KernelSum]:
        return sum_spans(self._spans)

    def api_sums(self) -> list[ApiSum]:
        return list(self._calls)


def sum_spans(spans: Iterable[Span]) -> list[KernelSum]:
    """One sum a kind and name, largest total first, as the SQLite source computes them."""
    durations, sizes = defaultdict(list), defaultdict(int)
    for span in spans:
        durations[span.kind, span.name].append(span.end_ns - span.start_ns)
        sizes[span.kind, span.name] += span.bytes
    sums = [
        KernelSum(
            kind, name, len(each), sum(each), statistics.median(each), min(each), max(each),
            statistics.stdev(each) if len(each) > 1 else 0.0, None if kind == SpanKind.KERNEL else sizes[kind, name],
        )
        for (kind, name), each in durations.items()
    ]
    return sorted(sums, key=lambda each: (-each.total_ns, each.instances, each.name))


def open_kineto(path: Path, packed: bool = False) -> Kineto:
    """DerbyError for JSON that is truncated, no trace, or has no GPU work."""
    document = _load(path, packed)
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise DerbyError(f"{path}: JSON, but no trace of torch.profiler (no traceEvents in it)")
    events = [event for event in events if isinstance(event, dict) and event.get("ph") == "X"]
    try:
        profile = Kineto(path, "torch.profiler trace", _gpu(document), has_events=True)
        _fill(profile, events)
    except (KeyError, TypeError, ValueError, InvalidOperation) as error:
        raise DerbyError(f"{path}: an event of the trace is malformed ({error!r}); {_MEND}") from None
    if not profile._spans:
        raise DerbyError(f"{path}: no GPU work in the trace; profile code that uses the GPU, activities=[CPU, CUDA]")
    return profile


def _load(path: Path, packed: bool) -> object:
    """The document without the events that are not needed. Numbers with a fraction stay text: as a float, a time of
    1.7e15 us has no nanoseconds left."""
    try:
        with gzip.open(path, "rt", encoding="utf-8-sig") if packed else path.open(encoding="utf-8-sig") as file:
            return json.load(file, object_hook=_prune, parse_float=str)
    except json.JSONDecodeError as error:
        raise DerbyError(f"{path}:{error.lineno}: no valid JSON ({error.msg}), cut off or damaged; {_MEND}") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DerbyError(f"{path}: cannot be read whole ({error}); copy the trace or {_MEND}") from None
    except RecursionError:
        raise DerbyError(f"{path}: JSON, but no trace of torch.profiler (nested too deeply)") from None


def _prune(value: dict) -> dict | None:
    if "ph" in value:
        return value if value["ph"] == "X" and str(value.get("cat", "")).lower() in _KEPT else None
    return value if "traceEvents" in value or "name" in value else {key: value[key] for key in _ARGS if key in value}


def _gpu(document: object) -> str | None:
    properties = document.get("deviceProperties") if isinstance(document, dict) else None
    names = [each["name"] for each in properties or () if isinstance(each, dict) and each.get("name")]
    return ", ".join(dict.fromkeys(names)) or None


def _fill(profile: Kineto, events: list[dict]) -> None:
    launches, calls, annotations, gpu_annotations, work = {}, {}, defaultdict(list), defaultdict(list), []
    for event in events:
        category = str(event["cat"]).lower()
        start = _nanoseconds(event["ts"])
        end = start + max(_nanoseconds(event.get("dur", 0)), 0)
        args = event.get("args") or {}
        if category in _GPU:
            work.append((start, end, category, event, args))
        elif category in _CALLS:
            count, total = calls.get(event["name"], (0, 0))
            calls[event["name"]] = count + 1, total + end - start
            known = launches.get(args.get("correlation"))
            if args.get("correlation") and (known is None or start < known[0]):
                launches[args["correlation"]] = start, event.get("pid"), event.get("tid")
        elif category == _RANGES:
            annotations[event.get("pid"), event.get("tid")].append((start, end, event["name"]))
        else:
            gpu_annotations[event.get("pid"), event.get("tid")].append((start, end, event["name"]))
    paths = Paths()
    threads = {thread: _timeline(ranges, paths) for thread, ranges in annotations.items()}
    streams = {} if threads else {stream: _timeline(ranges, paths) for stream, ranges in gpu_annotations.items()}
    unlinked = 0
    for start, end, category, event, args in work:
        launch = launches.get(args.get("correlation"))
        unlinked += launch is None and _GPU[category] == SpanKind.KERNEL
        if streams:
            timeline, time = streams.get((event.get("pid"), event.get("tid"))), start
        else:
            timeline, time = (threads.get(launch[1:]), launch[0]) if launch else (None, 0)
        ranges = paths.names[int(timeline.at(np.array([time]))[0])] if timeline else ()
        profile._spans.append(_span(start, end, _GPU[category], event, args, launch, ranges))
    profile._spans.sort(key=lambda span: (span.start_ns, span.end_ns))
    profile.unlinked_launches = unlinked
    sums = [ApiSum(name, count, total) for name, (count, total) in calls.items()]
    profile._calls = sorted(sums, key=lambda each: -each.total_ns)


def _span(start: int, end: int, kind: SpanKind, event: dict, args: dict, launch: tuple | None, ranges: tuple) -> Span:
    name = event["name"] if kind == SpanKind.KERNEL else operation(event["name"])[1]
    span = Span(kind, name, start, end, 0, _integer(args.get("device")), _integer(args.get("stream")), ranges,
                _integer(args.get("bytes")))
    return replace(span, process=_integer(launch[1])) if launch else span


def _timeline(ranges: list[tuple[int, int, str]], paths: Paths) -> Timeline:
    sweep = OpenRanges(paths)
    for start, end, name in sorted(ranges, key=lambda each: (each[0], -each[1])):
        if end > start:
            sweep.push(start, end, name)
    return sweep.finish()


def _nanoseconds(microseconds: int | str) -> int:
    return microseconds * 1000 if isinstance(microseconds, int) else round(Decimal(microseconds) * 1000)


def _integer(value: object) -> int:
    return value if isinstance(value, int) else int(value) if isinstance(value, str) and value.isdigit() else 0
