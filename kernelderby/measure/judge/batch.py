"""The judge's own clock: from the release of unseen inputs until the outputs are there."""

from __future__ import annotations

import time

from kernelderby.measure.judge.correctness import POISON, Outputs, synchronize
from kernelderby.measure.judge.exchange import Exchange
from kernelderby.measure.wire.replies import Verdict, Wrong
from kernelderby.trace import Status

BATCHES = 6  # of unseen inputs
# A copy of outputs within the judge's memory: its launch, and bytes a second of a slow GPU and a busy CPU.
_COPY_SECONDS, _COPIED_PER_SECOND = 1e-4, {"cuda": 2e11, "cpu": 1e9}


class Batches:
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._made = 0

    def us(self, kind: str) -> float:
        """The judge's own clock: unseen inputs in every set, released at once, until all outputs are there; per call,
        the least of BATCHES. One set's outputs are compared each time. Wrong where they are not right.

        Nothing lies between the last contents and the clock, so that a thread which watches them gains nothing. The
        clock runs until the outputs are copied, since a worker's word that it is done is only a word; less what another
        copy takes, but no more than it may: whoever keeps the GPU busy meanwhile gains nothing either."""
        exchange, best = self._exchange, float("inf")
        for number in range(BATCHES):
            self._made += 1  # asked again, it has seen the contents of before
            names = [f"batch/{kind}/{self._made}/{which}" for which in range(len(exchange.sets))]
            for which, name in enumerate(names):
                exchange.maker.refresh(exchange.sets[which].inputs, name)
                exchange.ready(which, POISON[number % 2])
            synchronize(exchange.maker.device)
            which = exchange.random.randrange(len(exchange.sets))
            start = time.perf_counter()
            exchange.hands.batch(kind)
            snapshot = exchange.snapshot(which)
            copied = time.perf_counter()
            exchange.snapshot(which)
            copy = min(time.perf_counter() - copied, self._copy_seconds(snapshot))
            best = min(best, (copied - start - copy) * 1e6 / len(exchange.sets))
            verdict = exchange.judged(which, snapshot, names[which])
            if verdict.status is not Status.PASSED:
                what = f"after an untimed batch ({kind}): {verdict.message}"
                raise Wrong.of(Verdict(verdict.status, what, verdict.correctness))
        return best

    def _copy_seconds(self, outputs: Outputs) -> float:
        """What a copy of outputs takes at most where nobody hinders it."""
        nbytes = sum(tensor.nbytes for tensor in outputs.values())
        return _COPY_SECONDS + nbytes / _COPIED_PER_SECOND[self._exchange.maker.device.type]
