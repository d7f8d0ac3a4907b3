"""Hands in another process: what the judge says to a worker, and what it believes of the answers.

Every answer is checked for its form before it is used; times must be as many as asked for, finite and positive. What a
worker sends instead ends as its own row (Failed), never as the end of the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kernelderby.measure.graphs import NotCapturable
from kernelderby.measure.judge.correctness import Wrong
from kernelderby.measure.process import WorkerProcess
from kernelderby.measure.shared import BufferSet
from kernelderby.measure.timing import Call, Spans
from kernelderby.trace import Status

_CHARACTERS = 2000
_NOTES = 20
# What a worker may call its end; the rest is the judge's to say.
_CLAIMED = {Status.RAISED, Status.BUILD_FAILED, Status.OUT_OF_MEMORY, Status.CRASHED, Status.TIMED_OUT}
_WRONG = {Status.WRONG_SHAPE, Status.WRONG_DTYPE}


class Failed(Exception):
    """A worker that raised, hung, died or sent nonsense. It is to be replaced."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def text(value: Any, limit: int = _CHARACTERS) -> str:
    """Any value as text that can be written into a row: no lone surrogates, no control characters but newlines."""
    shown = value if isinstance(value, str) else repr(value)
    shown = shown[:limit].encode("utf-8", "replace").decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in shown)


def failure(reply: dict[str, Any]) -> Failed:
    """Of a reply whose `ok` is not true."""
    try:
        status = Status(str(reply.get("status")))
    except ValueError:
        status = Status.CRASHED
    message = text(reply.get("message") or reply.get("error") or "")
    return Failed(status if status in _CLAIMED else Status.CRASHED, message)


@dataclass(slots=True)
class RemoteHands:
    """seconds: the deadline of each answer."""

    worker: WorkerProcess
    seconds: float

    def attach(self, sets: list[BufferSet]) -> None:
        self._ask("attach", sets=[each.description for each in sets])

    def set_up(self, which: int) -> dict[str, float] | None:
        taken = self._ask("set_up", which=which).get("setup")
        if taken is None:
            return None
        return {name: self._number(taken, name) for name in ("seconds", "memory_bytes")}

    def call(self, which: int) -> None:
        self._ask("call", which=which)

    def capture(self) -> None:
        reply = self._ask("capture")
        if reply.get("missing"):
            raise NotCapturable(text(reply["missing"], 600), spoiled=reply.get("spoiled") is not False)

    def drop_graphs(self) -> None:
        self._ask("drop_graphs")

    def replay(self, which: int) -> None:
        self._ask("replay", which=which)

    def batch(self, kind: str) -> None:
        self._ask("batch", kind=kind)

    def spans(self, kind: str, iterations: int, before: Call, after: Call) -> Spans:
        """The worker stops before and after each window until the judge has done its part."""
        self.worker.send("spans", self.seconds, kind=kind, iterations=iterations)
        for iteration in range(iterations):
            for stop, part in (("ready", before), ("done", after)):
                reply = self.worker.receive()
                if reply.get("at") != stop or reply.get("iteration") != iteration:
                    self._checked(reply)
                    raise self._nonsense(f"came to {reply.get('at')!r} where {stop} {iteration} was due")
                part(iteration)
                self.worker.tell({"go": stop}, self.seconds)
        reply = self._checked(self.worker.receive())
        optional = [] if reply.get("busy_us") == [] else self._times(reply, "busy_us", iterations)
        return Spans(
            self._times(reply, "spans_us", iterations),
            self._notes(reply),
            optional,
            self._times(reply, "host_us", iterations),
            self._times(reply, "wall_us", iterations),
        )

    def _ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        return self._checked(self.worker.ask(command, self.seconds, **arguments))

    def _checked(self, reply: dict[str, Any]) -> dict[str, Any]:
        """Failed where the worker says so, Wrong where its outputs were none."""
        if reply.get("ok") is not True:
            raise failure(reply)
        wrong = reply.get("wrong")
        if wrong is not None:
            if not isinstance(wrong, dict) or wrong.get("status") not in _WRONG:
                raise self._nonsense("gave no reason that a worker can give")
            raise Wrong(Status(wrong["status"]), text(wrong.get("message", "")))
        return reply

    def _times(self, reply: dict[str, Any], name: str, count: int) -> list[float]:
        times = reply.get(name)
        if not isinstance(times, list) or len(times) != count:
            raise self._nonsense(f"{name} holds no {count} times")
        if not all(_is_number(each) and each > 0 for each in times):
            raise self._nonsense(f"{name} holds what is no positive number")
        return [float(each) for each in times]

    def _number(self, reply: dict[str, Any], name: str) -> float:
        if not isinstance(reply, dict) or not _is_number(reply.get(name)) or reply[name] < 0:
            raise self._nonsense(f"{name} is no number")
        return float(reply[name])

    def _notes(self, reply: dict[str, Any]) -> list[str]:
        notes = reply.get("notes")
        if not isinstance(notes, list) or len(notes) > _NOTES:
            raise self._nonsense("notes are no short list")
        return [text(note, 300) for note in notes]

    def _nonsense(self, what: str) -> Failed:
        return Failed(Status.CRASHED, f"the worker's answer: {what}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
