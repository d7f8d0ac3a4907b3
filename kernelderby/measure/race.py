"""One solution's turns on one case: input sets that rotate, timed calls, and a look at what they left.

Two input sets lie at different addresses. Before every timed call, outside its window, the random inputs of its set
get new contents and the outputs new poison (a private copy, where they lie in an input). The generated inputs stay, so
that the work (the routing, say) is the workload's own. A call chosen at random is compared whole, right after its
window; so is a replay.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from kernelderby.measure.graphs import NotCapturable
from kernelderby.measure.judge.correctness import (
    POISON,
    Candidate,
    Verdict,
    Wrong,
    changed_inputs,
    checksum,
    judge,
    reference_outputs,
    synchronize,
)
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.timing import Spans, Timer, TimingFailed
from kernelderby.trace import Status

INPUT_SETS = 2  # different contents at different addresses
WARMUP = 3  # untimed calls: compilation happened in the check, this is for clocks and allocator

PASSED = Verdict(Status.PASSED)


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
    """Holds the buffers of one case between a solution's turns."""

    def __init__(self, candidate: Candidate, module: ModuleType, maker: InputMaker, timer: Timer) -> None:
        self.candidate, self.module, self.maker, self.timer = candidate, module, maker, timer
        # The generated inputs (routing, say) are the workload's own in every set, so that the work is the same.
        self.inputs = [maker.make(0, random_variant=2 + number) for number in range(INPUT_SETS)]
        self.outputs = [candidate.new_outputs(maker.case, maker.device) for _ in self.inputs]
        self.prepared = [candidate.set_up(inputs, maker.device) for inputs in self.inputs]
        self.replays: list[Callable[[], Any]] = []
        self.random = random.SystemRandom()  # which calls are compared is nothing that a seed could tell

    def call(self, which: int) -> Any:
        return self.candidate(self.inputs[which], self.outputs[which], self.prepared[which].values)

    def capture(self) -> None:
        """Captures the call over each input set. NotCapturable with the reason; also where a replay on other contents
        behind the same addresses is wrong, because the capture froze what the call should compute."""
        replays = [self.timer.capture(lambda which=which: self.call(which)) for which in range(INPUT_SETS)]
        for which, replay in enumerate(replays):
            inputs, outputs = self.inputs[which], self.outputs[which]
            self.maker.rewrite(inputs, variant=1)
            self.candidate.make_ready(inputs, outputs, POISON[1])
            returned = replay()
            synchronize(self.maker.device)
            verdict = self.compared(which, returned)
            self.maker.rewrite(inputs, variant=0)
            if verdict.status is not Status.PASSED:
                raise NotCapturable("a replay with other contents behind the same addresses is wrong, so the capture "
                                    f"froze what depends on them ({verdict.status}: {verdict.message})")
        try:
            self.timer.spans(lambda iteration: replays[iteration % INPUT_SETS](), INPUT_SETS)
        except TimingFailed as error:
            raise NotCapturable(f"a replay has no time: {error}") from error
        self.replays = replays

    def turn(self, number: int, iterations: int) -> Turn:
        """One round with contents of its own, timed and looked at. What the solution raises goes through."""
        if not self.candidate.has_setup:  # constants stay what setup saw
            for which, inputs in enumerate(self.inputs):
                self.maker.refill_random(inputs, variant=f"{number}/{which}")
        before = [checksum(self._steady(inputs)) for inputs in self.inputs]
        for iteration in range(WARMUP):
            self.candidate.make_ready(self.inputs[iteration % INPUT_SETS], self.outputs[iteration % INPUT_SETS],
                                      POISON[0])
            self.call(iteration % INPUT_SETS)
        turn = Turn(PASSED)
        calls = _Calls(self, f"{number}/eager", iterations, self.call)
        turn.eager = calls.timed()
        if self.replays and calls.verdict.status is Status.PASSED:
            calls = _Calls(self, f"{number}/graph", iterations, lambda which: self.replays[which]())
            turn.graph = calls.timed()
        changed = [name for inputs, sums in zip(self.inputs, before, strict=True)
                   for name in changed_inputs(sums, self._steady(inputs))]
        if changed:
            return Turn(Verdict(Status.INPUT_CHANGED, f"it wrote into its input {', '.join(dict.fromkeys(changed))} "
                                "while timed"))
        return turn if calls.verdict.status is Status.PASSED else Turn(calls.verdict)

    def _steady(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs that no timed call gets anew."""
        return {name: value for name, value in inputs.items() if name not in self.maker.changing}

    def compared(self, which: int, returned: Any) -> Verdict:
        """What a call left, against the reference of its inputs as they stand."""
        outputs = self.outputs[which] if self.candidate.destination_passing_style else returned
        try:
            outputs = self.candidate.verified(outputs, self.maker.case, self.maker.device)
        except Wrong as wrong:
            return wrong.verdict
        return judge(self.candidate.definition, self.module, self.inputs[which], outputs)

    def reference_latency_us(self, iterations: int) -> float:
        """Median time of the definition's reference, by the same timer."""
        definition, inputs = self.candidate.definition, self.inputs[0]
        reference_outputs(definition, self.module, inputs)
        spans = self.timer.spans(lambda _: reference_outputs(definition, self.module, inputs), iterations)
        return sorted(spans.spans_us)[len(spans.spans_us) // 2]


class _Calls:
    """The timed calls, or replays, of one turn."""

    def __init__(self, race: Race, name: str, iterations: int, run: Callable[[int], Any]) -> None:
        self.race, self.name, self.iterations, self.run = race, name, iterations, run
        self.chosen = race.random.randrange(iterations)
        self.verdict = PASSED
        self._returned: Any = None
        self._sums: dict[str, int] = {}

    def timed(self) -> Spans:
        return self.race.timer.spans(self._call, self.iterations, self._before, self._after)

    def _before(self, iteration: int) -> None:
        race, which = self.race, iteration % INPUT_SETS
        inputs, outputs = race.inputs[which], race.outputs[which]
        if iteration == self.chosen + 1:
            race.candidate.make_ready(inputs, outputs, POISON[0])
            self.run(which)  # the comparison took memory: the allocator settles before the next window
        race.maker.refresh(inputs, f"{self.name}/{iteration}")
        race.candidate.make_ready(inputs, outputs, POISON[race.random.randrange(2)])
        if iteration == self.chosen:
            self._sums = checksum(inputs)

    def _call(self, iteration: int) -> None:
        self._returned = self.run(iteration % INPUT_SETS)

    def _after(self, iteration: int) -> None:
        returned, self._returned = self._returned, None
        if iteration != self.chosen:
            return
        which = iteration % INPUT_SETS
        changed = changed_inputs(self._sums, self.race.inputs[which])
        if changed:
            self.verdict = Verdict(Status.INPUT_CHANGED, f"it wrote into its input {', '.join(changed)} while timed")
            return
        verdict = self.race.compared(which, returned)
        if verdict.status is not Status.PASSED:
            self.verdict = Verdict(verdict.status, f"after a timed {self.name.partition('/')[2]} call: "
                                   f"{verdict.message}", verdict.correctness)
