"""What AMD's profilers write of each dispatch as CSV: rocprofv3's kernel_trace and memory_copy_trace (one file, or both
after each other), and the results.csv of the old rocprof.

A GPU is told by the number of its agent. With hardware counters a dispatch has a line a counter, and counts once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.profile.sources.cells import split
from kernelderby.profile.sources.operations import operation
from kernelderby.profile.spans import KernelSum, LaunchShape, Profile, Span, SpanKind, sum_spans
from kernelderby.store.counts import counted

HEADER = re.compile(
    r'^"?(?:Guid"?,"?)?(?:Kind|Index|Correlation_Id|Dispatch_Id)"?,.*"?(?:End_Timestamp|EndNs)\b',
    re.MULTILINE | re.IGNORECASE,
)
_TITLES = {  # what is looked for, the newest tool first; spellings differ in case too
    "name": ("kernel_name", "kernelname", "direction"),
    "start": ("start_timestamp", "beginns"),
    "end": ("end_timestamp", "endns"),
    "gpu": ("agent_id", "gpu-id"),
    "queue": ("stream_id", "queue_id", "queue-id"),
    "process": ("process_id", "pid"),
    "dispatch": ("dispatch_id", "index"),
    "registers": ("vgpr_count", "arch_vgpr", "vgpr"),
    "shared": ("lds_block_size", "group_segment_size", "lds"),
    "to": ("destination_agent_id",),
    "from": ("source_agent_id",),
}
_AXES = "xyz"
_CLONE = re.compile(r"(?: \[clone \.kd\]|\.kd)$")
_NUMBER = re.compile(r"[0-9]{1,20}")


class RocprofProfile(Profile):
    has_events = True

    def __init__(self, path: Path, form: str = "rocprof trace, CSV") -> None:
        super().__init__(path, form)
        self._spans: list[Span] = []
        self._shapes: dict[tuple[object, ...], list[int]] = {}
        self._dispatches: set[tuple[int, int, int]] = set()
        self._untimed = 0

    @property
    def has_work(self) -> bool:
        return bool(self._spans)

    def spans(self) -> Iterator[Span]:
        return iter(self._spans)

    def sums(self) -> list[KernelSum]:
        return sum_spans(self._spans)

    def launch_shapes(self) -> list[LaunchShape]:
        shapes = [LaunchShape(*key, *tally) for key, tally in self._shapes.items()]  # type: ignore[arg-type]
        return sorted(shapes, key=lambda each: (-each.total_ns, each.name))

    def take(self, row: Dispatch) -> None:
        start, end = row.number("start"), row.number("end")
        if not row.text("name"):
            return
        if start is None or end is None or not 0 < start <= end < 1 << 62:
            self._untimed += 1
            return
        dispatch = row.number("dispatch")
        gpu = next((number for title in ("gpu", "to", "from") if (number := row.number(title)) is not None), 0)
        if dispatch is not None:
            if (gpu, dispatch, start) in self._dispatches:
                return
            self._dispatches.add((gpu, dispatch, start))
        kind, name = operation(_CLONE.sub("", row.text("name")))
        process, queue = row.number("process") or 0, row.number("queue") or 0
        self._spans.append(Span(kind, name, start, end, process, gpu, queue, bytes=row.number("bytes") or 0))
        grid = row.axes("grid_size_")
        block = row.axes("workgroup_size_")
        if kind is SpanKind.KERNEL and grid and block and all(block):
            groups = tuple(-(-items // size) for items, size in zip(grid, block, strict=True))  # AMD's grid is in items
            tally = self._shapes.setdefault(
                (name, groups, block, row.number("registers"), row.number("shared")), [0, 0]
            )
            tally[0] += 1
            tally[1] += end - start

    def finish(self) -> None:
        self._dispatches.clear()
        self._spans.sort(key=lambda span: (span.start_ns, span.end_ns))
        if self._untimed:
            self.warnings.append(f"left out: {counted(self._untimed, 'GPU operation')} without valid times")


class Dispatch:
    """One line: places by what is looked for, and the cells."""

    def __init__(self, places: dict[str, int], cells: list[str]) -> None:
        self.places, self.cells = places, cells

    def text(self, title: str) -> str:
        place = self.places.get(title)
        return self.cells[place].strip() if place is not None else ""

    def number(self, title: str) -> int | None:
        """Of "Agent 4" and 4 alike; None where there is none."""
        match = _NUMBER.fullmatch(self.text(title).removeprefix("Agent "))
        return int(match[0]) if match else None

    def axes(self, title: str) -> tuple[int, ...] | None:
        sizes = tuple(self.number(title + axis) for axis in _AXES)
        return None if None in sizes else sizes  # type: ignore[return-value]


def open_rocprof(path: Path, text: str) -> RocprofProfile:
    """DerbyError for a line that has lost cells, or without GPU work."""
    profile = RocprofProfile(path)
    places: dict[str, int] = {}
    width = 0
    for number, line in enumerate(text.splitlines(), 1):
        cells = split(line, ",")
        if len(cells) > 1 and {"end_timestamp", "endns"} & {cell.strip().lower() for cell in cells}:
            places, width = _places(cells), len(cells)
        elif places and cells:
            if len(cells) != width:
                raise DerbyError(
                    f"{path}:{number}: {counted(len(cells), 'cell')} where the header has {width}; copy the file again"
                )
            profile.take(Dispatch(places, cells))
    profile.finish()
    if not profile.has_work:
        told = f" ({profile.warnings[0]})" if profile.warnings else ""
        raise DerbyError(f"{path}: no GPU work in it{told}; give the kernel_trace of `rocprofv3 --kernel-trace`")
    return profile


def _places(header: list[str]) -> dict[str, int]:
    titles = {cell.strip().lower(): place for place, cell in reversed(list(enumerate(header)))}
    found = {
        meaning: next((titles[title] for title in spellings if title in titles), -1)
        for meaning, spellings in _TITLES.items()
    }
    for start in ("grid_size_", "workgroup_size_"):
        found |= {start + axis: titles.get(start + axis, -1) for axis in _AXES}
    return {meaning: place for meaning, place in found.items() if place >= 0}
