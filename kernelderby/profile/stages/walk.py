"""A pipeline's time, stage by stage, and all other work in the profile.

Every nanosecond of GPU work in the profile counts in exactly one place: a stage, between stages (inside an invocation
but in no stage), a kind of work outside, or `unattributed`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kernelderby.errors import DerbyError
from kernelderby.profile.names import expression
from kernelderby.profile.spans import Profile, is_waiting
from kernelderby.profile.stages import notes as noted
from kernelderby.profile.stages.match import StageMatcher
from kernelderby.profile.stages.notes import InvocationsFrom, InvocationSource, PipelineWarning, StageNote
from kernelderby.profile.stages.outside import UNATTRIBUTED, kind_of, purpose
from kernelderby.profile.stages.pipeline import StageWalk, StageWalker, Tally, split_sums
from kernelderby.profile.timeline import Timeline, TimelineBuilder
from kernelderby.rows.measurement import Stage

INVOCATION = r"(?i)\binvocation\b"  # NVTX ranges that mark one; `derby profile run` writes them
OTHER_INVOCATIONS = "same stages outside the marked invocations"
OVERLAP = 0.01  # share of overlap above which kernels overlap; less comes from one that starts as another ends
CUT = 10  # with this many kernels of a stage that start in the nanosecond of another's end, it is no coincidence
BETWEEN = "between"
NOT_ITEMISED = "not itemised"
TOGETHER = " / "  # between the names of stages that make one row


@dataclass(frozen=True, slots=True)
class StageKernel:
    """All spans of one kernel name in one stage. The sums of a stage's kernels are the stage's."""

    name: str
    instances: int
    total_ns: float


@dataclass(frozen=True, slots=True)
class StageRow:
    """One stage, or several that the profile cannot tell apart ("K3 / K5", is_merged). notes: irregular
    counts. Zero instances: nothing in the profile matches.

    added_ns: the part of total_ns in which no operation that started earlier still ran; None without events. A kernel
    that is launched early and waits for the one before it (programmatic dependent launch) has a large total and a small
    added time.
    """

    name: str
    title: str
    kernels: tuple[StageKernel, ...]
    instances: int
    total_ns: float
    is_merged: bool = False
    notes: tuple[StageNote, ...] = ()
    added_ns: float | None = None


@dataclass(frozen=True, slots=True)
class OutsideRow:
    """One kind of work outside the pipeline. bytes: of copies and memsets, 0 if unknown."""

    kind: str
    instances: int
    total_ns: float
    bytes: float = 0


@dataclass(frozen=True, slots=True)
class Pipeline:
    """stages: in pipeline order; then rows BETWEEN and NOT_ITEMISED (the rest of a total that the source states), if
    not empty. total_ns: all GPU work in the profile, pipeline_ns + sum of outside.

    invocations: None if no stage occurs. span_ns: first start to last end over the invocations, None without events.
    outside: largest first, UNATTRIBUTED always last. api_ns: host time in CUDA calls; synchronise_ns: the part that
    waits. samples: stage -> for each invocation with the stage the sum of its kernels, and their added time (ns); only
    with events.
    """

    profile: str
    form: str
    gpu: str | None
    solution: str
    invocations: int | None
    invocations_from: InvocationsFrom
    stages: tuple[StageRow, ...]
    pipeline_ns: float
    outside: tuple[OutsideRow, ...]
    total_ns: float
    span_ns: float | None = None
    timelines: tuple[Timeline, ...] = ()
    synchronise_ns: float = 0
    api_ns: float = 0
    warnings: tuple[PipelineWarning, ...] = ()
    samples: Mapping[str, tuple[Sequence[int], Sequence[int]]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def occurs(self) -> bool:
        """Whether any stage of the solution is in the profile; otherwise the profile is of something else."""
        return any(row.instances for row in self.stages if row.name not in (BETWEEN, NOT_ITEMISED))

    def share(self, row: StageRow) -> float:
        """The row's share of the pipeline's sum of durations; 0 without a pipeline."""
        return row.total_ns / self.pipeline_ns if self.pipeline_ns else 0.0

    def per_invocation_us(self, row: StageRow) -> float | None:
        return row.total_ns / self.invocations / 1e3 if self.invocations else None

    @property
    def added_ns(self) -> float | None:
        """Time in which a kernel of the pipeline ran, overlap counted once; None without events."""
        known = [row.added_ns for row in self.stages if row.added_ns is not None]
        return sum(known) if known else None

    @property
    def overlaps(self) -> bool:
        """Whether kernels overlap so much that durations mislead."""
        return self.added_ns is not None and self.pipeline_ns > (1 + OVERLAP) * self.added_ns

    def time_ns(self, row: StageRow) -> float:
        """The stage's cost in the pipeline: its durations, or its added time if kernels overlap."""
        return row.added_ns if self.overlaps and row.added_ns is not None else row.total_ns

    @property
    def cost_ns(self) -> float:
        """The sum of time_ns over the stages."""
        return sum(map(self.time_ns, self.stages))

    @property
    def unattributed_ns(self) -> float:
        return sum(row.total_ns for row in self.outside if row.kind == UNATTRIBUTED)


def pipeline_of(
    profile: Profile,
    stages: Sequence[Stage],
    solution: str,
    *,
    stated_total_ns: float | None = None,
    within: str = INVOCATION,
) -> Pipeline:
    """Sorts a profile into a solution's stages and the rest.

    stated_total_ns: the pipeline's total, if the source states it and itemises less. within: regular expression of the
    NVTX ranges that mark one invocation each. DerbyError if there are no stages, or within is not a valid expression.
    """
    if not stages:
        raise DerbyError(f"{solution}: its solution.toml has no [[stages]]; add them, or use `derby profile kernels`")
    matcher = StageMatcher(stages)
    names = profile.names()
    span_ns: int | None = None
    timelines: tuple[Timeline, ...] = ()
    ranges: set[str] = set()
    if profile.has_events:
        walked, timelines, ranges = _walk(profile, matcher, names, expression("--within", within))
        span_ns = walked.span_ns
        cut = _cuts(matcher, walked) if profile.form.startswith("nsys") else []
    else:
        cut = []
        walked = split_sums(matcher, profile.sums())
    rows = _stage_rows(matcher, walked, merged=not profile.has_events)
    invocations, source = _invocations(matcher, walked, profile.has_events)
    rows = [_noted(row, matcher, walked, invocations) for row in rows]
    itemised_ns = sum(row.total_ns for row in rows)
    warnings: list[PipelineWarning] = [*profile.warnings, *matcher.warnings, *matcher.unmatched(names, ranges), *cut]
    if stated_total_ns is not None and stated_total_ns > itemised_ns:
        rows.append(StageRow(NOT_ITEMISED, "rest of the stated total", (), 0, stated_total_ns - itemised_ns))
    elif stated_total_ns is not None:
        warnings.append(noted.MoreThanStated(str(profile.path), itemised_ns, stated_total_ns))
    pipeline_ns = sum(row.total_ns for row in rows)
    outside = _outside_rows(walked)
    if not profile.has_events:
        warnings += _glue_outside(matcher, names)
    calls = profile.api_sums()
    return Pipeline(
        str(profile.path),
        profile.form,
        profile.gpu,
        solution,
        invocations,
        source,
        tuple(rows),
        pipeline_ns,
        outside,
        pipeline_ns + sum(row.total_ns for row in outside),
        span_ns,
        timelines,
        sum(call.total_ns for call in calls if is_waiting(call.name)),
        sum(call.total_ns for call in calls),
        tuple(warnings),
        {matcher.stages[stage].name: times for stage, times in walked.times.items()},
    )


def _walk(
    profile: Profile, matcher: StageMatcher, names: list[str], within: re.Pattern[str]
) -> tuple[StageWalk, tuple[Timeline, ...], set[str]]:
    """If invocations are marked, only these are the pipeline, and stages outside them (warm-up, checks) do not
    count."""
    walker, timeline = StageWalker(matcher, names, within, purpose), TimelineBuilder(profile)
    take, measure = walker.take, timeline.take
    for span in profile.spans():
        take(span)
        measure(span)
    walker.finish()
    walked, stray = walker.marked, walker.unmarked
    if not walked.by_stage:
        walked, stray = stray, walked
    for tallies in stray.by_stage.values():
        _merge(walked.outside, (((name, OTHER_INVOCATIONS), tally) for name, tally in tallies.items()))
    _merge(walked.outside, (((name, ""), tally) for name, tally in stray.between.items()))
    _merge(walked.outside, stray.outside.items())
    return walked, timeline.timelines(), walker.ranges


def _merge(into: dict[Any, Any], items: Iterable[Any]) -> None:
    for key, tally in items:
        into.setdefault(key, Tally()).merge(tally)


def _stage_rows(matcher: StageMatcher, walked: StageWalk, merged: bool) -> list[StageRow]:
    """The rows in pipeline order. Stages that a summary cannot tell apart share one row, at the place of the first."""
    rows, taken = [], set()
    for index in range(len(matcher.stages)):
        names = walked.by_stage.get(index, {})
        together = [index]
        if merged:
            together = sorted({other for name in names for other in matcher.candidates(name)} | {index})
        if index in taken:
            continue
        taken.update(together)
        parts = [matcher.stages[part] for part in together]
        rows.append(
            _stage_row(
                TOGETHER.join(stage.name for stage in parts),
                "; ".join(stage.title for stage in parts),
                names,
                is_merged=len(parts) > 1,
                has_order=not merged,
            )
        )
    if walked.between:
        rows.append(_stage_row(BETWEEN, "in no stage, inside invocations", walked.between))
    return rows


def _stage_row(
    name: str, title: str, names: dict[str, Tally], is_merged: bool = False, has_order: bool = True
) -> StageRow:
    kernels = sorted(
        (StageKernel(kernel, tally.instances, tally.total_ns) for kernel, tally in names.items()),
        key=lambda row: (-row.total_ns, row.name),
    )
    return StageRow(
        name,
        title,
        tuple(kernels),
        sum(row.instances for row in kernels),
        sum(row.total_ns for row in kernels),
        is_merged,
        added_ns=sum(tally.added_ns for tally in names.values()) if has_order else None,
    )


def _invocations(matcher: StageMatcher, walked: StageWalk, has_events: bool) -> tuple[int | None, InvocationsFrom]:
    """The number of the pipeline's invocations, and its source. From sums it is the count that most patterns have."""
    if has_events:
        source = InvocationSource.MARKED if walked.is_marked else InvocationSource.COUNTED
        return walked.invocations or None, InvocationsFrom(source)
    counts: Counter[tuple[int, str]] = Counter()
    for stage, tallies in walked.by_stage.items():
        for name, tally in tallies.items():
            counts[stage, matcher.pattern(name)] += tally.instances
    votes = Counter(count for count in counts.values() if count)
    if not votes:
        return None, InvocationsFrom(InvocationSource.NO_STAGE)
    best = max(votes, key=lambda count: (votes[count], sum(other % count == 0 for other in votes), -count))
    return best, InvocationsFrom(InvocationSource.PATTERNS, votes[best], votes.total())


def _noted(row: StageRow, matcher: StageMatcher, walked: StageWalk, invocations: int | None) -> StageRow:
    """The row with notes about irregular counts."""
    notes: list[StageNote] = [noted.SharedName()] if row.is_merged else []
    if row.instances and invocations:
        index = next((i for i, stage in enumerate(matcher.stages) if stage.name == row.name), None)
        spread = walked.per_invocation.get(index) if index is not None else None
        if not spread:
            notes += _about_count(row, invocations)
        elif missing := invocations - spread.total():
            notes.append(noted.MissingSometimes(missing, invocations))
        if spread and len(spread) > 1:
            notes.append(noted.KernelsVary(min(spread), max(spread)))
    return replace(row, notes=tuple(notes))


def _about_count(row: StageRow, invocations: int) -> list[StageNote]:
    """Compares the count with the nearest multiple of the invocations, and detects kernels that take turns."""
    if row.name == BETWEEN:
        return []
    notes: list[StageNote] = []
    each = max(1, round(row.instances / invocations))
    if row.instances != each * invocations:
        notes.append(noted.UnevenCount(row.instances, each, invocations))
    uneven = tuple(kernel.instances for kernel in row.kernels if kernel.instances % invocations)
    if len(uneven) > 1:
        notes.append(noted.TakingTurns(uneven))
    return notes


def _outside_rows(walked: StageWalk) -> tuple[OutsideRow, ...]:
    """Rows by kind, largest first. The unattributed row comes last, even if it is empty."""
    kinds: dict[str, Tally] = {UNATTRIBUTED: Tally()}
    _merge(kinds, ((kind_of(name, said), tally) for (name, said), tally in walked.outside.items()))
    rows = [OutsideRow(kind, tally.instances, tally.total_ns, tally.bytes) for kind, tally in kinds.items()]
    return tuple(sorted(rows, key=lambda row: (row.kind == UNATTRIBUTED, -row.total_ns)))


def _cuts(matcher: StageMatcher, walked: StageWalk) -> list[noted.CutKernels]:
    """The kernels that nsys cut: it ends a kernel at the start of the next one of its stream, even if the two
    overlap."""
    cut = []
    for stage, count in sorted(walked.cut.items()):
        instances = sum(tally.instances for tally in walked.by_stage.get(stage, {}).values())
        if count >= CUT and 2 * count >= instances:
            cut.append((matcher.stages[stage].name, count, instances))
    return [noted.CutKernels(tuple(cut))] if cut else []


def _glue_outside(matcher: StageMatcher, names: list[str]) -> list[noted.GlueOutside]:
    return [
        noted.GlueOutside(matcher.stages[index].name)
        for index in sorted(matcher.glue)
        if any(index in matcher.candidates(name) for name in names)
    ]
