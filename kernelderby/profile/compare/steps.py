"""Two profiles step by step: wall, busy, idle, exposed communication, and the sum of the kernels beside them."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from kernelderby.profile.compare import caveats
from kernelderby.profile.compare.difference import SAME, Difference, StepComparison, chance_and_drift, corrected
from kernelderby.profile.spans import Profile
from kernelderby.profile.steps.find import ProfileStep, ProfileSteps, replays_graphs

MEASURES = (
    ("wall", "wall_ns", "first kernel to the next step's"),
    ("busy", "busy_ns", "something ran"),
    ("idle", "idle_ns", "nothing ran"),
    ("exposed communication", "exposed_ns", "communication beside which nothing was computed"),
    ("sum of the kernels", "kernel_ns", "all durations, beside each other or not"),
)
_ENOUGH = 3  # with at least this many steps, the last one is left out: the gap after it is not in the profile
_FEWEST = 8  # with at least this many steps of a GPU, warm-up can be detected
_SLOWER, _DEVIATIONS = 1.1, 3.0  # warm-up: above this times the second half's median and by these deviations


@dataclass(frozen=True, slots=True)
class StepPair:
    """comparisons: one for every kind that both have. said_first: differences that must be stated before any time.
    kind: the kind with most time in both; None if no steps can be aligned."""

    comparisons: tuple[StepComparison, ...]
    said_first: tuple[caveats.FirstWarning, ...]
    kind: str | None


def compare_steps(before: ProfileSteps, after: ProfileSteps) -> StepPair:
    """Aligns steps by kind. If a profile has no steps, both are compared as a whole."""
    said: list[caveats.FirstWarning] = []
    sides: tuple[tuple[caveats.Letter, ProfileSteps, ProfileSteps], ...] = (("A", before, after), ("B", after, before))
    if not before.steps or not after.steps:
        return StepPair((), (), None)
    if not (before.found_by and after.found_by):
        said += [caveats.NoSteps(letter) for letter, one, other in sides if other.found_by and not one.found_by]
        whole = _compared("", before.steps, after.steps)
        return StepPair((whole,), (*said, *_replays(before, after)), None)
    shared = [title for title in before.titles if title in after.titles]
    for letter, one, other in sides:
        if alone := tuple((title, len(one.of(title))) for title in one.titles if title not in other.titles):
            said.append(caveats.OnlyKinds(letter, alone))
    found = [_compared(title, before.of(title), after.of(title)) for title in shared]
    for each in found:
        one_count, other_count = each.before_operations, each.after_operations
        if abs(one_count - other_count) > SAME * max(one_count, other_count):
            said.append(caveats.OtherLaunches(each.title, one_count, other_count))
        for letter, side, _ in sides:
            if warm := warm_up([step for step in side.of(each.title) if not step.is_last]):
                said.append(caveats.WarmUp(letter, each.title, len(warm)))
    said += _replays(before, after)
    found.sort(key=lambda each: -min(sum(step.wall_ns for step in side.of(each.title)) for side in (before, after)))
    return StepPair(tuple(found), tuple(said), found[0].title if found else None)


def counted(steps: Sequence[ProfileStep]) -> list[ProfileStep]:
    """The steps without warm-up, and without the last step of each GPU, since the gap after it is not in the
    profile."""
    whole = [step for step in steps if not step.is_last]
    if len(whole) < _ENOUGH:
        return list(steps)
    warm = {id(step) for step in warm_up(whole)}
    return [step for step in whole if id(step) not in warm]


def warm_up(steps: Sequence[ProfileStep]) -> list[ProfileStep]:
    """The leading steps of each GPU that took longer than the rest, at most a quarter of its steps."""
    by_gpu: dict[str, list[ProfileStep]] = defaultdict(list)
    for step in sorted(steps, key=lambda each: each.start_ns):
        by_gpu[step.gpu].append(step)
    found: list[ProfileStep] = []
    for own in by_gpu.values():
        if len(own) >= _FEWEST:
            limits = {field: _limit(own, field) for field in ("wall_ns", "kernel_ns")}
            slow = [any(getattr(step, field) > limit for field, limit in limits.items()) for step in own]
            first = next((place for place, is_slow in enumerate(slow) if not is_slow), 0)
            found += own[: min(first, len(own) // 4)]
    return found


def _limit(steps: Sequence[ProfileStep], field: str) -> float:
    settled: list[int] = [getattr(step, field) for step in steps[len(steps) // 2 :]]
    middle: float = median(settled)
    spread: float = 1.4826 * median(abs(each - middle) for each in settled)
    return max(_SLOWER * middle, middle + _DEVIATIONS * spread)


def _compared(title: str, before: Sequence[ProfileStep], after: Sequence[ProfileStep]) -> StepComparison:
    left, right = counted(before), counted(after)
    rows = [_measure(name, field, about, left, right) for name, field, about in MEASURES]
    return StepComparison(
        title,
        len(left),
        len(right),
        median(step.operations for step in left),
        median(step.operations for step in right),
        tuple(corrected(row for row in rows if row.before_ns or row.after_ns)),
    )


def _measure(
    name: str, field: str, about: str, before: Sequence[ProfileStep], after: Sequence[ProfileStep]
) -> Difference:
    left, right = ([getattr(step, field) for step in steps] for steps in (before, after))
    chance, drift = chance_and_drift(_one_by_one(before, left), _one_by_one(after, right))
    return Difference(name, about, fmean(left), fmean(right), len(left), len(right), chance=chance, drift=drift)


def _one_by_one(steps: Sequence[ProfileStep], values: Sequence[int]) -> array[int]:
    """One value per step, in order of time. The GPUs of a job wait for each other, so their values are averaged if all
    have equally many steps."""
    by_gpu: dict[str, list[int]] = defaultdict(list)
    for step, value in sorted(zip(steps, values, strict=True), key=lambda each: each[0].start_ns):
        by_gpu[step.gpu].append(value)
    if len({len(each) for each in by_gpu.values()}) == 1:
        return array("q", [round(fmean(each)) for each in zip(*by_gpu.values(), strict=True)])
    return array(
        "q", [value for _, value in sorted((step.start_ns, value) for step, value in zip(steps, values, strict=True))]
    )


def _replays(before: ProfileSteps, after: ProfileSteps) -> list[caveats.FirstWarning]:
    one, other = replays_graphs(before), replays_graphs(after)
    return [] if one == other else [caveats.ReplaysGraphs("A" if one else "B")]


def whole_graphs(before: Profile, after: Profile) -> caveats.WholeGraphs | None:
    """Why the kernels' sums mean nothing: a recording lacks the kernels of its graphs. None if both are complete."""
    if not (before.whole_graphs or after.whole_graphs):
        return None
    return caveats.WholeGraphs(before.whole_graphs, after.whole_graphs)
