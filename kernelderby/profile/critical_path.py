"""The operations that determine a GPU's time: the chain from the last one back to the first, across streams.

The predecessor of an operation is the one before it on its stream if that ended just before; otherwise an operation of
another stream that did; otherwise there is none, and the time between is a gap. Work beside the chain is hidden: making
it faster saves nothing. Profiles hold no dependencies, so the chain is a guess.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from kernelderby.profile.names import short_name
from kernelderby.profile.spans import Profile, SpanKind
from kernelderby.profile.timeline import LATE_NS, gpu_label


@dataclass(frozen=True, slots=True)
class PathRow:
    """All operations of one name on one GPU. path_ns: the part of their time on the chain, overlap counted once."""

    gpu: str
    name: str
    instances: int
    total_ns: int
    path_ns: int

    @property
    def hidden_ns(self) -> int:
        return self.total_ns - self.path_ns


def critical_path(profile: Profile) -> tuple[PathRow, ...]:
    """The rows of each GPU on which several streams had work, the longest on the path first; empty without such a
    GPU."""
    numbers: dict[str, int] = {}
    works: dict[str, tuple[tuple[int, int], list[array[int]]]] = {}
    for span in profile.spans():
        name = short_name(span.name) if span.kind is SpanKind.KERNEL else span.name
        columns = works.setdefault(
            profile.gpu_of(span.process, span.device), ((span.process, span.device), [array("q") for _ in range(4)])
        )[1]
        values = span.start_ns, span.end_ns, span.stream, numbers.setdefault(name, len(numbers))
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    names = list(numbers)
    several = len({place[0] for place, _ in works.values()}) > 1
    rows: list[PathRow] = []
    for (process, device), columns in works.values():
        start, end, stream, name_of = (np.frombuffer(column, np.int64) for column in columns)
        if len(np.unique(stream)) < 2:
            continue
        on_path = _on_path(start, end, stream)
        counts = np.bincount(name_of, minlength=len(names))
        totals = np.bincount(name_of, end - start, len(names))
        paths = np.bincount(name_of, on_path, len(names))
        rows += [
            PathRow(
                gpu_label(process, device, several), names[each], int(counts[each]), int(totals[each]), int(paths[each])
            )
            for each in np.flatnonzero(counts)
        ]
    return tuple(sorted(rows, key=lambda row: (row.gpu, -row.path_ns, -row.total_ns, row.name)))


def _on_path(start: np.ndarray, end: np.ndarray, stream: np.ndarray) -> np.ndarray:
    """For each operation, in order of start, its ns on the chain."""
    by_end = np.argsort(end, kind="stable")
    ends = end[by_end]
    before = np.full(len(start), -1, np.int64)
    last: dict[int, int] = defaultdict(lambda: -1)
    for number, each in enumerate(stream.tolist()):
        before[number] = last[each]
        last[each] = number
    taken = np.zeros(len(start), np.int64)
    at = int(by_end[-1])
    until = int(end[at])
    while at >= 0:
        begins = int(start[at])
        taken[at] = max(until - begins, 0)
        own = int(before[at])
        if own >= 0 and end[own] >= begins - LATE_NS:
            following = own
        else:
            place = int(np.searchsorted(ends, begins, side="right")) - 1
            following = int(by_end[place]) if place >= 0 else own
        if following >= at:  # never an operation after itself
            following = own
        until = min(begins, int(end[following])) if following >= 0 else 0
        at = following
    return taken
