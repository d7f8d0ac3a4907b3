"""Assigns kernels to the stages of a pipeline: by NVTX range, by name, and by place in the invocation.

Without NVTX an invocation is one walk through the stages in their order: it begins with the first stage and ends with
the last kernel of a stage that is not glue, so glue before and after that counts as outside.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kernelderby.profile.names import fits
from kernelderby.profile.spans import KernelSum, Span
from kernelderby.profile.stages.match import StageMatcher

_CACHE_LIMIT = 50_000  # combinations of ranges; numbered ranges would grow it without end


@dataclass(slots=True)
class Tally:
    """Spans counted together. bytes: of copies and memsets. added_ns: the part of total_ns in which no operation that
    started earlier still ran, so that overlapped time counts once, for the first to start."""

    instances: int = 0
    total_ns: float = 0
    bytes: float = 0
    added_ns: float = 0

    def add(self, instances: int, total_ns: float, bytes_: float, added_ns: float = 0) -> None:
        self.instances += instances
        self.total_ns += total_ns
        self.bytes += bytes_
        self.added_ns += added_ns

    def merge(self, other: Tally) -> None:
        self.add(other.instances, other.total_ns, other.bytes, other.added_ns)


@dataclass(slots=True)
class StageWalk:
    """The result of a walk over the spans of one kind (inside marked invocations, or not).

    by_stage: stage -> name -> tally. between: kernels inside invocations that are in no stage. outside: (name, purpose)
    -> tally. per_invocation: stage -> how many kernels an invocation had -> how many invocations.
    span_ns: first start to last end, over all invocations. cut: stage -> number of its kernels that start in the
    nanosecond in which the operation before ends, or in the next one. times: stage -> for each invocation the sum of
    its kernels, and their added time.
    """

    is_marked: bool = False
    invocations: int = 0
    by_stage: dict[int, dict[str, Tally]] = field(default_factory=dict)
    between: dict[str, Tally] = field(default_factory=dict)
    outside: dict[tuple[str, str], Tally] = field(default_factory=dict)
    per_invocation: dict[int, Counter[int]] = field(default_factory=dict)
    span_ns: int = 0
    cut: Counter[int] = field(default_factory=Counter)
    times: dict[int, tuple[array[int], array[int]]] = field(default_factory=dict)


@dataclass(slots=True)
class _Known:
    """The meaning of a name inside ranges of one meaning."""

    name: str
    stages: tuple[int, ...]  # candidates; empty for kernels outside all stages
    places: tuple[int, ...]  # places of those stages among the landmarks; empty for glue
    purpose: str  # its purpose by the ranges, if it is not the pipeline


@dataclass(slots=True)
class _Context:
    """The meaning of a span's ranges. All ranges of one meaning share `known`, even if their numbers differ."""

    label: str | None  # the range that marks its invocation
    is_numbered: bool  # that range belongs to this invocation only
    stage: int | None
    purpose: str
    known: dict[str, _Known]
    track: _Track | None = None  # the last span taken in it


class StageWalker:
    """Takes the spans of a profile in order of start and sorts them into stages and the rest.

    names: every name in the profile, so that stages that never occur are no landmarks. within: marks invocations.
    purpose: ranges -> the purpose of work in them, "" if unknown.
    """

    def __init__(
        self,
        matcher: StageMatcher,
        names: Iterable[str],
        within: re.Pattern[str],
        purpose: Callable[[tuple[str, ...]], str],
    ) -> None:
        self.matcher = matcher
        self.marked, self.unmarked = StageWalk(is_marked=True), StageWalk()
        self.ranges: set[str] = set()  # of stages that occurred
        self._within, self._purpose = within, purpose
        present = {index for name in names for index in matcher.candidates(name)} | set(matcher.by_range.values())
        self._order = {stage: place for place, stage in enumerate(sorted(present - matcher.glue))}
        self._contexts: dict[tuple[str, ...], _Context] = {}
        self._meanings: dict[tuple[int | None, str], dict[str, _Known]] = {}
        self._tracks: dict[tuple[int, int, bool], _Track] = {}
        self._ranges: tuple[str, ...] = ()
        self._context = self._read(())

    def take(self, span: Span) -> None:
        if span.ranges is not self._ranges:  # equal ones are one object
            self._ranges = span.ranges
            self._context = self._contexts.get(span.ranges) or self._read(span.ranges)
        context = self._context
        track = context.track
        if track is None or track.device != span.device or track.process != span.process:
            track = context.track = self._follow(span.process, span.device, context.label is not None)
        track.take(context.known.get(span.name) or self._learn(span.name, context), context, span)

    def _follow(self, process: int, device: int, is_marked: bool) -> _Track:
        track = self._tracks.get((process, device, is_marked))
        if track is None:
            result = self.marked if is_marked else self.unmarked
            track = _Track(process, device, len(self._order) - 1, result)
            self._tracks[process, device, is_marked] = track
        return track

    def finish(self) -> None:
        for track in self._tracks.values():
            track.close()

    def _read(self, ranges: tuple[str, ...]) -> _Context:
        if len(self._contexts) >= _CACHE_LIMIT:
            self._contexts.clear()
        by_range = self.matcher.by_range
        stage = next((by_range[text] for text in reversed(ranges) if text in by_range), None)
        self.ranges.update(text for text in ranges if text in by_range)
        label = next((text for text in ranges if fits(self._within, text)), None)
        is_numbered = label is not None and any(map(str.isdigit, label))
        purpose = self._purpose(ranges)
        known = self._meanings.setdefault((stage, purpose), {})
        context = self._contexts[ranges] = _Context(label, is_numbered, stage, purpose, known)
        return context

    def _learn(self, name: str, context: _Context) -> _Known:
        stages = (context.stage,) if context.stage is not None else self.matcher.candidates(name)
        is_glue = context.stage is None and bool(stages) and stages[0] in self.matcher.glue
        places = () if is_glue else tuple(self._order[stage] for stage in stages)
        known = context.known[name] = _Known(name, stages, places, context.purpose)
        return known


@dataclass(slots=True)
class _Track:
    """The walk on one GPU of one process, over landmarks 0 to tail: the stages that occur and are not glue.

    position: the furthest landmark of the open invocation. counts, times: of this invocation, as in StageWalk. tallies:
    the result's tallies, by stage and name. frontier: the latest end of any operation so far.
    """

    process: int
    device: int
    tail: int
    result: StageWalk
    is_open: bool = False
    label: str | None = None
    position: int = -1
    counts: dict[int, int] = field(default_factory=dict)
    times: dict[int, list[int]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    pending: dict[int, tuple[_Known, Tally]] = field(default_factory=dict)
    tallies: dict[tuple[int, str], Tally] = field(default_factory=dict)
    start: int = 0
    end: int = 0
    frontier: int = 0

    def take(self, known: _Known, context: _Context, span: Span) -> None:
        """Takes a span. It runs two million times on a large profile, so it looks up its tallies once."""
        start, end, label = span.start_ns, span.end_ns, context.label
        frontier, added, is_cut = self.frontier, 0, False
        if end > frontier:
            if start > frontier:
                added = end - start
                is_cut = start == frontier + 1
            else:
                added = end - frontier
                is_cut = start == frontier
            self.frontier = end
        if label is not None and (label != self.label or not self.is_open):
            self._open(known, label, span)
        places = known.places
        if places:
            if not (context.is_numbered and self.is_open) and self._begins(known):
                self._open(known, label, span)
            elif self.pending:
                self._commit()
            place = places[0] if len(places) == 1 else self._place(places)
            if place > self.position:
                self.position = place
            stage = known.stages[0] if len(places) == 1 else known.stages[places.index(place)]
        elif label is None:
            waiting = self.pending.get(id(known))
            if waiting is None:
                waiting = self.pending[id(known)] = (known, Tally())
            waiting[1].add(1, end - start, span.bytes, added)
            return
        elif known.stages:
            stage = known.stages[0]
        else:
            self._between(known.name).add(1, end - start, span.bytes, added)
            self.end = max(self.end, end)
            return
        tally = self.tallies.get((stage, known.name)) or self._tally(stage, known.name)
        tally.instances += 1
        tally.total_ns += end - start
        tally.bytes += span.bytes
        tally.added_ns += added
        self.counts[stage] = self.counts.get(stage, 0) + 1
        self._last(stage, end - start, added)
        if is_cut:
            self.result.cut[stage] += 1
        if end > self.end:
            self.end = end

    def _begins(self, known: _Known) -> bool:
        """Whether a kernel of a stage begins another invocation."""
        if not self.is_open:
            return True
        first, last = known.places[0], known.places[-1]
        if self.tail == 0:  # with one stage, an invocation has each of its kernels once
            again = known.name in self.seen
            self.seen.add(known.name)
            return again
        if self.position > 0 and last == 0:
            return True
        if self.position < self.tail:
            return False
        return last < self.tail or (first < last and known.places[-2] == last - 1)

    def _place(self, places: tuple[int, ...]) -> int:
        """The first of the stages sharing the kernel that the invocation has not passed. If two of them are adjacent,
        each takes one kernel."""
        for number, place in enumerate(places, start=1):
            if place == self.position and places[number : number + 1] == (place + 1,):
                return place + 1
            if place >= self.position:
                return place
        return places[-1]

    def _tally(self, stage: int, name: str) -> Tally:
        names = self.result.by_stage.setdefault(stage, {})
        found = self.tallies[stage, name] = names.setdefault(name, Tally())
        return found

    def _last(self, stage: int, time_ns: int, added_ns: int) -> None:
        times = self.times.get(stage)
        if times is None:
            times = self.times[stage] = [0, 0]
        times[0] += time_ns
        times[1] += added_ns

    def _between(self, name: str) -> Tally:
        return self.result.between.setdefault(name, Tally())

    def _commit(self) -> None:
        """Counts the work since the last stage as inside the invocation, because another stage has followed."""
        for known, tally in self.pending.values():
            if known.stages:
                stage = known.stages[0]
                self._tally(stage, known.name).merge(tally)
                self.counts[stage] = self.counts.get(stage, 0) + tally.instances
                self._last(stage, round(tally.total_ns), round(tally.added_ns))
            else:
                self._between(known.name).merge(tally)
        self.pending.clear()

    def _open(self, known: _Known, label: str | None, span: Span) -> None:
        self.close()
        self.result.invocations += 1
        self.is_open, self.label, self.position = True, label, -1
        self.start, self.end = span.start_ns, span.end_ns
        if self.tail == 0:
            self.seen = {known.name}

    def close(self) -> None:
        """Ends the open invocation; the work since its last stage is outside."""
        for known, tally in self.pending.values():
            key = (known.name, known.purpose)
            self.result.outside.setdefault(key, Tally()).merge(tally)
        self.pending.clear()
        if self.is_open:
            for stage, count in self.counts.items():
                spread = self.result.per_invocation.get(stage)
                if spread is None:
                    spread = self.result.per_invocation[stage] = Counter()
                spread[count] += 1
            for stage, times in self.times.items():
                for kept, time in zip(
                    self.result.times.setdefault(stage, (array("q"), array("q"))), times, strict=True
                ):
                    kept.append(time)
            self.result.span_ns += self.end - self.start
        self.counts.clear()
        self.times.clear()
        self.is_open = False


def split_sums(matcher: StageMatcher, sums: Iterable[KernelSum]) -> StageWalk:
    """The same without events: kernels of stages that share a pattern go to the first stage, and glue counts as
    outside."""
    result = StageWalk()
    for row in sums:
        candidates = matcher.candidates(row.name)
        if candidates and candidates[0] not in matcher.glue:
            tally = result.by_stage.setdefault(candidates[0], {}).setdefault(row.name, Tally())
        else:
            tally = result.outside.setdefault((row.name, ""), Tally())
        tally.add(row.instances, row.total_ns, row.bytes or 0)
    return result
