"""Two profiles side by side, by stage or by kernel: before against after, or one GPU against another.

What a launch costs and how many launches there were are two questions, and each is judged by itself: fewer launches are
no speed-up, and a longer run is not a slower one. Where both profiles have events, a change of the cost counts only if
the launches' times differ beyond chance (Mann-Whitney).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from kernelderby.profile.names import short_name
from kernelderby.profile.renamed import RenameCandidate, renamed
from kernelderby.profile.spans import Profile, Span, SpanKind
from kernelderby.profile.stages.walk import OVERLAP, TOGETHER, Pipeline
from kernelderby.statistics.rank_test import mann_whitney

SAME = 0.02  # a change of up to 2 % of its own time is called unchanged; clocks alone move more than 1 %
CHANCE = 0.01  # a difference that chance makes as often as this is none
ARROW = " -> "


@dataclass(frozen=True, slots=True)
class Difference:
    """One stage or kernel. Times are per invocation or totals (Comparison.unit); None: it does not occur there.

    ratio: after over before, of the totals; launch_ratio: of what one launch takes. chance: how often chance alone
    would make the launches' times differ so (None: a profile has no events, or there are too few launches to tell).
    expected: launches before, times how much longer the second profile is. share_of_change: of the whole change, with
    its sign: 0.6 made 60 % of it, -0.1 worked against it; None when the totals are equal.
    """

    name: str
    title: str
    before_ns: float | None
    after_ns: float | None
    before_instances: int
    after_instances: int
    share_of_change: float | None
    before_launch_ns: float | None = None
    after_launch_ns: float | None = None
    expected: float | None = None
    chance: float | None = None

    @property
    def change_ns(self) -> float:
        return (self.after_ns or 0) - (self.before_ns or 0)

    @property
    def ratio(self) -> float | None:
        return self.after_ns / self.before_ns if self.before_ns and self.after_ns is not None else None

    @property
    def launch_ratio(self) -> float | None:
        if not self.before_launch_ns or self.after_launch_ns is None:
            return None
        return self.after_launch_ns / self.before_launch_ns

    @property
    def verdict(self) -> str:
        """appeared, vanished; else of what a launch (a stage: an invocation) costs: sped up, slowed down, unchanged or
        within chance."""
        if self.before_ns is None:
            return "appeared"
        if self.after_ns is None:
            return "vanished"
        ratio = self.launch_ratio if self.launch_ratio is not None else self.ratio
        if ratio is None or abs(ratio - 1) <= SAME:
            return "unchanged"
        if self.chance is not None and self.chance >= CHANCE:
            return "within chance"
        return "sped up" if ratio < 1 else "slowed down"

    @property
    def launches(self) -> str:
        """more launches or fewer launches, for the length of the profile; empty where their number is the same."""
        if not self.expected or self.before_ns is None or self.after_ns is None:
            return ""
        if abs(self.after_instances - self.expected) <= SAME * self.expected:
            return ""
        return "more launches" if self.after_instances > self.expected else "fewer launches"


@dataclass(frozen=True, slots=True)
class Comparison:
    """changes: the largest change first. unit: "invocation" or "profile", what a time is of."""

    before: str
    after: str
    before_gpu: str | None
    after_gpu: str | None
    by: str  # stage | kernel
    unit: str
    before_invocations: int | None
    after_invocations: int | None
    before_ns: float
    after_ns: float
    changes: tuple[Difference, ...]
    warnings: tuple[str, ...] = ()

    @property
    def ratio(self) -> float | None:
        return self.after_ns / self.before_ns if self.before_ns else None


def compare_stages(before: Pipeline, after: Pipeline) -> Comparison:
    """By stage. A summary that merges two stages is held against the sum of the other profile's two."""
    overlapped = [pipeline for pipeline in (before, after) if pipeline.overlaps]
    by_added = bool(overlapped) and before.added_ns is not None and after.added_ns is not None
    left, right = _by_stage(before, by_added), _by_stage(after, by_added)
    for name in [name for name in (*left, *right) if TOGETHER in name]:
        _join(left, name)
        _join(right, name)
    per_invocation = bool(before.invocations and after.invocations)
    divisors = (before.invocations or 1, after.invocations or 1) if per_invocation else (1, 1)
    warnings = [*before.warnings, *after.warnings]
    warnings += [
        f"{pipeline.profile}: kernels overlap; "
        + ("times are what a stage adds" if by_added else "the other profile has no events, so durations are compared")
        for pipeline in overlapped
    ]
    if not per_invocation:
        warnings.append("a profile has no invocations of the pipeline: totals are compared")
    return _comparison(
        before, after, "stage", per_invocation, left, right, divisors, warnings, (before.invocations, after.invocations)
    )


def compare_kernels(before: Profile, after: Profile) -> Comparison:
    """By the short name of the kernel, whole profiles, copies and memsets too; a kernel that only one profile has, and
    one of the same role, launches and place that only the other has, are one that was renamed.

    Where most of the kernels that both have ran k times as often in one, that one ran k times as long, and its times
    are divided by k.
    """
    durations = _by_kernel(before), _by_kernel(after)
    warnings = [*before.warnings, *after.warnings]
    overlapped = [
        profile for profile, rows in zip((before, after), durations, strict=True) if rows.overlaps(profile.has_events)
    ]
    by_added = bool(overlapped) and before.has_events and after.has_events
    left, right = (rows.added if by_added else rows.durations for rows in durations)
    warnings += [
        f"{profile.path}: kernels overlap; "
        + ("times are what a kernel adds" if by_added else "the other profile has no events, so durations are compared")
        for profile in overlapped
    ]
    longer = _repetitions(left, right)
    if longer != 1:
        which, times = ("second", longer) if longer > 1 else ("first", 1 / longer)
        warnings.append(
            f"most kernels ran {float(times):.4g} x as often in the {which} profile; its times are divided by that"
        )
    for old, new in _renamed(left, right, durations, float(longer)):
        left[old + ARROW + new], right[old + ARROW + new] = left.pop(old), right.pop(new)
    divisors = (1, longer) if longer > 1 else (1 / longer, 1)
    return _comparison(before, after, "kernel", False, left, right, divisors, warnings, (None, None))


def _renamed(left: _Rows, right: _Rows, all_rows: tuple[_Kernels, _Kernels], longer: float) -> list[tuple[str, str]]:
    gone = [name for name in left if name not in right]
    new = [name for name in right if name not in left]
    return renamed(
        [all_rows[0].candidate(name, left[name].instances * longer) for name in gone],
        [all_rows[1].candidate(name, right[name].instances) for name in new],
    )


def _repetitions(left: _Rows, right: _Rows) -> Fraction:
    """After over before, of the instance counts of most kernels that both have; 1 where there is no such ratio."""
    ratios = Counter(
        Fraction(right[name].instances, left[name].instances)
        for name in left.keys() & right.keys()
        if left[name].instances and right[name].instances
    )
    ratio, votes = max(ratios.items(), key=lambda item: (item[1], -abs(item[0] - 1)), default=(Fraction(1), 0))
    return ratio if 2 * votes > ratios.total() else Fraction(1)


@dataclass(slots=True)
class _Times:
    """One stage or kernel: launches, their sum, and where the profile has events each one's time in ns. A stage's
    samples are its invocations."""

    title: str
    instances: int = 0
    total_ns: float = 0.0
    samples: array[int] = field(default_factory=lambda: array("q"))

    def add(self, time_ns: int) -> None:
        self.instances += 1
        self.total_ns += time_ns
        self.samples.append(time_ns)


_Rows = dict[str, _Times]


def _by_stage(pipeline: Pipeline, by_added: bool) -> _Rows:
    return {
        row.name: _Times(
            row.title, row.instances, row.added_ns if by_added and row.added_ns is not None else row.total_ns
        )
        for row in pipeline.stages
        if row.total_ns
    }


@dataclass(slots=True)
class _Kernels:
    """Rows by short name. added: each span with the time in which nothing that had started before on its GPU still ran.
    places: where in the profile a name stands on average, 0 to 1; full: one whole name of each."""

    durations: _Rows = field(default_factory=dict)
    added: _Rows = field(default_factory=dict)
    places: dict[str, float] = field(default_factory=dict)
    full: dict[str, tuple[SpanKind, str]] = field(default_factory=dict)

    def overlaps(self, has_events: bool) -> bool:
        return has_events and _total(self.durations) > (1 + OVERLAP) * _total(self.added)

    def candidate(self, name: str, launches: float) -> RenameCandidate:
        kind, full = self.full[name]
        row = self.durations[name]
        return RenameCandidate(name, kind, full, launches, row.total_ns / max(row.instances, 1), self.places.get(name))


def _by_kernel(profile: Profile) -> _Kernels:
    return _from_events(profile.spans()) if profile.has_events else _from_sums(profile)


def _from_sums(profile: Profile) -> _Kernels:
    found = _Kernels()
    for row in profile.sums():
        name = short_name(row.name) if row.kind is SpanKind.KERNEL else row.name
        times = found.durations.setdefault(name, _Times(str(row.kind)))
        times.instances += row.instances
        times.total_ns += row.total_ns
        found.full.setdefault(name, (row.kind, row.name))
    return found


def _from_events(spans: Iterable[Span]) -> _Kernels:
    found = _Kernels()
    shown: dict[str, str] = {}
    ended: dict[tuple[int, int], int] = {}
    order: dict[str, int] = {}
    number = 0
    for number, span in enumerate(spans, 1):
        name = shown.get(span.name)
        if name is None:
            name = shown[span.name] = short_name(span.name) if span.kind is SpanKind.KERNEL else span.name
            if name not in found.durations:
                found.durations[name], found.added[name] = _Times(str(span.kind)), _Times(str(span.kind))
                found.full[name], order[name] = (span.kind, span.name), 0
        gpu = span.process, span.device
        since = max(span.start_ns, ended.get(gpu, 0))
        found.durations[name].add(span.end_ns - span.start_ns)
        found.added[name].add(max(span.end_ns - since, 0))
        ended[gpu] = max(span.end_ns, since)
        order[name] += number
    for name, total in order.items():
        found.places[name] = total / found.durations[name].instances / max(number, 1)
    return found


def _total(rows: _Rows) -> float:
    return sum(row.total_ns for row in rows.values())


def _join(rows: _Rows, merged: str) -> None:
    """Replaces the parts of a merged name by their sum, where they stand apart."""
    parts = [rows.pop(name) for name in merged.split(TOGETHER) if name in rows]
    if parts:
        rows[merged] = _Times(
            "; ".join(part.title for part in parts),
            sum(part.instances for part in parts),
            sum(part.total_ns for part in parts),
        )


def _comparison(
    before: Profile | Pipeline,
    after: Profile | Pipeline,
    by: str,
    per_invocation: bool,
    left: _Rows,
    right: _Rows,
    divisors: tuple[Fraction | int, Fraction | int],
    warnings: list[str],
    invocations: tuple[int | None, int | None],
) -> Comparison:
    left_ns = {name: row.total_ns / float(divisors[0]) for name, row in left.items()}
    right_ns = {name: row.total_ns / float(divisors[1]) for name, row in right.items()}
    totals = sum(left_ns.values()), sum(right_ns.values())
    whole = totals[1] - totals[0]
    longer = float(divisors[1]) / float(divisors[0])
    changes = []
    for name in dict.fromkeys((*left, *right)):
        one, two = left.get(name), right.get(name)
        change = right_ns.get(name, 0) - left_ns.get(name, 0)
        by_launch = by == "kernel"
        changes.append(
            Difference(
                name,
                one.title if one else two.title if two else "",
                left_ns.get(name),
                right_ns.get(name),
                one.instances if one else 0,
                two.instances if two else 0,
                change / whole if whole else None,
                one.total_ns / one.instances if by_launch and one and one.instances else None,
                two.total_ns / two.instances if by_launch and two and two.instances else None,
                one.instances * longer if one else None,
                mann_whitney(one.samples, two.samples) if one and two else None,
            )
        )
    changes.sort(key=lambda change: (-abs(change.change_ns), change.name))
    return Comparison(
        _name(before),
        _name(after),
        before.gpu,
        after.gpu,
        by,
        "invocation" if per_invocation else "profile",
        *invocations,
        *totals,
        tuple(changes),
        tuple(dict.fromkeys(warnings)),
    )


def _name(profile: Profile | Pipeline) -> str:
    path = profile.profile if isinstance(profile, Pipeline) else profile.path
    return str(Path(path))
