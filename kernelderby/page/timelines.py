"""The operations of a recording over time, on lanes: one for each stream of a GPU."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from kernelderby.page.model.recordings import ShownLane, ShownTimeline
from kernelderby.page.text import rounded, words
from kernelderby.profile.kernels.attribution import Role, attribute
from kernelderby.profile.names import short_name
from kernelderby.profile.spans import KernelSum, Profile, Span, SpanKind
from kernelderby.profile.stages.walk import INVOCATION
from kernelderby.profile.timeline import gpu_label

LISTED = 2000  # operations of one recording: twenty calls of a pipeline, or the middle of a longer recording
LANES = 24  # the busiest ones; some traces have hundreds of streams with one copy each
ROWS = 4  # of a stream
_INVOCATION = re.compile(INVOCATION)


@dataclass(slots=True)
class _Lane:
    operations: int = 0
    busy_ns: int = 0
    end_ns: int = 0
    shown: list[Span] = field(default_factory=list)

    def take(self, span: Span, is_shown: bool) -> None:
        self.operations += 1
        if span.end_ns > self.end_ns:
            self.busy_ns += span.end_ns - max(span.start_ns, self.end_ns)
            self.end_ns = span.end_ns
        if is_shown:
            self.shown.append(span)


def shown_timeline(profile: Profile, title: str) -> ShownTimeline | None:
    """None if the profile has sums only, or nothing. If there are more than LISTED operations, the middle ones are
    shown, and the counts say so."""
    if not profile.has_events:
        return None
    sums = profile.sums()
    operations = sum(each.instances for each in sums)
    first = max(0, (operations - LISTED) // 2)
    lanes: dict[tuple[int, int, int], _Lane] = defaultdict(_Lane)
    begin = end = None
    for number, span in enumerate(profile.spans()):
        begin = span.start_ns if begin is None else begin
        end = span.end_ns if end is None else max(end, span.end_ns)
        lanes[span.process, span.device, span.stream].take(span, first <= number < first + LISTED)
    busiest = sorted(lanes, key=lambda place: (-len(lanes[place].shown), -lanes[place].busy_ns, place))[:LANES]
    shown = {place: lane for place, lane in sorted(lanes.items()) if place in busiest}
    spans = sorted((span for lane in shown.values() for span in lane.shown), key=lambda span: span.start_ns)
    if begin is None or end is None or not spans:
        return None
    names = list(dict.fromkeys((span.kind, span.name) for span in spans))
    several = len({process for process, _, _ in lanes}) > 1
    return ShownTimeline(
        words(title),
        words(profile.gpu or "GPU not named"),
        words(profile.form),
        operations,
        len(spans),
        end - begin,
        (spans[0].start_ns - begin, max(span.end_ns for span in spans) - begin),
        tuple(_name(kind, name) for kind, name in names),
        _roles(sums),
        tuple(
            ShownLane(
                f"GPU {gpu_label(process, device, several)}",
                f"stream {stream}",
                lane.operations,
                rounded(lane.busy_ns / 1e3),
                *_rows(lane.shown, begin, {name: place for place, name in enumerate(names)}),
            )
            for (process, device, stream), lane in shown.items()
        ),
        len(lanes) - len(shown),
        tuple(_invocations(spans, begin)),
    )


def _name(kind: SpanKind, name: str) -> tuple[str, str, str]:
    short = short_name(name) if kind is SpanKind.KERNEL else name
    return words(short), words(name), attribute(name, kind).role.value


def _rows(spans: Iterable[Span], begin: int, places: dict[tuple[SpanKind, str], int]) -> tuple[int, tuple[int, ...]]:
    """The number of rows, and the spans in fours. A kernel that was launched early (programmatic dependent launch)
    overlaps the kernel for which it waits, and would hide its end. So each span is in the first free row, otherwise in
    the last one."""
    ends: list[int] = []
    found: list[int] = []
    for span in spans:
        row = next((number for number, end in enumerate(ends) if end <= span.start_ns), len(ends))
        row = min(row, ROWS - 1)
        if row == len(ends):
            ends.append(span.end_ns)
        ends[row] = max(ends[row], span.end_ns)
        found += (places[span.kind, span.name], span.start_ns - begin, span.end_ns - span.start_ns, row)
    return len(ends), tuple(found)


def _roles(sums: Iterable[KernelSum]) -> tuple[tuple[str, int, float], ...]:
    times, counts = Counter[Role](), Counter[Role]()
    for each in sums:
        role = attribute(each.name, each.kind).role
        times[role] += each.total_ns  # type: ignore[assignment]  # exact in ns, or a table's float
        counts[role] += each.instances
    return tuple((role.value, counts[role], rounded(time / 1e3)) for role, time in times.most_common())


def _invocations(spans: Iterable[Span], begin: int) -> Iterable[tuple[str, int, int]]:
    """(name, from, to) of the marked ranges, by their first start and last end on the GPU. Consecutive ranges of one
    name are joined."""
    found: list[list[int]] = []
    titles: list[str] = []
    of_process: dict[int, int] = {}
    for span in spans:
        title = next((name for name in span.ranges if _INVOCATION.search(name)), None)
        if title is None:
            continue
        place = of_process.get(span.process)
        if place is None or titles[place] != title:
            place = of_process[span.process] = len(found)
            titles.append(title)
            found.append([span.start_ns, span.end_ns])
        found[place][1] = max(found[place][1], span.end_ns)
    pairs = ((words(title), start - begin, end - begin) for title, (start, end) in zip(titles, found, strict=True))
    return islice(pairs, 500)
