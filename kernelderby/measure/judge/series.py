"""A series of timed calls, and a check of the outputs of each.

Before every timed call, outside its window, the random inputs of its set get new contents and the outputs new poison
(the input's contents, where they lie in one). The generated inputs stay, so that the work (the routing, say) is the
workload's own. Calls that were drawn before the series are compared whole when it is over, with the reference of the
judge's own contents. Of all calls a checksum is taken right after the window, and the call is made once more, untimed
and in another order, on the same contents: where the solution gave the same bits twice in the check, it has to give
them again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection

from kernelderby.measure.clock.spans import Spans
from kernelderby.measure.judge.correctness import POISON, synchronize
from kernelderby.measure.judge.exchange import Exchange, Left
from kernelderby.measure.judge.relay import evict_inputs

# Of a race so many calls are compared: a solution that is wrong in one of ten is found in 99 of 100 races.
ENOUGH = math.ceil(math.log(0.01) / math.log(0.9))
# How long references of one series may take all the same; one call is compared at least. Of a solution of which calls
# have not repeated, longer.
_COMPARING_SECONDS = {True: 0.1, None: 0.2, False: 0.5}
_REPEATING_SECONDS = 0.02  # how long the calls that are made once more may take, one at least
_KEPT_BYTES = 256 << 20  # of a series' outputs, so that a call that does not repeat can be compared itself


class Series:
    """repeats: the same bits from the same contents: so far; None never, False no longer. planned: how many series a
    race has."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.repeats: bool | None = None
        self.planned = 1

    def drawn(self, name: str, iterations: int) -> dict[int, int | None]:
        """The calls of a series that are compared, each as likely as any other, whole (None) or by some rows: those for
        which whole references take too long, where the definition has a reference of some."""
        wanted = min(iterations, math.ceil(ENOUGH / self.planned))
        return self._exchange.drawn(name, iterations, wanted, _COMPARING_SECONDS[self.repeats])

    def timed(self, name: str, kind: str, iterations: int) -> Spans:
        """A series of timed calls. Wrong, after its end, where one of the compared ones was.

        Which are compared shows nowhere before the series is over."""
        exchange = self._exchange
        sets, maker, random = exchange.sets, exchange.maker, exchange.random
        drawn = self.drawn(name, iterations)
        keeps_all = iterations * sum(output.nbytes for output in sets[0].outputs.values()) <= _KEPT_BYTES
        room = exchange.room(iterations if keeps_all else len(drawn))
        left: list[Left] = []

        def before(iteration: int) -> None:
            which = iteration % len(sets)
            maker.refresh(sets[which].inputs, f"{name}/{iteration}")
            exchange.ready(which, POISON[random.randrange(2)])
            evict_inputs(maker.device)
            synchronize(maker.device)

        def after(iteration: int) -> None:
            which, keeps = iteration % len(sets), keeps_all or iteration in drawn
            left.append(exchange.left(which, keeps, exchange.snapshot(which, room[-1])))
            if keeps:
                room.pop()

        spans = exchange.executor.spans(kind, iterations, before, after)
        exchange.expect_right(
            f"after a timed {kind} call",
            ((left[number], number % len(sets), f"{name}/{number}", rows) for number, rows in drawn.items()),
        )
        if self.repeats:
            self._repeat(name, kind, left, {number for number, rows in drawn.items() if rows is None})
        return spans

    def _repeat(self, name: str, kind: str, left: list[Left], right: Collection[int]) -> None:
        """Timed calls once more, untimed, in random order: the bits that they left must come again. The compared ones,
        too, or a worker would know which were compared, as they are in its rivals' series. Where they do not come,
        what the call left is compared whole, if it was kept, else, or if it is known to be right, what came now; Wrong
        where that is not right. From then on the solution is looked at longer: rounding may hang on the order of
        atomics, or a call was wrong."""
        exchange = self._exchange
        sets, random = exchange.sets, exchange.random
        until = time.monotonic() + _REPEATING_SECONDS
        for number in random.sample(range(len(left)), len(left)):
            which, variant = number % len(sets), f"{name}/{number}"
            exchange.maker.refresh(sets[which].inputs, variant)
            if exchange.again(kind, which, POISON[random.randrange(2)]) != left[number].sums:
                kept, now = left[number], exchange.left(which, keeps=True)
                self.repeats = False if kept.outputs is None else None
                is_of_now = kept.outputs is None or number in right
                seen = f"a timed {kind} call, made once more" if is_of_now else f"after a timed {kind} call"
                exchange.expect_right(seen, [(now if is_of_now else kept, which, variant, None)])
                return
            if time.monotonic() > until:
                return
