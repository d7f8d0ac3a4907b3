"""The judge's side of one solution on one case: check, captured calls, timed turns, and the judge's own clock.

A captured call holds addresses: does a replay compute, and does it stay within its own memory once larger calls have
been made? A solution that frees or moves what it keeps between calls leaves its graphs writing over foreign memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kernelderby.catalog import Catalog, Definition
from kernelderby.measure.clock.graphs import NotCapturable
from kernelderby.measure.clock.spans import Spans
from kernelderby.measure.clock.timing import Timer
from kernelderby.measure.judge.batch import Batches
from kernelderby.measure.judge.cases import Case, case_of_workload
from kernelderby.measure.judge.check import CheckRounds
from kernelderby.measure.judge.checksums import checksum
from kernelderby.measure.judge.correctness import POISON, make_ready, reference_outputs, synchronize
from kernelderby.measure.judge.exchange import PASSED, WHILE_TIMED, Exchange, unchanged
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.judge.relay import Relay
from kernelderby.measure.judge.series import Series
from kernelderby.measure.wire.replies import Failed, SetUpTaken, Verdict, Wrong, nonsense
from kernelderby.rows.measurement import Status
from kernelderby.store.counts import counted

KINDS = ("eager", "graph")
_TIMES = 4  # as many output elements: more than what a solution's workspace may have to spare
WARMUP = 3  # untimed calls: compilation happened in the check, this is for clocks and allocator


@dataclass(slots=True)
class Turn:
    """What one round gave: nothing but the verdict unless its status is PASSED. graph: None without a captured call."""

    verdict: Verdict
    eager: Spans = field(default_factory=lambda: Spans([]))
    graph: Spans | None = None


class Race:
    """taken: kind -> the spans of the rounds, for other clocks to look at. has_setup: whether its solution names one;
    without, constants change from turn to turn, whatever its process says."""

    def __init__(self, exchange: Exchange, has_setup: bool = True) -> None:
        self.exchange, self._has_setup = exchange, has_setup
        self.series, self.batches, self.relay = Series(self.exchange), Batches(self.exchange), Relay(self.exchange)
        self.has_graph = False
        self.why: tuple[str, ...] = ()
        self.setup: SetUpTaken | None = None
        self.taken: dict[str, list[Spans]] = {"eager": [], "graph": []}

    def release(self) -> None:
        self.exchange.release()

    def check(self, looks_closer: bool = False, dump: Path | None = None) -> Verdict:
        """Whether it is right at all. An exception of the solution's goes through. looks_closer, dump: see CheckRounds;
        `why` has the lines."""
        check = CheckRounds(self.exchange, looks_closer, dump)
        verdict = check.verdict()
        self.why = check.why
        self.series.repeats = check.repeats
        return verdict

    def start(self) -> None:
        """The contents of the timed calls, and setup on their constants."""
        exchange = self.exchange
        variants = [f"start/{which}" for which in range(len(exchange.sets))]
        exchange.write_what_stays(variants, whole=True)
        synchronize(exchange.maker.device)
        self.setup, *_ = [exchange.executor.set_up(which) for which in range(len(exchange.sets))]
        if self.setup is not None and not self._has_setup:
            raise nonsense("the worker's answer: setup: its solution names none")

    def capture(self) -> None:
        """Captures the call over each set. NotCapturable with the reason; also where a replay on other contents behind
        the same addresses is wrong, because the capture froze what the call should compute."""
        exchange = self.exchange
        exchange.ready_all()
        exchange.executor.capture()
        for which in range(len(exchange.sets)):
            verdict = _replayed(exchange, which, variant=1)
            if verdict.status is not Status.PASSED:
                exchange.executor.drop_graphs()
                raise NotCapturable(
                    "a replay with other contents behind the same addresses is wrong, so the "
                    f"capture froze what depends on them ({verdict.status}: {verdict.message})"
                )
        self.has_graph = True

    def turn(self, number: int, iterations: int, kinds: Collection[str] = KINDS) -> Turn:
        """One round with contents of its own, timed and looked at. What the solution raises goes through. kinds: those
        that are timed; a graph only if one is captured."""
        exchange = self.exchange
        # Otherwise the constants stay what setup saw; in the trial turn, what start() has just written.
        if self.setup is None and (number or not exchange.stays):
            variants = [f"{number}/{which}" for which in range(len(exchange.sets))]
            exchange.write_what_stays(variants, whole=False)
        try:
            for iteration in range(WARMUP):
                exchange.ready_all()
                exchange.executor.call(iteration % len(exchange.sets))
            turn = Turn(PASSED)
            if "eager" in kinds:
                turn.eager = self._timed(number, "eager", iterations)
            if "graph" in kinds and self.has_graph:
                turn.graph = self._timed(number, "graph", iterations)
            self._expect_what_stays()
        except Wrong as wrong:
            try:
                self._expect_what_stays()  # what was changed there explains what is wrong
            except Wrong as cause:
                return Turn(cause.verdict)
            return Turn(wrong.verdict)
        return turn

    def _timed(self, number: int, kind: str, iterations: int) -> Spans:
        spans = self.series.timed(f"{number}/{kind}", kind, iterations)
        if number:  # the trial runs beside those of others
            self.taken[kind].append(spans)
        return spans

    def _expect_what_stays(self) -> None:
        for each, sums in zip(self.exchange.sets, self.exchange.stays, strict=True):
            unchanged(sums, {name: each.inputs[name] for name in sums}, WHILE_TIMED)

    def reference_latency_us(self, timer: Timer, iterations: int) -> float:
        """Median time of the definition's reference, on contents that nobody else reaches."""
        exchange = self.exchange
        inputs = exchange.expected_inputs(0, "reference")
        reference_outputs(exchange.definition, exchange.module, inputs)
        spans = timer.spans(lambda _: reference_outputs(exchange.definition, exchange.module, inputs), iterations)
        return sorted(spans.spans_us)[len(spans.spans_us) // 2]


def overtaken(exchange: Exchange, larger: InputMaker) -> Verdict:
    """Whether the captured calls stay right, and within their own memory, after a larger call."""
    buffers = exchange.buffers(larger)
    try:
        larger.write(buffers.inputs)
        make_ready(buffers.inputs, buffers.outputs, exchange.in_place, POISON[0])
        synchronize(larger.device)
        exchange.executor.overtake(buffers)
    finally:
        buffers.release()
    after = f"a captured call, replayed after a larger one ({larger.case.label})"
    try:
        for which in range(len(exchange.sets)):
            verdict = _replayed(exchange, which, variant=2)
            if verdict.status is not Status.PASSED:
                told = f"{after}: {verdict.status}: {verdict.message}"
                return Verdict(Status.GRAPH_OVERTAKEN, told, verdict.correctness)
        nbytes = int(float(f"{exchange.executor.overwritten():.2g}"))  # the worker's word, with no room for messages
    except Failed as failed:
        raise Failed(Status.GRAPH_OVERTAKEN, f"{after}: {failed.message}", failed.gone) from failed
    if nbytes:
        return Verdict(
            Status.GRAPH_OVERTAKEN, f"{after}, wrote into {counted(nbytes, 'byte')} that were no longer its own"
        )
    return PASSED


def _replayed(exchange: Exchange, which: int, variant: int) -> Verdict:
    """Of other contents, which the timed ones then follow again."""
    own = exchange.write(which, partial(exchange.maker.write, variant=variant, constants=False))
    exchange.ready(which, POISON[variant % 2])
    synchronize(exchange.maker.device)
    exchange.executor.replay(which)
    verdict = exchange.compared(own, exchange.snapshot(which), checksum(own))
    exchange.write(which, partial(exchange.maker.write, constants=False))
    return verdict


def larger_case(catalog: Catalog, definition: Definition, case: Case) -> Case | None:
    """A workload of the definition with more outputs: rather _TIMES as many, rather with the case's widths, rather a
    small one. None where the case is the largest."""
    own = _output_elements(definition, case)
    found = []
    for workload in catalog.workloads(definition.name):
        other = case_of_workload(definition, workload)
        elements = _output_elements(definition, other)
        if elements > own:
            same = sum(other.sizes[axis] == case.sizes[axis] for axis in definition.axes)
            found.append(((elements < _TIMES * own, -same, elements), other))
    return min(found, key=lambda each: each[0])[1] if found else None


def _output_elements(definition: Definition, case: Case) -> int:
    return sum(math.prod(case.sizes[axis] for axis in spec.shape or ()) for spec in definition.outputs.values())
