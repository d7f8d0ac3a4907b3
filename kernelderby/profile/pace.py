"""The repetitions of a range: the time of each on GPU and host, and the outliers."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.profile.names import expression
from kernelderby.profile.spans import Profile, RangeInstance, RangesByTime, outermost

# An outlier differs from the median by more than FAR deviations (1.4826 times the median absolute deviation) and by
# more than a tenth.
FAR, AT_LEAST = 3.0, 0.10


@dataclass(frozen=True, slots=True)
class Repetition:
    """number: from 1. host_ns: duration of the range. span_ns: from the first start to the last end of the operations
    launched in it; busy_ns: the part in which something ran; None if nothing was launched. period_ns: from its start to
    the start of the next one. far: for an outlier, the deviations of span_ns (or host_ns without it) from the median;
    else None."""

    process: int
    number: int
    name: str
    start_ns: int
    host_ns: int
    operations: int
    span_ns: int | None
    busy_ns: int | None
    period_ns: int | None
    far: float | None = None

    @property
    def pace_ns(self) -> int:
        return self.host_ns if self.span_ns is None else self.span_ns


@dataclass(frozen=True, slots=True)
class Pace:
    """repetitions: by process and time; start_ns counts from the first one."""

    path: Path
    gpu: str | None
    expression: str
    repetitions: tuple[Repetition, ...]
    warnings: tuple[str, ...]

    @property
    def outliers(self) -> tuple[Repetition, ...]:
        return tuple(each for each in self.repetitions if each.far is not None)


@dataclass(slots=True)
class _Running:
    operations: int = 0
    first: int | None = None
    end: int = 0
    busy: int = 0

    def take(self, start: int, end: int) -> None:
        self.operations += 1
        if self.first is None:
            self.first = self.end = start
        if end > self.end:
            self.busy += end - max(start, self.end)
            self.end = end


def pace_of(profile: Profile, within: str) -> Pace:
    """within: regular expression of the ranges' names. DerbyError: none matches, or the profile has sums only."""
    pattern = expression("--within", within)
    if not profile.has_events:
        profile.spans()  # raises the error that says what is missing
    found = outermost(profile.range_instances(pattern), lambda each: each)
    if not found:
        raise DerbyError(profile.no_range(within))
    marked = RangesByTime(found)
    tallies = {process: [_Running() for _ in ranges] for process, ranges in marked.of_process.items()}
    for span, launch, _ in profile.launched():
        place = marked.place(span.process, span.start_ns if launch is None else launch)
        if place >= 0:
            tallies[span.process][place].take(span.start_ns, span.end_ns)
    origin = min(each.start_ns for each in found)
    rows: list[Repetition] = []
    for process, ranges in marked.of_process.items():
        rows += _judged([_row(each, number, tallies[process], ranges, origin) for number, each in enumerate(ranges)])
    return Pace(profile.path, profile.gpu, within, tuple(rows), tuple(dict.fromkeys(profile.warnings)))


def _row(
    each: RangeInstance, place: int, tallies: list[_Running], ranges: list[RangeInstance], origin: int
) -> Repetition:
    tally = tallies[place]
    return Repetition(
        each.process,
        place + 1,
        each.name,
        each.start_ns - origin,
        each.end_ns - each.start_ns,
        tally.operations,
        None if tally.first is None else tally.end - tally.first,
        None if tally.first is None else tally.busy,
        ranges[place + 1].start_ns - each.start_ns if place + 1 < len(ranges) else None,
    )


def _judged(rows: list[Repetition]) -> list[Repetition]:
    middle = statistics.median(row.pace_ns for row in rows)
    deviation = 1.4826 * statistics.median(abs(row.pace_ns - middle) for row in rows)
    far = max(FAR * deviation, AT_LEAST * middle)
    return [
        replace(row, far=abs(row.pace_ns - middle) / (deviation or AT_LEAST * middle or 1))
        if abs(row.pace_ns - middle) > far
        else row
        for row in rows
    ]
