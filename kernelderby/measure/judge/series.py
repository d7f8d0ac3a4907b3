"""A series of timed calls, and a look at what each of them left.

Before every timed call, outside its window, the random inputs of its set get new contents and the outputs new poison
(the input's contents, where they lie in one). The generated inputs stay, so that the work (the routing, say) is the
workload's own. Calls chosen at random are compared whole, from a copy that is taken right after the window. Of all
others a checksum is taken there, and the call is made once more, untimed and in another order, on the same contents:
where the solution gave the same bits twice in the check, it has to give them again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from kernelderby.measure.clock.spans import Spans
from kernelderby.measure.judge.checksums import checksum
from kernelderby.measure.judge.correctness import POISON, Outputs, synchronize
from kernelderby.measure.judge.exchange import Exchange
from kernelderby.measure.judge.flush import evict_inputs
from kernelderby.measure.wire.replies import Verdict, Wrong
from kernelderby.trace import Status

# Of a series of timed calls: how long references may take, by what is known of the solution. One call is compared at
# least. A solution of which calls have not repeated is looked at longer.
_COMPARING_SECONDS = {True: 0.01, None: 0.02, False: 0.1}
_REPEATING_SECONDS = 0.02  # how long the calls that are made once more may take, one at least
_KEPT_BYTES = 256 << 20  # of a series' outputs, so that a call that does not repeat can be compared itself


@dataclass(slots=True)
class _Left:
    """What a timed call left: its checksums, and where there is room for it the outputs themselves."""

    sums: dict[str, int]
    outputs: Outputs | None


class Series:
    """repeats: the same bits from the same contents: so far; None never, False no longer. reference_seconds: what one
    reference takes."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.repeats: bool | None = None
        self.reference_seconds = 0.0

    def timed(self, name: str, kind: str, iterations: int) -> Spans:
        """A series of timed calls. Wrong, after its end, where one of the compared ones was.

        Which are compared shows nowhere until they are done, and whoever has been compared may be again: nobody can
        tell from how long the judge takes when it looks away."""
        exchange = self._exchange
        sets, maker, random = exchange.sets, exchange.maker, exchange.random
        seconds = _COMPARING_SECONDS[self.repeats]
        share = seconds / max(self.reference_seconds, 1e-6) / iterations
        keeps = iterations * sum(output.nbytes for output in sets[0].outputs.values()) <= _KEPT_BYTES
        left: dict[int, _Left] = {}  # of the other calls
        found: list[Verdict] = []

        def before(iteration: int) -> None:
            which = iteration % len(sets)
            maker.refresh(sets[which].inputs, f"{name}/{iteration}")
            exchange.ready(which, POISON[random.randrange(2)])
            evict_inputs(maker.device)
            synchronize(maker.device)

        def after(iteration: int) -> None:
            which = iteration % len(sets)
            is_last_to_compare = not found and iteration == iterations - 1
            if is_last_to_compare or random.random() < share:
                found.append(self._compared(which, f"{name}/{iteration}", f"after a timed {kind} call"))
            elif self.repeats:
                left[iteration] = _Left(checksum(sets[which].outputs), exchange.snapshot(which) if keeps else None)

        spans = exchange.hands.spans(kind, iterations, before, after)
        for verdict in found:
            if verdict.status is not Status.PASSED:
                raise Wrong.of(verdict)
        if not found:
            raise Wrong(Status.RAISED, "a timed call was to be compared, none came")
        self._repeat(name, kind, iterations, left)
        return spans

    def _repeat(self, name: str, kind: str, iterations: int, left: dict[int, _Left]) -> None:
        """Timed calls once more, untimed, in random order: the bits that they left must come again. Where they do not,
        what the call left is compared whole, if it was kept, else what came now; Wrong where it is not right. From then
        on the solution is looked at longer: rounding may hang on the order of atomics, or a call was wrong."""
        exchange = self._exchange
        sets, random = exchange.sets, exchange.random
        still_there = range(iterations)[-len(sets) :]  # nothing has been written over the contents of the last
        ready = [number for number in left if number in still_there]
        rest = [number for number in left if number not in ready]
        until = time.monotonic() + _REPEATING_SECONDS
        for number in (*random.sample(ready, len(ready)), *random.sample(rest, len(rest))):
            which = number % len(sets)
            if number in rest:
                exchange.maker.refresh(sets[which].inputs, f"{name}/{number}")
            if exchange.again(kind, which, POISON[random.randrange(2)]) != left[number].sums:
                kept = left[number].outputs
                self.repeats = False if kept is None else None
                verdict = exchange.judged(which, kept or exchange.snapshot(which), f"{name}/{number}")
                if verdict.status is not Status.PASSED:
                    what = f"after a timed {kind} call" if kept else f"a timed {kind} call, made once more"
                    raise Wrong.of(Verdict(verdict.status, f"{what}: {verdict.message}", verdict.correctness))
                return
            if time.monotonic() > until:
                return

    def _compared(self, which: int, variant: str, when: str) -> Verdict:
        """What a call left, against the reference of its inputs."""
        try:
            verdict = self._exchange.judged(which, self._exchange.snapshot(which), variant)
        except Wrong as wrong:
            return wrong.verdict
        if verdict.status is Status.PASSED:
            return verdict
        return Verdict(verdict.status, f"{when}: {verdict.message}", verdict.correctness)
