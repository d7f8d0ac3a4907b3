"""A series of timed calls, and a check of the outputs of each.

Before every timed call, outside its window, the random inputs of its set get new contents and the outputs new poison
(the input's contents, where they lie in one). The generated inputs stay, so that the work (the routing, say) is the
workload's own. Calls that were drawn before the series are compared whole when it is over, with the reference of the
judge's own contents. Of all others a checksum is taken right after the window, and the call is made once more, untimed
and in another order, on the same contents: where the solution gave the same bits twice in the check, it has to give
them again.
"""

from __future__ import annotations

import math
import time

from kernelderby.measure.clock.spans import Spans
from kernelderby.measure.judge.checksums import checksum
from kernelderby.measure.judge.correctness import POISON, Outputs, synchronize
from kernelderby.measure.judge.exchange import Exchange, expect_passed
from kernelderby.measure.judge.relay import evict_inputs
from kernelderby.measure.wire.replies import Verdict, Wrong
from kernelderby.rows.measurement import Status

# Of a race so many calls are compared: a solution that is wrong in one of ten is found in 99 of 100 races.
ENOUGH = math.ceil(math.log(0.01) / math.log(0.9))
# How long references of one series may take all the same; one call is compared at least. Of a solution of which calls
# have not repeated, longer.
_COMPARING_SECONDS = {True: 0.1, None: 0.2, False: 0.5}
_ROWS = 4  # of a call that is compared by some rows
_REPEATING_SECONDS = 0.02  # how long the calls that are made once more may take, one at least
_KEPT_BYTES = 256 << 20  # of a series' outputs, so that a call that does not repeat can be compared itself


Sums = dict[str, int]


class Series:
    """repeats: the same bits from the same contents: so far; None never, False no longer. planned: how many series a
    race has."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.repeats: bool | None = None
        self.planned = 1
        self._rows_seconds = 0.0  # what the last reference of some rows has taken

    def drawn(self, name: str, iterations: int) -> dict[int, int | None]:
        """The calls of a series that are compared, each as likely as any other, whole (None) or by some rows: those for
        which whole references take too long, where the definition has REFERENCE_ROWS."""
        exchange, seconds = self._exchange, _COMPARING_SECONDS[self.repeats]
        wanted = min(iterations, math.ceil(ENOUGH / self.planned))
        whole, rows = exchange.affordable(seconds, wanted), 0
        if hasattr(exchange.module, "REFERENCE_ROWS"):
            rows = min(wanted - whole, int(seconds / max(self._rows_seconds or exchange.reference_seconds / 8, 1e-6)))
        calls = exchange.references.drawn(name, iterations)[: whole + rows]
        return {call: None if number < whole else _ROWS for number, call in enumerate(calls)}

    def timed(self, name: str, kind: str, iterations: int) -> Spans:
        """A series of timed calls. Wrong, after its end, where one of the compared ones was.

        Which are compared shows nowhere before the series is over, unless their outputs are too large to be kept."""
        exchange = self._exchange
        sets, maker, random = exchange.sets, exchange.maker, exchange.random
        drawn = self.drawn(name, iterations)
        nbytes = sum(output.nbytes for output in sets[0].outputs.values())
        keeps = iterations * nbytes <= _KEPT_BYTES
        left: dict[int, tuple[Sums, Outputs | None]] = {}  # of the other calls: outputs where there is room for them
        kept: dict[int, tuple[Outputs, Sums]] = {}  # and checksums of the inputs as they lay there then
        found: list[Verdict] = []  # of those that are wrong

        def before(iteration: int) -> None:
            which = iteration % len(sets)
            maker.refresh(sets[which].inputs, f"{name}/{iteration}")
            exchange.ready(which, POISON[random.randrange(2)])
            evict_inputs(maker.device)
            synchronize(maker.device)

        def after(iteration: int) -> None:
            which = iteration % len(sets)
            outputs = exchange.snapshot(which) if keeps or iteration in drawn else None
            if iteration in drawn and outputs is not None:
                kept[iteration] = outputs, exchange.changing_sums(sets[which].inputs)
                if not keeps and len(kept) * nbytes > _KEPT_BYTES:
                    compare_kept()
            elif self.repeats:
                left[iteration] = checksum(sets[which].outputs), outputs

        def compare_kept() -> None:
            for iteration in list(kept):
                (outputs, inputs), which = kept.pop(iteration), iteration % len(sets)
                start = time.monotonic()
                try:
                    verdict = exchange.judged(outputs, inputs, which, f"{name}/{iteration}", drawn[iteration])
                except Wrong as wrong:
                    verdict = wrong.verdict
                if drawn[iteration] is not None:
                    self._rows_seconds = time.monotonic() - start
                if verdict.status is not Status.PASSED:
                    found.append(verdict)

        spans = exchange.hands.spans(kind, iterations, before, after)
        compare_kept()
        if found:
            expect_passed(found[0], f"after a timed {kind} call")
        self._repeat(name, kind, iterations, left)
        return spans

    def _repeat(self, name: str, kind: str, iterations: int, left: dict[int, tuple[Sums, Outputs | None]]) -> None:
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
            sums, kept = left[number]
            if exchange.again(kind, which, POISON[random.randrange(2)]) != sums:
                self.repeats = False if kept is None else None
                inputs = exchange.changing_sums(sets[which].inputs)
                verdict = exchange.judged(kept or exchange.snapshot(which), inputs, which, f"{name}/{number}")
                expect_passed(verdict, f"after a timed {kind} call" if kept else f"a timed {kind} call, made once more")
                return
            if time.monotonic() > until:
                return
