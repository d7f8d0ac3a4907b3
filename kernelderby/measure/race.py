"""One solution's turns on one case: input sets that rotate, timed rounds, and a look at the outputs after each."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType

from kernelderby.measure.judge.correctness import (
    POISON,
    Candidate,
    Verdict,
    Wrong,
    changed_inputs,
    checksum,
    judge,
    poison,
    reference_outputs,
    synchronize,
)
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.timing import CuptiTimer, EventTimer, WallTimer
from kernelderby.trace import Status

INPUT_SETS = 2  # different contents at different addresses
WARMUP = 3  # untimed calls: compilation happened in the check, this is for clocks and allocator


@dataclass(slots=True)
class Turn:
    """What one round gave. samples_us is empty unless verdict.status is PASSED."""

    verdict: Verdict
    samples_us: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Race:
    """Holds the buffers of one case between a solution's turns."""

    def __init__(self, candidate: Candidate, module: ModuleType, maker: InputMaker,
                 timer: CuptiTimer | EventTimer | WallTimer) -> None:
        self.candidate, self.module, self.maker, self.timer = candidate, module, maker, timer
        # The generated inputs (routing, say) are the workload's own in every set, so that the work is the same.
        self.inputs = [maker.make(0, random_variant=2 + number) for number in range(INPUT_SETS)]
        self.outputs = [candidate.new_outputs(maker.case, maker.device) for _ in self.inputs]

    def turn(self, number: int, iterations: int) -> Turn:
        """One round with contents of its own, timed, then checked. What the solution raises goes through."""
        for which, (inputs, outputs) in enumerate(zip(self.inputs, self.outputs, strict=True)):
            self.maker.refill_random(inputs, variant=2 + INPUT_SETS * number + which)
            poison(outputs, POISON[0])
        before = [checksum(inputs) for inputs in self.inputs]
        returned = [None] * INPUT_SETS

        def call(iteration: int) -> None:
            which = iteration % INPUT_SETS
            returned[which] = self.candidate(self.inputs[which], self.outputs[which])

        for iteration in range(WARMUP):
            call(iteration)
        spans = self.timer.spans(call, iterations)
        synchronize(self.maker.device)
        last = (iterations - 1) % INPUT_SETS
        verdict = self._verdict(last, returned[last], before)
        return Turn(verdict, spans.spans_us if verdict.status is Status.PASSED else [], spans.notes)

    def _verdict(self, which: int, returned: object, before: list[dict[str, int]]) -> Verdict:
        for inputs, sums in zip(self.inputs, before, strict=True):
            changed = changed_inputs(sums, inputs)
            if changed:
                return Verdict(Status.INPUT_CHANGED, f"it wrote into its input {', '.join(changed)} while timed")
        try:
            outputs = self.candidate.verified(returned, self.maker.case, self.maker.device)
        except Wrong as wrong:
            return wrong.verdict
        verdict = judge(self.candidate.definition, self.module, self.inputs[which], outputs)
        if verdict.status is Status.PASSED:
            return verdict
        return Verdict(verdict.status, f"after the timed calls: {verdict.message}", verdict.correctness)

    def reference_latency_us(self, iterations: int) -> float:
        """Median time of the definition's reference, by the same timer."""
        definition, inputs = self.candidate.definition, self.inputs[0]
        reference_outputs(definition, self.module, inputs)
        spans = self.timer.spans(lambda _: reference_outputs(definition, self.module, inputs), iterations)
        return sorted(spans.spans_us)[len(spans.spans_us) // 2]
