"""Two profiles kernel by kernel: per step if both have steps of the same kind, otherwise the whole profiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.profile.compare import caveats
from kernelderby.profile.compare.difference import (
    SAME,
    Comparison,
    Difference,
    RowTimes,
    clock_of,
    difference,
    lettered,
    ordered,
)
from kernelderby.profile.compare.renamed import RenameCandidate, Renaming, renamed
from kernelderby.profile.compare.steps import StepPair, compare_steps, counted, whole_graphs
from kernelderby.profile.filters import StepsOfKind
from kernelderby.profile.names import short_name
from kernelderby.profile.spans import Profile, Span, SpanKind
from kernelderby.profile.stages.walk import OVERLAP
from kernelderby.profile.steps.find import ProfileSteps, Windows, steps_of, windows_of

ARROW = " -> "


@dataclass(slots=True)
class _Kernels:
    """Rows by short name. added: each span with the part of its time in which no operation that started earlier on its
    GPU still ran. full: short name -> one whole name. order: the short names of the first steps, in order of start."""

    durations: dict[str, RowTimes] = field(default_factory=dict)
    added: dict[str, RowTimes] = field(default_factory=dict)
    full: dict[str, tuple[SpanKind, str]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    def overlaps(self, has_events: bool) -> bool:
        return has_events and _total(self.durations) > (1 + OVERLAP) * _total(self.added)

    def candidate(self, name: str, launches: float) -> RenameCandidate:
        kind, full = self.full[name]
        row = self.durations[name]
        return RenameCandidate(name, kind, full, launches, row.total_ns / max(row.instances, 1))


def compare_kernels(before: Profile, after: Profile, within: str | None = None, kind: str | None = None) -> Comparison:
    """Compares kernels, copies and memsets by short name. within: regular expression of the ranges that mark the steps.
    kind: the kind of step whose kernels are compared; default the kind with most time in both.

    Without steps in both, whole profiles are compared. If most shared kernels ran k times as often in one profile, that
    profile is k times as long, and its times are divided by k.
    """
    if within is not None:
        for profile in (before, after):
            if not profile.has_events:
                profile.spans()  # raises the error that says what is missing
    found = tuple(steps_of(each, within) if each.has_events else None for each in (before, after))
    one, other = found
    pair = compare_steps(one, other) if one and other else StepPair((), (), None)
    chosen = _chosen(pair, kind)
    windows = tuple(windows_of(counted(steps.of(chosen))) if steps and chosen is not None else None for steps in found)
    rows = tuple(_by_kernel(profile, only) for profile, only in zip((before, after), windows, strict=True))
    counts = [len(counted(steps.of(chosen))) if steps and chosen is not None else 0 for steps in found]
    return _compared((before, after), rows, (counts[0], counts[1]), pair, chosen, found)


def _chosen(pair: StepPair, kind: str | None) -> str | None:
    if kind is None:
        return pair.kind
    if pair.kind is None:
        raise DerbyError(
            f"--kind: no steps were found in both profiles, so none of {kind!r:.60}; mark them by --within"
        )
    titles = [each.title for each in pair.comparisons if each.title]
    fits = [title for title in titles if kind.lower() in title.lower()]
    if not fits:
        there = f"both have {', '.join(titles)}" if titles else "their steps have no kinds, leave it out"
        raise DerbyError(f"--kind: both profiles have no steps of {kind!r:.60}; {there}")
    return fits[0]


def _compared(
    profiles: tuple[Profile, Profile],
    rows: tuple[_Kernels, ...],
    steps: tuple[int, int],
    pair: StepPair,
    kind: str | None,
    found: tuple[ProfileSteps | None, ...],
) -> Comparison:
    before, after = profiles
    warnings = lettered(before.warnings, after.warnings)
    overlapped = [
        profile for profile, kernels in zip(profiles, rows, strict=True) if kernels.overlaps(profile.has_events)
    ]
    by_added = bool(overlapped) and before.has_events and after.has_events
    left, right = (kernels.added if by_added else kernels.durations for kernels in rows)
    warnings += [caveats.Overlapping(str(profile.path), "kernel", by_added) for profile in overlapped]
    said: list[caveats.FirstWarning] = list(pair.said_first)
    why: caveats.Caveat | caveats.WholeGraphs | None = whole_graphs(before, after)
    is_complete = why is None
    if kind is not None:
        divisors: tuple[Fraction | int, Fraction | int] = steps
    else:
        longer, known = _repetitions(left, right)
        divisors = (1, longer) if longer > 1 else (1 / longer, 1)
        if longer != 1:
            warnings.append(caveats.Longer("B", longer) if longer > 1 else caveats.Longer("A", 1 / longer))
        elif not known:
            why = why or caveats.Caveat.NO_COMMON_LENGTH
    longer_by = float(divisors[1]) / float(divisors[0])
    possible: dict[str, caveats.Doubt | None] = {}
    for each in _renamed(left, right, rows, longer_by):
        name = each.before + ARROW + each.after
        left[name], right[name] = left.pop(each.before), right.pop(each.after)
        possible[name] = each.doubt
    changes = ordered(
        replace(
            _of_launches(difference(name, left.get(name), right.get(name), divisors), left.get(name), right.get(name)),
            possible=possible.get(name),
            comparable=is_complete,
        )
        for name in dict.fromkeys((*left, *right))
    )
    return Comparison(
        str(Path(before.path)),
        str(Path(after.path)),
        before.gpu,
        after.gpu,
        "kernel",
        "profile" if kind is None else "step",
        steps[0] or None,
        steps[1] or None,
        _total(left) / float(divisors[0]),
        _total(right) / float(divisors[1]),
        changes,
        tuple(warnings),
        (*said, clock) if (clock := clock_of(changes)) else tuple(said),
        why,
        pair.comparisons,
        kind or "",
        (found[0].found_by if found[0] else None, found[1].found_by if found[1] else None),
    )


def _of_launches(row: Difference, *both: RowTimes | None) -> Difference:
    """The row with the time of one launch."""
    before, after = (times.total_ns / times.instances if times and times.instances else None for times in both)
    return replace(row, before_launch_ns=before, after_launch_ns=after)


def _renamed(
    left: dict[str, RowTimes], right: dict[str, RowTimes], rows: tuple[_Kernels, ...], longer: float
) -> list[Renaming]:
    gone = [name for name in left if name not in right]
    new = [name for name in right if name not in left]
    return renamed(
        [rows[0].candidate(name, left[name].instances * longer) for name in gone],
        [rows[1].candidate(name, right[name].instances) for name in new],
        rows[0].order,
        rows[1].order,
    )


def _repetitions(left: dict[str, RowTimes], right: dict[str, RowTimes]) -> tuple[Fraction, bool]:
    """The ratio (after over before) of the instance counts of most shared kernels, and whether most agree on it."""
    ratios = Counter(
        Fraction(right[name].instances, left[name].instances)
        for name in left.keys() & right.keys()
        if left[name].instances and right[name].instances
    )
    ratio, votes = max(ratios.items(), key=lambda item: (item[1], -abs(item[0] - 1)), default=(Fraction(1), 0))
    if 2 * votes > ratios.total():
        return ratio, True
    near = sum(votes for each, votes in ratios.items() if abs(each - 1) <= SAME)
    return Fraction(1), 2 * near >= ratios.total()


def _by_kernel(profile: Profile, windows: Windows | None) -> _Kernels:
    if not profile.has_events:
        return _from_sums(profile)
    return _from_events((profile if windows is None else StepsOfKind(profile, "", windows)).spans())


def _from_sums(profile: Profile) -> _Kernels:
    found = _Kernels()
    for row in profile.sums():
        name = short_name(row.name) if row.kind is SpanKind.KERNEL else row.name
        times = found.durations.setdefault(name, RowTimes(str(row.kind)))
        times.instances += row.instances
        times.total_ns += row.total_ns
        found.full.setdefault(name, (row.kind, row.name))
    return found


_ORDERED = 20_000  # maximum number of kernels of a profile whose order is used


def _from_events(spans: Iterable[Span]) -> _Kernels:
    found = _Kernels()
    shown: dict[str, str] = {}
    ended: dict[tuple[int, int], int] = {}
    main: tuple[int, int] | None = None
    for span in spans:
        name = shown.get(span.name)
        if name is None:
            name = shown[span.name] = short_name(span.name) if span.kind is SpanKind.KERNEL else span.name
            if name not in found.durations:
                found.durations[name] = RowTimes(str(span.kind))
                found.added[name] = RowTimes(str(span.kind))
                found.full[name] = (span.kind, span.name)
        gpu = span.process, span.device
        since = max(span.start_ns, ended.get(gpu, 0))
        for rows, time in ((found.durations, span.end_ns - span.start_ns), (found.added, max(span.end_ns - since, 0))):
            times = rows[name]
            times.instances += 1
            times.total_ns += time
            times.samples.append(time)
        ended[gpu] = max(span.end_ns, since)
        main = main or gpu
        if gpu == main and len(found.order) < _ORDERED and span.kind is SpanKind.KERNEL:
            found.order.append(name)
    return found


def _total(rows: dict[str, RowTimes]) -> float:
    return sum(row.total_ns for row in rows.values())
