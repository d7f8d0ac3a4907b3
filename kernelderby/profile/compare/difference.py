"""Changes between two profiles, row by row, and when a change counts.

The time of a launch and the number of launches are judged separately: fewer launches are no speed-up, and a longer run
is not a slower one. A change counts only under three conditions: the times differ beyond chance (Mann-Whitney,
corrected for the number of rows by Holm), by more than 2 %, and by more than the two halves of one profile differ.
Without enough times there is no verdict.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction

import numpy as np

from kernelderby.profile.compare import caveats
from kernelderby.profile.stages.notes import PipelineWarning
from kernelderby.profile.steps.find import StepsFoundBy
from kernelderby.statistics.rank_test import FEWEST, holm, mann_whitney

SAME = 0.02  # a change of up to 2 % of its own time is called unchanged; clocks alone move more than 1 %
CHANCE = 0.01  # a difference that chance makes this often does not count
BLOCKS = 40  # stretches of launches, one value of the test each: successive launches are not independent
_MOST_DRIFT = 0.5  # twice as long is a change, however uneven a profile is
_LARGEST, _ALIKE, _MOST_TIME = 3, 0.02, 0.66  # kernels, the tolerance of their common factor, their share of the time
LITTLE = 0.10  # of all changes together: below it, parts of the whole change get no percentage


class ChangeVerdict(StrEnum):
    """Of the time of one launch; for a stage, of one invocation."""

    NOT_COMPARABLE = "not comparable"
    NOT_CERTAIN = "not certain"  # the pair may be two kernels
    APPEARED = "appeared"
    VANISHED = "vanished"
    UNCHANGED = "unchanged"
    NOT_TESTED = "not tested"
    WITHIN_CHANCE = "within chance"
    SPED_UP = "sped up"
    SLOWED_DOWN = "slowed down"


class LaunchChange(StrEnum):
    """Relative to the profile's length."""

    SAME = ""
    MORE = "more launches"
    FEWER = "fewer launches"


@dataclass(frozen=True, slots=True)
class Difference:
    """One stage, kernel or measure of a step. Times are per Comparison.unit; None if the profile lacks it.

    ratio: total after over total before; launch_ratio: the same for the time of one launch. chance: probability that
    chance alone makes such a difference, corrected for the number of rows (None: too few times to test). drift: how
    much the halves of one profile differ, the larger value of both. expected: launches before, multiplied by the ratio
    of the profiles' lengths. share_of_change: signed share of the whole change: 0.6 made 60 % of it, -0.1 worked
    against it; None if the changes cancel out. possible: why the two names may be two kernels; None without doubt.
    """

    name: str
    title: str
    before_ns: float | None
    after_ns: float | None
    before_instances: int
    after_instances: int
    share_of_change: float | None = None
    before_launch_ns: float | None = None
    after_launch_ns: float | None = None
    expected: float | None = None
    chance: float | None = None
    drift: float = 0.0
    possible: caveats.Doubt | None = None
    comparable: bool = True

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
    def verdict(self) -> ChangeVerdict:
        if not self.comparable:
            return ChangeVerdict.NOT_COMPARABLE
        if self.possible is not None:
            return ChangeVerdict.NOT_CERTAIN
        if self.before_ns is None:
            return ChangeVerdict.APPEARED
        if self.after_ns is None:
            return ChangeVerdict.VANISHED
        ratio = self.launch_ratio if self.launch_ratio is not None else self.ratio
        if ratio is None:
            return ChangeVerdict.UNCHANGED if not self.change_ns else ChangeVerdict.NOT_TESTED
        if abs(ratio - 1) <= SAME:
            return ChangeVerdict.UNCHANGED
        if self.chance is None:
            return ChangeVerdict.NOT_TESTED
        if self.chance >= CHANCE or abs(ratio - 1) <= self.drift:
            return ChangeVerdict.WITHIN_CHANCE
        return ChangeVerdict.SPED_UP if ratio < 1 else ChangeVerdict.SLOWED_DOWN

    @property
    def launches(self) -> LaunchChange:
        if not self.expected or self.before_ns is None or self.after_ns is None:
            return LaunchChange.SAME
        if abs(self.after_instances - self.expected) <= SAME * self.expected:
            return LaunchChange.SAME
        return LaunchChange.MORE if self.after_instances > self.expected else LaunchChange.FEWER


@dataclass(frozen=True, slots=True)
class StepComparison:
    """Steps of one kind in both profiles. title: the kind, "" if unnamed. measures: mean times of a step: wall, busy,
    idle, exposed communication, sum of the kernels. before, after: number of steps that count. operations: number in
    the median step."""

    title: str
    before: int
    after: int
    before_operations: float
    after_operations: float
    measures: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """changes: the largest change first. unit: times are per "step", "invocation" or "profile". said_first: warnings
    that must come before any number. not_comparable: why the times cannot be compared; None if they can. steps: each
    kind that both profiles have, or the whole profiles if no steps were found. kind: the kind of step that changes
    compare. steps_by: how the steps of each profile were found."""

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
    warnings: tuple[caveats.ComparisonWarning, ...] = ()
    said_first: tuple[caveats.FirstWarning, ...] = ()
    not_comparable: caveats.Caveat | caveats.WholeGraphs | None = None
    steps: tuple[StepComparison, ...] = ()
    kind: str = ""
    steps_by: tuple[StepsFoundBy | None, StepsFoundBy | None] = (None, None)

    @property
    def ratio(self) -> float | None:
        return self.after_ns / self.before_ns if self.before_ns else None


@dataclass(slots=True)
class RowTimes:
    """One kernel or stage in one profile: number of instances, their sum, and if the profile has events the ns of
    each."""

    title: str
    instances: int = 0
    total_ns: float = 0.0
    samples: array[int] = field(default_factory=lambda: array("q"))


def difference(
    name: str, one: RowTimes | None, other: RowTimes | None, divisors: tuple[Fraction | int, Fraction | int]
) -> Difference:
    """divisors: the divisor of the times of each profile."""
    chance, drift = chance_and_drift(one.samples, other.samples) if one and other else (None, 0.0)
    before, after = map(float, divisors)
    return Difference(
        name,
        one.title if one else other.title if other else "",
        one.total_ns / before if one else None,
        other.total_ns / after if other else None,
        one.instances if one else 0,
        other.instances if other else 0,
        expected=one.instances * after / before if one else None,
        chance=chance,
        drift=drift,
    )


def chance_and_drift(one: Sequence[int] | array[int], other: Sequence[int] | array[int]) -> tuple[float | None, float]:
    """Chance and drift of two ordered sequences of times. Each sequence is first averaged over at most BLOCKS
    stretches."""
    left, right = blocks(one), blocks(other)
    drift = max(_drift(one), _drift(other))
    return mann_whitney(left, right), drift


def blocks(values: Sequence[int] | array[int]) -> array[int]:
    """The means of at most BLOCKS stretches of nearly equal length."""
    found = np.asarray(values, np.int64)
    if len(found) <= BLOCKS:
        return array("q", found.tolist())
    return array("q", [round(float(part.mean())) for part in np.array_split(found, BLOCKS)])


def _drift(values: Sequence[int] | array[int]) -> float:
    found = np.asarray(values, float)
    if len(found) < 2 * FEWEST or found.mean() <= 0:
        return 0.0
    first, second = found[: len(found) // 2].mean(), found[len(found) // 2 :].mean()
    return min(float(abs(second - first) / found.mean()), _MOST_DRIFT)


def corrected(changes: Iterable[Difference]) -> list[Difference]:
    """The rows, with each chance corrected for the number of tested rows."""
    rows = list(changes)
    tested = [place for place, row in enumerate(rows) if row.chance is not None]
    for place, chance in zip(tested, holm([rows[place].chance or 0.0 for place in tested]), strict=True):
        rows[place] = replace(rows[place], chance=chance)
    return rows


def ordered(changes: Iterable[Difference]) -> tuple[Difference, ...]:
    """The largest change first, each with its share of the whole change."""
    rows = corrected(changes)
    whole = sum(row.change_ns for row in rows)
    gross = sum(abs(row.change_ns) for row in rows)
    if gross and abs(whole) >= LITTLE * gross:
        rows = [replace(row, share_of_change=row.change_ns / whole) for row in rows]
    return tuple(sorted(rows, key=lambda row: (-abs(row.change_ns), row.name)))


def clock_of(changes: Iterable[Difference]) -> caveats.OtherClock | None:
    """If the times of nearly all kernels changed by the same factor, as they do at another clock."""
    rows = [(row.launch_ratio, row.before_ns) for row in changes if row.launch_ratio and row.before_ns]
    total = sum(time for _, time in rows)
    for factor, _ in sorted(rows, key=lambda row: -row[1])[:_LARGEST]:
        alike = [time for ratio, time in rows if abs(ratio - factor) <= _ALIKE * factor]
        if abs(factor - 1) > SAME and len(alike) >= _LARGEST and sum(alike) >= _MOST_TIME * total:
            return caveats.OtherClock(factor)
    return None


def lettered(before: Iterable[PipelineWarning], after: Iterable[PipelineWarning]) -> list[caveats.ComparisonWarning]:
    """The warnings of both profiles: a shared one once, any other with the letter of its profile."""
    one, other = dict.fromkeys(before), dict.fromkeys(after)
    both = [warning for warning in one if warning in other]
    return [
        *both,
        *(caveats.OfProfile("A", warning) for warning in one if warning not in other),
        *(caveats.OfProfile("B", warning) for warning in other if warning not in one),
    ]
