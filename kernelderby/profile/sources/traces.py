"""The output of `nsys stats --report cuda_gpu_trace,cuda_api_trace --format csv`: one line per operation, and one per
call.

Both tables may be in one text, in any order. An operation's launch is the call with its correlation id. The table of
GPU work lacks the process, so an id that calls of several processes share has no launch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.profile.sources.cells import SIZE_BYTES, TIME_NS, CellError, count, csv_cells, quantity, unit_of
from kernelderby.profile.sources.in_memory import NO_TIME, InMemoryProfile
from kernelderby.profile.sources.operations import operation
from kernelderby.profile.spans import ApiSum, Launched, Span, SpanKind, is_waiting
from kernelderby.store.counts import counted

HEADER = re.compile(r"^Start \((?:ns|us|ms|s)\)[,;\t]Duration \((?:ns|us|ms|s)\)[,;\t].*\bName\b", re.MULTILINE)
_DEVICE = re.compile(r"^(?P<name>.*?)\s*\((?P<number>[0-9]{1,9})\)\s*$")
_VERSION = re.compile(r"_v\d+$")


class TraceProfile(InMemoryProfile):
    def __init__(self, path: Path) -> None:
        super().__init__(path, "nsys trace, CSV")
        self._correlations: list[int] = []  # of each operation, 0 without one
        self._calls: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        self._launches: dict[int, tuple[int, int] | None] = {}  # None if two calls have that id
        self._waits: list[tuple[int, int, int]] = []

    def launched(self) -> Iterator[Launched]:
        for span, correlation in zip(self.held, self._correlations, strict=True):
            yield span, *(self._launches.get(correlation) or (None, None))

    def api_sums(self) -> list[ApiSum]:
        sums = [ApiSum(name, *tally) for name, tally in self._calls.items()]
        return sorted(sums, key=lambda each: (-each.total_ns, each.name))

    def waits(self) -> list[tuple[int, int, int]]:
        return sorted(self._waits, key=lambda each: each[1])

    @property
    def unlinked_launches(self) -> int:
        """Without the table of calls nothing is linked, so no launch counts as missing."""
        unlinked = (span for span, start, _ in self.launched() if start is None and span.kind is SpanKind.KERNEL)
        return sum(1 for _ in unlinked) if self._launches else 0

    def take_operation(self, row: _Cells) -> None:
        start, duration = row.times("an operation")
        kind, name = operation(row.text("Name"))
        device = _DEVICE.match(row.text("Device"))
        number, stream, moved = int(device["number"]) if device else 0, row.number("Strm") or 0, row.size("Bytes") or 0
        self.held.append(Span(kind, name, start, start + duration, 0, number, stream, (), moved))
        self._correlations.append(row.number("CorrId") or 0)
        grid = tuple(row.number(f"Grd{axis}") for axis in "XYZ")
        if kind is SpanKind.KERNEL and None not in grid:
            block = tuple(row.number(f"Blk{axis}") or 0 for axis in "XYZ")
            static, dynamic = row.size("StcSMem"), row.size("DymSMem")
            shared = None if static is None and dynamic is None else (static or 0) + (dynamic or 0)
            self.count_shape(duration, name, grid, block, row.number("Reg/Trd"), shared)

    def take_call(self, row: _Cells) -> None:
        start, duration = row.times("a call")
        name = _VERSION.sub("", row.text("Name"))
        tally = self._calls[name]
        tally[0] += 1
        tally[1] += duration
        if is_waiting(name):
            self._waits.append((0, start, start + duration))
        correlation = row.number("CorrID")
        if correlation:
            self._launches[correlation] = None if correlation in self._launches else (start, start + duration)

    def settle(self) -> None:
        pairs = zip(self.held, self._correlations, strict=True)
        ordered = sorted(pairs, key=lambda each: (each[0].start_ns, each[0].end_ns))
        self.held, self._correlations = [span for span, _ in ordered], [number for _, number in ordered]
        self.expect_times()


class _Cells:
    """The cells of a line by the header's titles, whose units are in parentheses."""

    def __init__(self, header: dict[str, tuple[int, str | None]], cells: list[str]) -> None:
        self.header, self.cells = header, cells

    def text(self, title: str) -> str:
        place = self.header.get(title)
        return self.cells[place[0]].strip() if place else ""

    def number(self, title: str) -> int | None:
        return count(self.text(title)) if title in self.header else None

    def times(self, what: str) -> tuple[int, int]:
        """Start and duration, ns."""
        start, duration = self._time("Start"), self._time("Duration")
        if start is None or duration is None:
            raise CellError(f"{what} without a time")
        return start, duration

    def _time(self, title: str) -> int | None:
        found = quantity(self.text(title), self.header[title][1], TIME_NS, "ns")
        if found is not None and not 0 <= found.value < NO_TIME:
            raise CellError(f"{title} is {'below 0' if found.value < 0 else 'no time'}")
        return None if found is None else round(found.value)

    def size(self, title: str) -> int | None:
        if title not in self.header:
            return None
        found = quantity(self.text(title), self.header[title][1], SIZE_BYTES, "B")
        return None if found is None else round(found.value)


def open_traces(path: Path, text: str) -> TraceProfile:
    """DerbyError for a cell that is not a number, or a file without GPU work."""
    profile = TraceProfile(path)
    header: dict[str, tuple[int, str | None]] = {}
    take, width, separator = profile.take_operation, 0, ","
    devices: dict[str, None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if HEADER.match(line):
            separator = next(each for each in ",;\t" if each in line)
            titles = csv_cells(line, separator)
            header, width = _titles(titles), len(titles)
            take = profile.take_call if "Result" in header or "CorrID" in header else profile.take_operation
            continue
        if not header:
            continue
        if line.count('"') % 2:
            raise DerbyError(f"{path}:{number}: a cell goes on in the next line; put it into one line")
        cells = csv_cells(line, separator)
        if len(cells) != width:
            if len(cells) > 1:
                raise DerbyError(
                    f"{path}:{number}: {counted(len(cells), 'cell')} where the header has {width}; print it again"
                )
            header = {}  # the table has ended
            continue
        try:
            row = _Cells(header, cells)
            take(row)
            if device := _DEVICE.match(row.text("Device")):
                devices[device["name"]] = None
        except CellError as error:
            raise DerbyError(f"{path}:{number}: {error}") from None
    profile.expect_work("add `--report cuda_gpu_trace` to `nsys stats`")
    profile.gpu = ", ".join(devices) or None
    profile.settle()
    return profile


def _titles(titles: list[str]) -> dict[str, tuple[int, str | None]]:
    found = {}
    for place, title in enumerate(titles):
        match = re.fullmatch(r"(.*?)\s*\(([^()]+)\)", title.strip())
        found[match[1] if match else title.strip()] = place, unit_of(match[2]) if match else None
    return found
