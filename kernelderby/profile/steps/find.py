"""The steps of a profile: by annotations around their launches, by given ranges, or by their period.

Steps divide the time: a step lasts on its GPU from its first kernel to the first kernel of the next step. So all work
after the beginning of the first step is in a step, and work between two steps belongs to the first of them.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property
from itertools import accumulate

import numpy as np

from kernelderby.errors import DerbyError
from kernelderby.profile import intervals
from kernelderby.profile.activity import moves_data
from kernelderby.profile.names import expression, fits, unnumbered
from kernelderby.profile.spans import Profile, RangeInstance, RangesByTime, SpanKind, outermost
from kernelderby.profile.steps.annotations import StepName, read_annotation
from kernelderby.profile.steps.period import step_starts
from kernelderby.profile.timeline import gpu_label
from kernelderby.store.bounds import expect_few

REPLAYED = 3  # with at least this many operations, a launch is a CUDA graph's
_MOSTLY = 0.5  # share of replayed operations that makes a step one of CUDA graphs


@dataclass(frozen=True, slots=True)
class ProfileStep:
    """One step on one GPU. title: its kind ("decode, 32 requests"), the annotation's word, or "" if found by the
    period. wall_ns: to the next step's first kernel; for the last step to its own end. exposed_ns: communication
    without computing beside it. key: Profile.gpu_of. kernel_ns: sum of the durations of operations that started in it.
    replayed: number of operations of CUDA graphs."""

    title: str
    gpu: str
    start_ns: int
    wall_ns: int
    busy_ns: int
    communication_ns: int
    exposed_ns: int
    kernel_ns: int
    operations: int
    replayed: int
    is_last: bool = False
    key: str = ""

    @property
    def idle_ns(self) -> int:
        return self.wall_ns - self.busy_ns


class StepMark(Enum):
    RANGES = auto()  # that the user named
    ANNOTATIONS = auto()
    PERIOD = auto()


@dataclass(frozen=True, slots=True)
class StepsFoundBy:
    """word: the expression of the ranges, or the first annotation. steps: number found by the period."""

    mark: StepMark
    word: str = ""
    steps: int = 0


@dataclass(frozen=True, slots=True)
class ProfileSteps:
    """found_by: None without steps, and then each GPU has one step for the whole profile. before: number of operations
    before the first step."""

    found_by: StepsFoundBy | None
    steps: tuple[ProfileStep, ...]
    before: int = 0

    @property
    def titles(self) -> list[str]:
        return list(dict.fromkeys(step.title for step in self.steps))

    def of(self, title: str) -> list[ProfileStep]:
        return [step for step in self.steps if step.title == title]

    @property
    def graph_share(self) -> float:
        operations = sum(step.operations for step in self.steps)
        return sum(step.replayed for step in self.steps) / operations if operations else 0.0


class _Work:
    """Every operation of one GPU in order of start. step: number of the marked step in which it was launched, or -1."""

    def __init__(self, process: int, device: int) -> None:
        self.process, self.device = process, device
        self.start, self.end, self.launch = array("q"), array("q"), array("q")
        self.name, self.step, self.stream = array("i"), array("i"), array("q")
        self.moves, self.kernel = bytearray(), bytearray()


def steps_of(profile: Profile, within: str | None = None) -> ProfileSteps:
    """within: regular expression of the ranges that mark the steps. DerbyError: none matches, or the profile has sums
    only."""
    marks, names, found_by = _marks(profile, within)
    numbers: dict[str, int] = {}
    places: dict[tuple[int, int], _Work] = {}
    gpus: dict[str, _Work] = {}
    for span, launch, _ in profile.launched():
        place = span.process, span.device
        work = places.get(place)
        if work is None:
            work = places[place] = gpus.setdefault(profile.gpu_of(*place), _Work(*place))
            expect_few(str(profile.path), "GPUs", len(gpus))
        work.start.append(span.start_ns)
        work.end.append(span.end_ns)
        work.launch.append(-1 if launch is None else launch)
        work.name.append(numbers.setdefault(span.name, len(numbers)))
        work.stream.append(span.stream)
        work.moves.append(moves_data(span))
        work.kernel.append(span.kind is SpanKind.KERNEL)
        work.step.append(marks.number(span.process, span.start_ns if launch is None else launch) if marks else -1)
    several = len({work.process for work in gpus.values()}) > 1
    found: list[ProfileStep] = []
    before = 0
    for key, work in gpus.items():
        label = gpu_label(work.process, work.device, several)
        starts, last, titles = _cuts(work, names)
        if not len(starts) and within is None:
            starts, last, titles = _by_period(work)
            if len(starts):
                found_by = found_by or StepsFoundBy(StepMark.PERIOD, steps=len(starts))
        if len(starts):
            steps, early = _measured(work, starts, last, titles, label)
            found += [replace(step, key=key) for step in steps]
            before += early
    if within is not None and not found:
        raise DerbyError(f"{profile.path}: nothing was launched in a range that fits '{within}'; name another one")
    if not found:
        for key, work in gpus.items():
            label = gpu_label(work.process, work.device, several)
            [step], _ = _measured(work, np.array([min(work.start)], np.int64), max(work.end), [""], label)
            found.append(replace(step, key=key))
        return ProfileSteps(None, tuple(found))
    return ProfileSteps(found_by, tuple(found), before)


class _Marks(RangesByTime):
    """The marked steps, numbered by process and time."""

    def number(self, process: int, moment: int) -> int:
        """-1 outside all of them."""
        place = self.place(process, moment)
        return place if place < 0 else place + self._before[process]

    @cached_property
    def _before(self) -> dict[int, int]:
        """Process -> the number of steps of the processes before it."""
        return dict(zip(self.of_process, accumulate(map(len, self.of_process.values()), initial=0), strict=False))


def _marks(profile: Profile, within: str | None) -> tuple[_Marks | None, list[str], StepsFoundBy | None]:
    """The marked steps, their titles, and what marks them."""
    pattern = expression("--within", within) if within is not None else None
    named: list[tuple[RangeInstance, StepName]] = []
    for each in profile.range_instances():
        if pattern is not None:
            if fits(pattern, each.name):
                named.append((each, read_annotation(each.name) or StepName(_word(each.name), 0)))
        elif (name := read_annotation(each.name)) is not None:
            named.append((each, name))
    if not named:
        if pattern is not None:
            raise DerbyError(profile.no_range(str(within)))
        return None, [], None
    best = _best_form(named)
    chosen = outermost((each for each in named if pattern is not None or each[1].form == best), lambda each: each[0])
    titles = [name.title for _, name in chosen]
    found_by = StepsFoundBy(StepMark.ANNOTATIONS, chosen[0][0].name)
    if within is not None:
        found_by = StepsFoundBy(StepMark.RANGES, within)
    return _Marks(each for each, _ in chosen), titles, found_by


def _word(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"[\d.]+", "", unnumbered(text))).strip(" #:_-[](),") or text


def _best_form(named: list[tuple[RangeInstance, StepName]]) -> int:
    """The most informative spelling, unless another one marks far more steps."""
    counts = Counter(name.form for _, name in named)
    return min(counts, key=lambda form: (counts[form] * 4 < max(counts.values()) and counts[form] < 2, form))


_Cuts = tuple[np.ndarray, int, list[str]]
_NO_STEPS: _Cuts = np.empty(0, np.int64), 0, []


def _cuts(work: _Work, titles: list[str]) -> _Cuts:
    """The beginnings of the marked steps on this GPU in order, the end of the last one, and the titles."""
    step = np.frombuffer(work.step, np.int32)
    marked = np.flatnonzero(step >= 0)
    if not len(marked):
        return _NO_STEPS
    kernels = np.frombuffer(work.kernel, np.uint8)[marked] == 1
    marked_kernels = marked[kernels] if kernels.any() else marked
    start, end = np.frombuffer(work.start, np.int64), np.frombuffer(work.end, np.int64)
    numbers, first = np.unique(step[marked_kernels], return_index=True)
    starts = start[marked_kernels[first]]
    order = np.argsort(starts, kind="stable")
    last = int(end[step == numbers[order[-1]]].max())
    return starts[order], last, [titles[number] for number in numbers[order].tolist()]


def _by_period(work: _Work) -> _Cuts:
    """The same without marks, by the kernels of the stream with most kernels."""
    kernels = np.flatnonzero(np.frombuffer(work.kernel, np.uint8) == 1)
    if not len(kernels):
        return _NO_STEPS
    streams = np.frombuffer(work.stream, np.int64)[kernels]
    values, counts = np.unique(streams, return_counts=True)
    main = kernels[streams == values[np.argmax(counts)]]
    places = step_starts(np.frombuffer(work.name, np.int32)[main])
    if places is None:
        return _NO_STEPS
    starts = np.frombuffer(work.start, np.int64)[main[places]]
    return starts, int(np.frombuffer(work.end, np.int64).max()), [""] * len(starts)


def _measured(
    work: _Work, starts: np.ndarray, last: int, titles: list[str], label: str
) -> tuple[list[ProfileStep], int]:
    """The steps, and the number of operations before the first."""
    cuts = np.append(starts, max(last, int(starts[-1])))
    start, end = np.frombuffer(work.start, np.int64), np.frombuffer(work.end, np.int64)
    moves = np.frombuffer(work.moves, np.uint8) == 1
    busy = intervals.within(intervals.union(start, end), cuts)
    computing = intervals.within(intervals.union(start[~moves], end[~moves]), cuts)
    communicating = intervals.within(intervals.union(start[moves], end[moves]), cuts)
    step = np.searchsorted(starts, start, side="right") - 1
    step[start >= cuts[-1]] = len(starts)  # after the last step
    inside = (step >= 0) & (step < len(starts))
    count = np.bincount(step[inside], minlength=len(starts))
    total = np.bincount(step[inside], (end - start)[inside], len(starts))
    replayed = np.bincount(step[inside & _replayed(work)], minlength=len(starts))
    found = [
        ProfileStep(
            title,
            label,
            int(cuts[number]),
            int(cuts[number + 1] - cuts[number]),
            int(busy[number]),
            int(communicating[number]),
            int(busy[number] - computing[number]),
            int(total[number]),
            int(count[number]),
            int(replayed[number]),
        )
        for number, title in enumerate(titles)
    ]
    found[-1] = replace(found[-1], is_last=True)
    return found, int((step < 0).sum())


def _replayed(work: _Work) -> np.ndarray:
    """A mask of the operations that one launch started together with others: those of a CUDA graph."""
    launch = np.frombuffer(work.launch, np.int64)
    _, inverse, counts = np.unique(launch, return_inverse=True, return_counts=True)
    return (counts[inverse] >= REPLAYED) & (launch >= 0)


Windows = dict[str, tuple[list[int], list[int]]]  # Profile.gpu_of -> starts and ends of steps, in order


def windows_of(steps: Iterable[ProfileStep]) -> Windows:
    found: Windows = {}
    for step in sorted(steps, key=lambda each: each.start_ns):
        starts, ends = found.setdefault(step.key, ([], []))
        starts.append(step.start_ns)
        ends.append(step.start_ns + step.wall_ns)
    return found


def replays_graphs(found: ProfileSteps) -> bool:
    return found.graph_share > _MOSTLY
