"""Two profiles side by side, by stage or by kernel: before against after, or one GPU against another.

Aligned rows have times per invocation where both profiles have a count of invocations, because a longer run is not a
slower one; otherwise totals.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from kernelderby.profile.names import short_name
from kernelderby.profile.spans import Profile, SpanKind
from kernelderby.profile.stages.walk import OVERLAP, TOGETHER, Pipeline

SAME = 0.02  # a change of up to 2 % of its own time is called unchanged; clocks alone move more than 1 %


@dataclass(frozen=True, slots=True)
class Difference:
    """One stage or kernel. Times are per invocation or totals (Comparison.unit); None: it does not occur there.

    ratio: after over before. share_of_change: of the whole change, with its sign: 0.6 made 60 % of it, -0.1 worked
    against it; None when the totals are equal.
    """

    name: str
    title: str
    before_ns: float | None
    after_ns: float | None
    before_instances: int
    after_instances: int
    share_of_change: float | None

    @property
    def change_ns(self) -> float:
        return (self.after_ns or 0) - (self.before_ns or 0)

    @property
    def ratio(self) -> float | None:
        return self.after_ns / self.before_ns if self.before_ns and self.after_ns is not None else None

    @property
    def verdict(self) -> str:
        """appeared, vanished, sped up, slowed down or unchanged."""
        if self.before_ns is None:
            return "appeared"
        if self.after_ns is None:
            return "vanished"
        if abs(self.change_ns) <= SAME * self.before_ns:
            return "unchanged"
        return "sped up" if self.change_ns < 0 else "slowed down"


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
    """By the short name of the kernel, whole profiles, copies and memsets too.

    Where most of the kernels that both have ran k times as often in one, that one ran k times as long, and its times
    are divided by k.
    """
    left, right = _by_kernel(before), _by_kernel(after)
    warnings = [*before.warnings, *after.warnings]
    added = [_added_by_kernel(profile) if profile.has_events else None for profile in (before, after)]
    overlapped = [
        profile
        for profile, rows, own in ((before, left, added[0]), (after, right, added[1]))
        if own is not None and _total(rows) > (1 + OVERLAP) * _total(own)
    ]
    by_added = added[0] is not None and added[1] is not None
    if overlapped and added[0] is not None and added[1] is not None:
        left, right = added[0], added[1]
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
    divisors = (1, longer) if longer > 1 else (1 / longer, 1)
    return _comparison(before, after, "kernel", False, left, right, divisors, warnings, (None, None))


def _repetitions(left: _Rows, right: _Rows) -> Fraction:
    """After over before, of the instance counts of most kernels that both have; 1 where there is no such ratio."""
    ratios = Counter(
        Fraction(right[name][1], left[name][1])
        for name in left.keys() & right.keys()
        if left[name][1] and right[name][1]
    )
    ratio, votes = max(ratios.items(), key=lambda item: (item[1], -abs(item[0] - 1)), default=(Fraction(1), 0))
    return ratio if 2 * votes > ratios.total() else Fraction(1)


_Rows = dict[str, tuple[str, int, float]]  # name -> title, instances, total ns


def _by_stage(pipeline: Pipeline, by_added: bool) -> _Rows:
    return {
        row.name: (row.title, row.instances, row.added_ns if by_added and row.added_ns is not None else row.total_ns)
        for row in pipeline.stages
        if row.total_ns
    }


def _by_kernel(profile: Profile) -> _Rows:
    rows: _Rows = {}
    for row in profile.sums():
        name = short_name(row.name) if row.kind is SpanKind.KERNEL else row.name
        _, instances, total_ns = rows.get(name, ("", 0, 0.0))
        rows[name] = (str(row.kind), instances + row.instances, total_ns + row.total_ns)
    return rows


def _added_by_kernel(profile: Profile) -> _Rows:
    """As _by_kernel, each span with the time in which nothing that had started before on its GPU still ran."""
    rows: _Rows = {}
    shown: dict[str, str] = {}
    ended: dict[int, int] = {}
    for span in profile.spans():
        if span.name not in shown:
            shown[span.name] = short_name(span.name) if span.kind is SpanKind.KERNEL else span.name
        name = shown[span.name]
        since = max(span.start_ns, ended.get(span.device, 0))
        _, instances, added_ns = rows.get(name, ("", 0, 0.0))
        rows[name] = (str(span.kind), instances + 1, added_ns + max(span.end_ns - since, 0))
        ended[span.device] = max(span.end_ns, since)
    return rows


def _total(rows: _Rows) -> float:
    return sum(row[2] for row in rows.values())


def _join(rows: _Rows, merged: str) -> None:
    """Replaces the parts of a merged name by their sum, where they stand apart."""
    parts = [rows.pop(name) for name in merged.split(TOGETHER) if name in rows]
    if parts:
        rows[merged] = (
            "; ".join(part[0] for part in parts),
            sum(part[1] for part in parts),
            sum(part[2] for part in parts),
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
    left_ns = {name: row[2] / float(divisors[0]) for name, row in left.items()}
    right_ns = {name: row[2] / float(divisors[1]) for name, row in right.items()}
    totals = sum(left_ns.values()), sum(right_ns.values())
    whole = totals[1] - totals[0]
    changes = []
    for name in dict.fromkeys((*left, *right)):
        one, two = left.get(name), right.get(name)
        title = one[0] if one else two[0] if two else ""
        change = right_ns.get(name, 0) - left_ns.get(name, 0)
        changes.append(
            Difference(
                name,
                title,
                left_ns.get(name),
                right_ns.get(name),
                one[1] if one else 0,
                two[1] if two else 0,
                change / whole if whole else None,
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
