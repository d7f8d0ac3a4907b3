"""The judge's side of one solution on one case: check, captured calls, timed turns, and the judge's own clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from kernelderby.catalog import Definition
from kernelderby.measure.clock.spans import Spans
from kernelderby.measure.clock.timing import Timer
from kernelderby.measure.judge import captures
from kernelderby.measure.judge.batch import Batches
from kernelderby.measure.judge.check import CheckRounds
from kernelderby.measure.judge.correctness import reference_outputs, synchronize
from kernelderby.measure.judge.exchange import PASSED, WHILE_TIMED, Exchange, HandsLike, unchanged
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.judge.references import References
from kernelderby.measure.judge.relay import Relay
from kernelderby.measure.judge.series import Series
from kernelderby.measure.wire.replies import SetUpTaken, Verdict, Wrong

WARMUP = 3  # untimed calls: compilation happened in the check, this is for clocks and allocator


@dataclass(slots=True)
class Turn:
    """What one round gave: nothing but the verdict unless its status is PASSED. graph: None without a captured call."""

    verdict: Verdict
    eager: Spans = field(default_factory=lambda: Spans([]))
    graph: Spans | None = None

    @property
    def samples_us(self) -> list[float]:
        return self.eager.spans_us


class Race:
    """in_place: of the solution. shared: the hands are in another process. taken: kind -> the spans of the rounds, for
    other clocks to look at."""

    def __init__(
        self,
        definition: Definition,
        module: ModuleType,
        maker: InputMaker,
        hands: HandsLike,
        in_place: dict[str, str] | None = None,
        shared: bool = True,
        references: References | None = None,
    ) -> None:
        self.exchange = Exchange(definition, module, maker, hands, in_place or {}, shared, references)
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
        for each in (self.series, self.batches, self.relay):
            each.reference_seconds = check.reference_seconds
        return verdict

    def start(self) -> None:
        """The contents of the timed calls, and setup on their constants."""
        exchange = self.exchange
        variants = [f"start/{which}" for which in range(len(exchange.sets))]
        exchange.write_what_stays(variants, whole=True)
        synchronize(exchange.maker.device)
        self.setup, *_ = [exchange.hands.set_up(which) for which in range(len(exchange.sets))]

    def capture(self) -> None:
        """NotCapturable with the reason."""
        captures.capture(self.exchange)
        self.has_graph = True

    def overtaken(self, larger: InputMaker) -> Verdict:
        """Whether the captured calls stay right, and within their own memory, after a larger call."""
        return captures.overtaken(self.exchange, larger)

    def turn(self, number: int, iterations: int) -> Turn:
        """One round with contents of its own, timed and looked at. What the solution raises goes through."""
        exchange = self.exchange
        if self.setup is None:  # otherwise the constants stay what setup saw
            variants = [f"{number}/{which}" for which in range(len(exchange.sets))]
            exchange.write_what_stays(variants, whole=False)
        try:
            for iteration in range(WARMUP):
                exchange.ready_all()
                exchange.hands.call(iteration % len(exchange.sets))
            turn = Turn(PASSED, self.series.timed(f"{number}/eager", "eager", iterations))
            if self.has_graph:
                turn.graph = self.series.timed(f"{number}/graph", "graph", iterations)
            if number:  # the trial runs beside those of others
                self.taken["eager"].append(turn.eager)
                self.taken["graph"] += [turn.graph] if turn.graph else []
            self._expect_what_stays()
        except Wrong as wrong:
            try:
                self._expect_what_stays()  # what was changed there explains what is wrong
            except Wrong as cause:
                return Turn(cause.verdict)
            return Turn(wrong.verdict)
        return turn

    def _expect_what_stays(self) -> None:
        for each, sums in zip(self.exchange.sets, self.exchange.stays, strict=True):
            unchanged(sums, {name: each.inputs[name] for name in sums}, WHILE_TIMED)

    def reference_latency_us(self, timer: Timer, iterations: int) -> float:
        """Median time of the definition's reference."""
        exchange = self.exchange
        inputs = exchange.sets[0].inputs
        reference_outputs(exchange.definition, exchange.module, inputs)
        spans = timer.spans(lambda _: reference_outputs(exchange.definition, exchange.module, inputs), iterations)
        return sorted(spans.spans_us)[len(spans.spans_us) // 2]
