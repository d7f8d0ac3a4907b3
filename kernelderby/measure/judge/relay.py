"""The judge's clock of single calls: judge and worker hand the GPU to each other, without a message in a call.

For each call the judge's own stream writes contents that nobody has seen into the worker's buffers, poisons the
outputs, drives everything out of L2 with a buffer of its own, gives the word, waits for the worker's, and copies the
outputs. The worker's stream has the call enqueued already, behind a wait for the word. A GPU runs the kernels of one
process at a time, so a call can neither begin before its contents are there nor run beside the judge's work, and two
calls never meet. The time is that of the judge's own events around all of it. What of that is no call is measured in
the same way, over the same buffers, with a process that holds no solution (the pace).

One call at a time, and the next message after its end. With further calls enqueued behind it, one on two streams took
2.09 ms instead of 9 us (H200, 2026-11-29): two streams of its process wait, and a GPU presumably leaves such a process
only when its time slice is over.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import torch

from kernelderby.measure.clock.timing import flush_bytes
from kernelderby.measure.judge.checksums import bytes_of
from kernelderby.measure.judge.correctness import POISON, Outputs, synchronize
from kernelderby.measure.judge.exchange import COMPARING_SECONDS, ENOUGH_BY_CLOCK, Exchange, Left
from kernelderby.measure.wire.remote import RemoteExecutor
from kernelderby.measure.wire.replies import Failed, Wrong
from kernelderby.measure.wire.signals import Signals
from kernelderby.rows.measurement import Status

FEWEST, MOST, MOST_AGAIN = 8, 128, 512  # again: where the pace was too uncertain
_FIRST = 24  # calls of the pace, by whose spread the number of calls is chosen
_OF_MARGIN = 8  # a median may be off by this part of the margin
_WAKES_US = 60.0  # until a host that waits for its GPU has noticed, and has launched what comes next
# Flushes, while which the judge's host enqueues what is timed, so that no gap of its own is in it: at least two, and
# one more for so many tensors. Two alone left the clock of a call with 11 tensors unsure by 20 us (H200, 2026-11-29).
_AHEAD, _TENSORS_A_FLUSH = 2, 3
_REST_SECONDS = 2  # what a process has launched before it stood still
_PROBES = 9
_CALM = 16  # calls of the pace whose median counts
_IN_TIME = 16  # calls that together take no longer than one answer may
_LONGEST_SECONDS = 2.0  # for which further calls are made, beyond FEWEST
_GLANCES, _GLANCE_BYTES = 8, 4096  # 39 or 40 of 40 looks found each of two early words (H200, 2026-11-30)
_IDLE_US = 120  # a kernel of the judge's takes 13 to 30 us on an idle H200; behind another process 270 us to 1.3 ms


@dataclass(slots=True)
class Pacemaker:
    """A process without a solution. empty_us: kind -> what its call takes by the protocol's timer. slack: kind -> by
    how much this clock was longer than that timer, for a copy that the judge trusts. is_lost: it has failed a call."""

    executor: RemoteExecutor
    signals: Signals
    empty_us: dict[str, float]
    slack: dict[str, Slack] = field(default_factory=dict)
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class Slack:
    """us: too much for a call that takes call_us. It comes of the memory that a call moves in a process that has just
    got the GPU back: on an H200 2 to 5 us for 128 MB, 4 for 200, none for 24 (2026-11-23). So it grows with the call,
    and no further than that."""

    us: float = 0.0
    call_us: float = 0.0

    def of(self, call_us: float) -> float:
        return max(0.0, self.us) * (min(1.0, call_us / self.call_us) if self.call_us > 0 else 1.0)


@dataclass(frozen=True, slots=True)
class Relayed:
    """call_us: of one call, as the protocol's timer would say it. unsure_us: what a claim may fall short of it beside
    the margin, by what the pace has shown. wakes_us: the same of a call that waits for the GPU on its host, as its
    process says."""

    call_us: float
    unsure_us: float
    wakes_us: float = 0.0

    @property
    def most_us(self) -> float:
        return self.call_us + self.unsure_us

    def short_of(self, claimed_us: float, margin_us: float) -> float:
        """By how much a claim falls short, more than it may."""
        return self.call_us - claimed_us - margin_us - self.unsure_us - self.wakes_us


NO_SLACK, NO_PACE = Slack(), Relayed(0.0, math.inf)


def of_medians(
    theirs: Sequence[float],
    paced: Sequence[float],
    empty_us: float,
    slack: Slack = NO_SLACK,
    drift_us: float = 0.0,
    wanted: int = 0,
) -> Relayed:
    """theirs, paced: us of single calls of a solution and of the pace. wanted: number of calls that the solution should
    have made: who is slow, and so makes fewer, gains no uncertainty. Only the pace says how far medians are off: by its
    spread, or by its drift from before the calls to after them, whichever is more."""
    off = _spread(paced) * 1.25 * math.sqrt(1 / max(len(theirs), wanted) + 1 / len(paced))
    call_us = max(0.0, statistics.median(theirs) - statistics.median(paced) + empty_us)
    return Relayed(call_us, slack.of(call_us) + max(2 * off, drift_us))


def calm(times: Sequence[float], block: int = _CALM) -> list[float]:
    """The block of least median: what slows a GPU down for a while lasts longer than one. Of processes that the judge
    trusts: a solution could be quick in one block alone."""
    return list(min((times[at : at + block] for at in range(0, len(times), block)), key=statistics.median))


def calls_for(margin_us: float, paced: Sequence[float], most: int = MOST) -> int:
    """How many calls make a median as certain as the margin asks for."""
    wanted = (1.25 * _spread(paced) * math.sqrt(2) * _OF_MARGIN / margin_us) ** 2
    return max(FEWEST, min(most, math.ceil(wanted)))


def _spread(values: Sequence[float]) -> float:
    """A standard deviation that a few late ones do not change."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(value - middle) for value in values)


class Relay:
    """The single calls of one solution."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange, self._made = exchange, Counter[str]()  # of each kind, so that who races gets the same contents
        self._blocks: set[tuple[int, str]] = set()  # executor and kind whose calls wait for their contents on the host
        self._pace_seconds = 0.0  # of the latest pace: for a call, with the judge's own work around it

    def relayed(
        self,
        pace: Pacemaker,
        kind: str,
        margin_us: float,
        copy_us: float = 0.0,
        most: int = MOST,
        said_us: float = 0.0,
    ) -> Relayed:
        """Wrong where a compared call is. Failed where the worker ends or is late. copy_us: of the outputs that a
        solution returns, which its worker copies. most: maximum number of calls. said_us: of a call with its host, as
        its process says. NO_PACE where the GPU does not come to rest, or the pace is lost. One more call goes ahead,
        which shows whether its host waits for the GPU."""
        exchange, executor = self._exchange, self._exchange.executor
        before = self._paced(pace, kind, _FIRST)
        if not before:
            return NO_PACE
        # Whoever is slow here would otherwise be asked less often, and a median of few calls may come out short.
        affordable = int(_LONGEST_SECONDS / (self._pace_seconds + said_us * 1e-6))
        self.us(executor, exchange.signals, kind, 1)
        wanted = calls_for(margin_us, before, most)
        count = min(wanted, max(FEWEST, affordable))
        drawn = exchange.drawn(f"relay/{kind}/{self._made[kind]}", count, count, COMPARING_SECONDS, ENOUGH_BY_CLOCK)
        left: dict[int, tuple[Left, int, str]] = {}
        theirs = self.us(executor, exchange.signals, kind, count, drawn, left, min(_GLANCES, count // 3))
        after = self._paced(pace, kind, max(wanted, _FIRST))
        compared = ((*left[number], rows) for number, rows in drawn.items())
        exchange.expect_right("after a single call by the judge's clock", compared)
        if not after:
            return NO_PACE
        paced = min(before, after, key=statistics.median)
        drift_us = abs(statistics.median(before) - statistics.median(after))
        slack = pace.slack.get(kind, NO_SLACK)
        found = of_medians(theirs, paced, pace.empty_us[kind] - copy_us, slack, drift_us, wanted)
        waits = kind == "eager" and (id(executor), kind) in self._blocks  # a replay looks at nothing on the host
        return replace(found, wakes_us=_WAKES_US if waits else 0.0)

    def _paced(self, pace: Pacemaker, kind: str, count: int) -> list[float]:
        """Microseconds of calls of the pace; none where there is no pace. Meanwhile the solution's process stands
        still, and what it has launched is waited for: whoever slows the pace would gain."""
        with self._exchange.executor.still():
            if pace.is_lost or not self._comes_to_rest():
                return []
            start = time.monotonic()
            try:
                times = self.us(pace.executor, pace.signals, kind, count)
            except Failed:
                pace.is_lost = True  # an answer may still come, which nobody would understand
                return []
            self._pace_seconds = (time.monotonic() - start) / count
            return times

    def _comes_to_rest(self) -> bool:
        until = time.monotonic() + _REST_SECONDS
        while is_busy(self._exchange.maker.device):
            if time.monotonic() > until:
                return False
        return True

    def us(
        self,
        executor: RemoteExecutor,
        signals: Signals,
        kind: str,
        count: int,
        keeps: Collection[int] = (),
        left: dict[int, tuple[Left, int, str]] | None = None,
        glances: int = 0,
    ) -> list[float]:
        """Microseconds of single calls, the sets in turn. keeps: of which `left` gets the outputs, with the set and the
        variant of the contents. What the judge does between two calls is the same for all of them. glances: calls more,
        somewhere among them, whose outputs must be there when their word is; their time does not count, since a look
        at some of them makes it longer. Wrong if one is early."""
        times, device, until = list[float](), self._exchange.maker.device, math.inf
        room, every = self._exchange.room(len(keeps)), count + (glances if device.type == "cuda" else 0)
        glanced, early = set(self._exchange.random.sample(range(every), every - count)), 0
        for call in range(every):
            if time.monotonic() > until:
                raise Failed(Status.TIMED_OUT, f"{_IN_TIME} single calls took longer than {executor.seconds:g} s")
            if call % _IN_TIME == 0:
                until = time.monotonic() + executor.seconds
            self._made[kind] += 1
            which, variant = call % len(self._exchange.sets), f"relay/{kind}/{self._made[kind]}"
            signals.reset()
            synchronize(device)
            number = -1 if call in glanced else len(times)
            glance = _Glance(self._exchange, which) if call in glanced else None

            def drive(
                which: int = which, variant: str = variant, number: int = number, glance: _Glance | None = glance
            ) -> None:
                us, found = self._single(executor, signals, which, variant, number in keeps, room[-1], glance)
                if number in keeps:
                    room.pop()
                if number >= 0:
                    times.append(us)
                    if left is not None:
                        left[number] = found, which, variant

            waits = device.type == "cuda" and (id(executor), kind) not in self._blocks
            if not executor.relay(kind, which, drive, signals.release, waits):
                self._blocks.add((id(executor), kind))
            early += glance is not None and glance.differs(room[-1])
        if early:
            raise Wrong(Status.REWARD_HACK, f"{early} of {glances} calls were said to be done before they were")
        return times

    def _single(
        self,
        executor: RemoteExecutor,
        signals: Signals,
        which: int,
        variant: str,
        keeps: bool,
        taken: Outputs,
        glance: _Glance | None = None,
    ) -> tuple[float, Left]:
        """Microseconds of a call, and what it has left. taken: gets its outputs."""
        exchange, maker = self._exchange, self._exchange.maker
        device = maker.device
        inputs, outputs = exchange.sets[which].inputs, exchange.sets[which].outputs
        own = exchange.expected_inputs(which, variant)
        changing = [each for each in own if isinstance(own[each], torch.Tensor) and each not in maker.steady]
        synchronize(device)
        for _ in range(_AHEAD + (len(changing) + 2 * len(outputs)) // _TENSORS_A_FLUSH):
            evict_inputs(device)
        watch = _Watch(device)
        if glance:  # from here to the signal nothing may wait for the device: it waits for the call
            glance.wait_for(signals)
        for each in changing:
            bytes_of(inputs[each]).copy_(bytes_of(own[each]))
        exchange.ready(which, POISON[exchange.random.randrange(2)])
        evict_inputs(device)
        signals.give("go", 1)
        signals.wait("done", 1, executor.lives)
        for each, tensor in taken.items():
            tensor.copy_(outputs[each])
        us = watch.stopped(executor.lives, signals.release)
        return us, exchange.left(which, keeps, taken)


class _Glance:
    """A few bytes of an output as they are once the word says that it is complete. A copy engine reads them: it does
    not wait until the GPU has run what another process has launched, as the judge's kernels do."""

    def __init__(self, exchange: Exchange, which: int) -> None:
        every = [bytes_of(tensor) for tensor in exchange.sets[which].outputs.values()]
        self._output = exchange.random.randrange(len(every))
        there = every[self._output]
        first = exchange.random.randrange(max(1, len(there) - _GLANCE_BYTES + 1)) // 16 * 16
        self._part = slice(first, first + _GLANCE_BYTES)
        self._bytes = there[self._part]
        self._seen = _pinned()[: len(self._bytes)]

    def wait_for(self, signals: Signals) -> None:
        with torch.cuda.stream(_beside(self._bytes.device)):
            signals.wait("done", 1)
            self._seen.copy_(self._bytes, non_blocking=True)

    def differs(self, outputs: Outputs) -> bool:
        """From what the judge's own copy has, which is later."""
        _beside(self._bytes.device).synchronize()
        return not torch.equal(self._seen, bytes_of(list(outputs.values())[self._output])[self._part].cpu())


@functools.cache
def _beside(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@functools.cache
def _pinned() -> torch.Tensor:
    return torch.empty(_GLANCE_BYTES, dtype=torch.uint8, pin_memory=True)


class _Watch:
    """The judge's events on its stream, or its thread's clock."""

    def __init__(self, device: torch.device) -> None:
        self._begin = self._end = None
        if device.type == "cuda":
            self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            self._begin.record()
        self._start = time.perf_counter()

    def stopped(self, lives: Callable[[], bool], release: Callable[[], None]) -> float:
        """Microseconds until here. Failed where the worker is gone or late before."""
        if self._begin is None or self._end is None:
            if not lives():
                raise Failed(Status.CRASHED, "the process has ended in the middle of a call")
            return (time.perf_counter() - self._start) * 1e6
        self._end.record()
        while not self._end.query():  # type: ignore[no-untyped-call]
            if not lives():
                release()
                self._end.synchronize()
                raise Failed(Status.CRASHED, "the process has ended, or was late, in the middle of a call")
        return float(self._begin.elapsed_time(self._end)) * 1e3


def evict_inputs(device: torch.device) -> None:
    """What the judge has just written leaves L2, so that nothing is gained where a solution has disabled the flush of
    its own process. That one follows, and leaves L2 as it is before every call."""
    if device.type == "cuda":
        _flush_buffer(device).zero_()


def is_busy(device: torch.device) -> bool:
    """By what a kernel of this process takes until it has run."""
    if device.type != "cuda":
        return False
    took = []
    for _ in range(_PROBES):
        start = time.perf_counter()
        _flush_buffer(device)[:1].zero_()  # behind what the worker's process still does
        synchronize(device)
        took.append((time.perf_counter() - start) * 1e6)
    return statistics.median(took) > _IDLE_US


@functools.cache
def _flush_buffer(device: torch.device) -> torch.Tensor:
    return torch.empty(flush_bytes(device), dtype=torch.uint8, device=device)
