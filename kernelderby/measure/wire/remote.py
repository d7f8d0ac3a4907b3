"""Hands in another process: what the judge says to a worker, and what it believes of the answers.

Every answer is typed before it is used (replies); times must be as many as asked for, finite and positive. What a
worker sends instead ends as its own row (Failed), never as the end of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kernelderby.measure.clock.graphs import NotCapturable
from kernelderby.measure.clock.timing import Call, Spans
from kernelderby.measure.judge.correctness import Wrong
from kernelderby.measure.wire.process import WorkerProcess
from kernelderby.measure.wire.replies import (
    CaptureDone,
    Done,
    Kind,
    Overwritten,
    Reply,
    SetUpDone,
    SpansTaken,
    nonsense,
    text,
)
from kernelderby.measure.wire.shared import BufferSet
from kernelderby.trace import Status

_WRONG = {Status.WRONG_SHAPE, Status.WRONG_DTYPE}  # what a worker may say of outputs; the rest is the judge's


@dataclass(slots=True)
class RemoteHands:
    """seconds: the deadline of each answer."""

    worker: WorkerProcess
    seconds: float

    def attach(self, sets: list[BufferSet]) -> None:
        self._ask(Done, "attach", sets=[each.description for each in sets])

    def set_up(self, which: int) -> dict[str, float] | None:
        taken = self._ask(SetUpDone, "set_up", which=which).setup
        return None if taken is None else msgspec.structs.asdict(taken)

    def call(self, which: int) -> None:
        self._ask(Done, "call", which=which)

    def capture(self) -> None:
        done = self._ask(CaptureDone, "capture")
        if done.missing:
            raise NotCapturable(text(done.missing, 600), spoiled=done.spoiled)

    def drop_graphs(self) -> None:
        self._ask(Done, "drop_graphs")

    def replay(self, which: int) -> None:
        self._ask(Done, "replay", which=which)

    def overtake(self, larger: BufferSet) -> None:
        self._ask(Done, "overtake", larger=larger.description)

    def overwritten(self) -> int:
        return self._ask(Overwritten, "overwritten").nbytes

    def batch(self, kind: str) -> None:
        self._ask(Done, "batch", kind=kind)

    def spans(self, kind: str, iterations: int, before: Call, after: Call) -> Spans:
        """The worker stops before and after each window until the judge has done its part."""
        self.worker.send("spans", self.seconds, kind=kind, iterations=iterations)
        for iteration in range(iterations):
            for stop, part in (("ready", before), ("done", after)):
                reply = self.worker.receive()
                self._expect_no_wrong(reply)
                came = reply.stop()
                if (came.at, came.iteration) != (stop, iteration):
                    raise nonsense(f"the worker came to {came.at!r} {came.iteration} where {stop} {iteration} was due")
                part(iteration)
                self.worker.tell({"go": stop}, self.seconds)
        taken = self._typed(SpansTaken, self.worker.receive())
        return Spans(
            self._as_many(taken, "spans_us", iterations),
            [text(note, 300) for note in taken.notes],
            self._as_many(taken, "busy_us", iterations) if taken.busy_us else [],
            self._as_many(taken, "host_us", iterations),
            self._as_many(taken, "wall_us", iterations),
            [int(each) for each in self._as_many(taken, "outside", iterations)] if taken.busy_us else [],
        )

    def _ask(self, kind: type[Kind], command: str, /, **arguments: Any) -> Kind:
        self.worker.send(command, self.seconds, **arguments)
        return self._typed(kind, self.worker.receive())

    def _typed(self, kind: type[Kind], reply: Reply) -> Kind:
        """Failed where the worker says so, Wrong where its outputs were none."""
        self._expect_no_wrong(reply)
        return reply.of(kind)

    def _expect_no_wrong(self, reply: Reply) -> None:
        wrong = reply.wrong
        if wrong is None:
            return
        if wrong.status not in _WRONG:
            raise nonsense("the worker's answer: wrong.status: is no reason that a worker can give")
        raise Wrong(wrong.status, text(wrong.message))

    def _as_many(self, taken: SpansTaken, name: str, count: int) -> list[float]:
        times: Sequence[float] = getattr(taken, name)
        if len(times) != count:
            raise nonsense(f"the worker's answer: {name}: holds {len(times)} numbers, where {count} were asked for")
        return [float(each) for each in times]
