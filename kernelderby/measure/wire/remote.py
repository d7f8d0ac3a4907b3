"""An executor in another process: the judge's requests to a worker, and the checks of its answers.

Every answer is typed before its use (replies). Times must be of the requested number, finite and positive. Anything
else that a worker sends ends as its own row (Failed), and never ends the run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import msgspec

from kernelderby.measure.clock.graphs import NotCapturable
from kernelderby.measure.clock.spans import Spans
from kernelderby.measure.clock.timing import Call
from kernelderby.measure.wire.process import WorkerProcess
from kernelderby.measure.wire.quoted import quoted
from kernelderby.measure.wire.replies import (
    CaptureDone,
    Done,
    Kind,
    Overwritten,
    Reply,
    SetUpDone,
    SetUpTaken,
    Stop,
    Wrong,
    nonsense,
    text,
)
from kernelderby.measure.wire.shared import BufferSet
from kernelderby.measure.wire.signals import Signals
from kernelderby.measure.wire.still import standing_still
from kernelderby.rows.measurement import Status
from kernelderby.store.counts import counted

# The timer's notes; any other text gets quotation marks.
_NOTES = re.compile(
    r"left out: \d{1,6} records? without timestamps|iterations launched \d{1,6} to \d{1,6} kernels and copies"
    r"|the clock of the records was off, and set by the flushes"
)
_NUMBER = re.compile(r"\d+")
_CLOCKS = 1.01  # of a span: what a busy time in it may exceed it by
_ARMED_SECONDS = 0.25  # time to enqueue some calls; a call that reads its inputs on the host waits for them
_WRONG = {Status.WRONG_SHAPE, Status.WRONG_DTYPE}  # that a worker may report; the judge gives the others


@dataclass(slots=True)
class RemoteExecutor:
    """seconds: the deadline of each answer."""

    worker: WorkerProcess
    seconds: float

    def attach(self, sets: list[BufferSet], signals: Signals) -> None:
        described, descriptors = _described([*sets, signals.buffers])
        self._ask(Done, "attach", descriptors, sets=described[:-1], signals=described[-1])

    def set_up(self, which: int) -> SetUpTaken | None:
        start = time.monotonic()
        taken = self._ask(SetUpDone, "set_up", which=which).setup
        took = time.monotonic() - start
        return taken and SetUpTaken(round(min(taken.seconds, took), 6), round(float(f"{taken.memory_bytes:.6g}")))

    def call(self, which: int) -> None:
        self._ask(Done, "call", which=which)

    def extend(self, sets: Sequence[BufferSet]) -> None:
        described, descriptors = _described(sets)
        self._expect_captured(self._ask(CaptureDone, "extend", descriptors, sets=described))

    def capture(self) -> None:
        self._expect_captured(self._ask(CaptureDone, "capture"))

    @staticmethod
    def _expect_captured(done: CaptureDone) -> None:
        if done.missing:
            raise NotCapturable(quoted(text(done.missing, 600)), spoiled=done.spoiled)

    def drop_graphs(self) -> None:
        self._ask(Done, "drop_graphs")

    def replay(self, which: int) -> None:
        self._ask(Done, "replay", which=which)

    def overtake(self, larger: BufferSet) -> None:
        (described,), descriptors = _described([larger])
        self._ask(Done, "overtake", descriptors, larger=described)

    def overwritten(self) -> int:
        return self._ask(Overwritten, "overwritten").nbytes

    def batch(self, kind: str, count: int) -> None:
        self._ask(Done, "batch", kind=kind, count=count)

    def spans(self, kind: str, iterations: int, before: Call, after: Call) -> Spans:
        """Timed calls. The worker stops before and after each window until the judge has done its part."""
        self.worker.send("spans", self.seconds, kind=kind, iterations=iterations)
        began, longest_us = time.monotonic(), list[float]()
        for iteration in range(iterations):
            for stop, part in (("ready", before), ("done", after)):
                came = self._stop()
                if stop == "done":
                    longest_us.append((time.monotonic() - began) * 1e6)
                if (came.at, came.iteration) != (stop, iteration):
                    said = quoted(text(f"{came.at} {came.iteration}", 100))
                    raise nonsense(f"the worker came to {said} where {stop} {iteration} was due")
                with self.unseen() if stop == "ready" else nullcontext():
                    part(iteration)
                    began = time.monotonic()
                    self.worker.tell({"go": stop}, self.seconds)
        taken = self._typed(Spans, self.worker.receive())
        for name in ("spans_us", "host_us", "wall_us", *(("busy_us", "outside") if taken.busy_us else ())):
            if (count := len(getattr(taken, name))) != iterations:
                raise nonsense(
                    f"the worker's answer: {name}: holds {counted(count, 'number')}, where {iterations} were asked for"
                )
        for busy, span in zip(taken.busy_us, taken.spans_us, strict=False):
            if busy > _CLOCKS * span:  # no reader would take the row
                raise nonsense("the worker's answer: busy_us: is longer than the span around it")
        outside = taken.outside if taken.busy_us else []
        times = {name: _in_nanoseconds(getattr(taken, name), longest_us) for name in ("spans_us", "host_us", "wall_us")}
        times["busy_us"] = _in_nanoseconds(taken.busy_us, times["spans_us"])
        return msgspec.structs.replace(taken, **times, notes=noted(taken.notes), outside=outside)

    def relay(self, kind: str, which: int, drive: Callable[[], None], release: Callable[[], None], waits: bool) -> bool:
        """Runs the worker's call at the judge's signal, which drive() gives; release() frees the worker if drive() ends
        early. waits: wait a while until the call is enqueued. Returns whether it was enqueued before drive()."""
        self.worker.send("relay", self.seconds, kind=kind, which=which)
        is_armed = waits and self.worker.has_answered(_ARMED_SECONDS)
        try:
            drive()
        except Wrong:
            release()
            self._stop()  # Failed if it raised: that is the reason
            self.worker.receive()
            raise
        if (came := self._stop()).at != "armed":
            raise nonsense(f"the worker came to {quoted(text(came.at, 100))} where armed was due")
        self._typed(Done, self.worker.receive())
        return is_armed

    def still(self) -> AbstractContextManager[None]:
        """In this context its process and everything that it has started stand still."""
        return standing_still([self.worker])

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """In this context none of its threads can watch the judge write into shared memory. A GPU separates processes
        by itself."""
        if self.worker.device != "cpu":
            yield
            return
        self.worker.stop()
        try:
            yield
        finally:
            self.worker.go_on()

    def lives(self) -> bool:
        """Whether an answer can still come in time."""
        return self.worker.is_in_time()

    def _ask(self, kind: type[Kind], command: str, descriptors: Sequence[int] = (), /, **arguments: Any) -> Kind:
        self.worker.send(command, self.seconds, descriptors, **arguments)
        return self._typed(kind, self.worker.receive())

    def _stop(self) -> Stop:
        reply = self.worker.receive()
        self._expect_no_wrong(reply)
        return reply.stop()

    def _typed(self, kind: type[Kind], reply: Reply) -> Kind:
        """Failed if the worker reports a failure, Wrong if it gave no valid outputs."""
        self._expect_no_wrong(reply)
        return reply.of(kind)

    def _expect_no_wrong(self, reply: Reply) -> None:
        wrong = reply.wrong
        if wrong is None:
            return
        if wrong.status not in _WRONG:
            raise nonsense("the worker's answer: wrong.status: is no reason that a worker can give")
        raise Wrong(wrong.status, quoted(text(wrong.message)))


def _described(sets: Sequence[BufferSet]) -> tuple[list[dict[str, Any]], list[int]]:
    """The descriptions for the worker; on a CPU with descriptors, to which the handles refer by number."""
    described, descriptors = [], list[int]()
    for each in sets:
        found = dict(each.description or {})
        if isinstance(found["handle"], int):
            descriptors.append(found["handle"])
            found["handle"] = len(descriptors) - 1
        described.append(found)
    return described, descriptors


def _in_nanoseconds(times_us: Sequence[float], longest_us: Sequence[float]) -> list[float]:
    """Rounded to the timers' resolution, and no longer than the judge waited (or than its span, for a busy time), since
    further digits could spell messages, and rows keep them."""
    return [max(1e-3, round(min(each, most), 3)) for each, most in zip(times_us, longest_us, strict=False)]


def noted(said: Sequence[str]) -> list[str]:
    """Of what a worker's timer notes, one of each kind, with numbers of two digits: more could spell messages."""
    found = dict[str, str]()
    for note in (text(each, 300) for each in said):
        if _NOTES.fullmatch(note):
            found.setdefault(_NUMBER.sub("", note), _NUMBER.sub(_in_two_digits, note))
        else:
            found.setdefault("", quoted(note))
    return [*found.values()]


def _in_two_digits(number: re.Match[str]) -> str:
    return f"{float(f'{int(number[0]):.2g}'):.0f}"
