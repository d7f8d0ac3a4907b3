"""The judge's own clock: from the release of many unseen inputs until the outputs are there.

A worker's timer is a claim. The judge releases a batch of calls at once and stops its clock when all outputs lie in
memory of its own. What the clock sees beside the calls (messages, the GPU's change from one process to the other,
launches) it learns from a process without a solution, on the same machine: nothing that a worker says widens a margin.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from kernelderby.measure.judge.correctness import POISON, Outputs, synchronize
from kernelderby.measure.judge.exchange import COMPARING_SECONDS, ENOUGH_BY_CLOCK, Exchange, Left
from kernelderby.measure.wire.remote import RemoteExecutor
from kernelderby.measure.wire.shared import BufferSet, shared_set
from kernelderby.measure.wire.signals import Signals, signal_set

BATCHES = 6
LEAST_US, OF_CALL = 2.0, 0.05  # what a claim may fall short of the judge's clock: the larger of the two, per call
# What may hold up the shortest of several batches as a whole, and how many calls share it at most.
_HELD_UP_US = {"cuda": 64.0, "cpu": 400.0}
_OF_ONE_ALONE_US = 150.0  # on a CPU: a process that has just waited is slow at first
_MOST_SETS = {"cuda": 64, "cpu": 32}
_ROOM = {"cuda": 8 << 30, "cpu": 64 << 20}  # bytes of further sets; of a GPU a quarter of what is free at most
# A copy of outputs within the judge's memory: its launch, and bytes a second of a slow GPU and a busy CPU.
_COPY_SECONDS, _COPIED_PER_SECOND = 2e-5, {"cuda": 2e11, "cpu": 1e9}
_CALIBRATIONS = 24


@dataclass(frozen=True, slots=True)
class Beside:
    """What the judge's clock sees of a batch of empty calls: per batch and per call, in us."""

    batch_us: float
    call_us: float

    def per_call(self, total_us: float, count: int) -> float:
        return max(0.0, total_us - self.batch_us) / count


# Where it could not be measured: generous, so that no honest solution's time comes out longer.
UNKNOWN = {"cuda": Beside(400.0, 10.0), "cpu": Beside(2000.0, 100.0)}


@dataclass(frozen=True, slots=True)
class Clocked:
    """call_us: per call, by the judge's clock. short_us: by how much a claim falls short of it, more than it may; 0
    where it does not."""

    call_us: float
    short_us: float


def sets_for(claimed_us: float, device: str) -> int:
    """How many calls make what may hold up a batch less than half of the margin."""
    margin = max(LEAST_US, OF_CALL * claimed_us)
    return max(2, min(_MOST_SETS[device], math.ceil(2 * _HELD_UP_US[device] / margin)))


def held_against(
    claimed_us: float, total_us: float, count: int, beside: Beside, copy_us: float, device: str
) -> Clocked:
    """total_us: of a batch of so many calls. copy_us: of the copies that each call of a solution which returns its
    outputs leaves to its worker."""
    margin = max(LEAST_US, OF_CALL * claimed_us)
    allowed = max(beside.call_us, claimed_us + min(beside.call_us, LEAST_US)) + copy_us
    least = beside.batch_us + count * (allowed + margin / 2) + max(_HELD_UP_US[device], count * margin / 2)
    call_us = max(0.0, beside.per_call(total_us, count) - copy_us)
    return Clocked(call_us, max(0.0, call_us - claimed_us) if total_us > least else 0.0)


def released(
    executor: RemoteExecutor, sets: Sequence[BufferSet], kind: str, device: torch.device, order: Sequence[int]
) -> tuple[float, dict[int, Outputs]]:
    """Releases a call over each set and copies the outputs in that order; microseconds until all copies are there. A
    worker's word that it is done is only a word, so the clock runs until the outputs are copied."""
    with _one_thread(device):
        start = time.perf_counter()
        executor.batch(kind, len(sets))
        taken = _copied(sets, order, device)
        return (time.perf_counter() - start) * 1e6, taken


def copying_us(sets: Sequence[BufferSet], device: torch.device) -> float:
    """What such copies take, which is no time of the calls. Before they are released and, on a CPU, while the worker
    stands still: one that slowed the copies down would gain. No more than it may, for whoever keeps a GPU busy."""
    most = _longest_copies(5 + len(sets), (tensor for each in sets for tensor in each.outputs.values()), device)
    with _one_thread(device):
        start = time.perf_counter()
        _copied(sets, range(len(sets)), device)
        return min(time.perf_counter() - start, most) * 1e6


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """On a CPU the judge copies with one thread: several wait for each other where somebody else keeps a core busy, and
    an honest call of 1 ms took up to 8."""
    if device.type != "cpu":
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _longest_copies(launches: int, tensors: Iterable[torch.Tensor], device: torch.device) -> float:
    """Seconds that these copies take on a slow machine."""
    return launches * _COPY_SECONDS + sum(each.nbytes for each in tensors) / _COPIED_PER_SECOND[device.type]


def _copied(sets: Sequence[BufferSet], order: Sequence[int], device: torch.device) -> dict[int, Outputs]:
    found = {which: {name: tensor.clone() for name, tensor in sets[which].outputs.items()} for which in order}
    synchronize(device)
    return found


def calibrated(executor: RemoteExecutor, device: torch.device) -> dict[str, Beside]:
    """kind -> what the clock sees beside the calls, from an executor whose calls do hardly anything. Their exceptions
    pass through."""
    place = ((1,), torch.float32)
    most = _MOST_SETS[device.type]
    sets = [shared_set({"source": place}, {"destination": place}, device) for _ in range(most)]
    signals = Signals(signal_set(device))
    try:
        executor.attach(sets, signals)
        kinds = ["eager"]
        if device.type == "cuda":
            executor.capture()
            kinds.append("graph")
        found = {}
        for kind in kinds:
            few, many = (
                min(released(executor, sets[:count], kind, device, range(count))[0] for _ in range(_CALIBRATIONS))
                - min(copying_us(sets[:count], device) for _ in range(_CALIBRATIONS))
                for count in (2, most)
            )
            call_us = max(0.0, many - few) / (most - 2)
            found[kind] = Beside(max(0.0, few - 2 * call_us), call_us)
        return found
    finally:
        for each in (*sets, signals.buffers):
            each.release()


class Batches:
    """beside: kind -> what the clock sees beside the calls."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange, self._made = exchange, 0
        self.beside: Mapping[str, Beside] = {}

    def sets(self, wanted: int) -> int:
        """Makes room for so many calls, or as many as the memory holds. NotCapturable as in Exchange.extend."""
        exchange, device = self._exchange, self._exchange.maker.device
        constants = exchange.definition.constants
        inputs = {name: value for name, value in exchange.sets[0].inputs.items() if name not in constants}
        tensors = [each for each in (*inputs.values(), *exchange.sets[0].outputs.values()) if hasattr(each, "nbytes")]
        nbytes = max(1 << 20, sum(2 * each.nbytes for each in tensors))  # with a copy of the outputs
        room = _ROOM[device.type]
        if device.type == "cuda":
            room = min(room, torch.cuda.mem_get_info(device)[0] // 4)
        return min(wanted, exchange.extend(min(wanted, len(exchange.sets) + room // nbytes)))

    def us(self, kind: str, count: int) -> float:
        """Of a batch of so many calls, without the copies of their outputs. On a CPU it takes no less than calls one
        after another, of which some are made alone: a batch is shorter where the solution makes its calls side by
        side."""
        found, device = self._shortest_us(kind, count), self._exchange.maker.device.type
        if device != "cpu":
            return found
        beside = self.beside.get(kind, UNKNOWN[device])
        alone_us = self._shortest_us(kind, 1) - beside.batch_us - _OF_ONE_ALONE_US
        return max(found, beside.batch_us + count * alone_us)

    def _shortest_us(self, kind: str, count: int) -> float:
        """The shortest of some batches of so many calls, without the copies of their outputs. Calls of each batch are
        compared, of the shortest one more, since it alone counts: which, is drawn before. Wrong where one is not right.

        Nothing lies between the last contents and the clock, so that a thread which watches them gains nothing. The
        order of the copies is drawn, too: what is not there when the worker says so is missed in one of them."""
        exchange, best = self._exchange, float("inf")
        maker, random, seen = exchange.maker, exchange.random, f"after an untimed batch ({kind})"
        compared, waiting = exchange.affordable(COMPARING_SECONDS, count), list[tuple[Left, int, str, None]]()
        copy_us = float("inf")
        for number in range(BATCHES):
            self._made += 1  # asked again, it has seen the contents of before
            names = [f"batch/{kind}/{self._made}/{which}" for which in range(count)]
            order = random.sample(range(count), count)
            with exchange.executor.unseen():
                copy_us = min(copy_us, copying_us(exchange.every[:count], maker.device))
                for which, name in enumerate(names):
                    maker.refresh(exchange.every[which].inputs, name)
                    exchange.ready(which, POISON[number % 2])
                synchronize(maker.device)
            total_us, taken = released(exchange.executor, exchange.every[:count], kind, maker.device, order)
            left = [
                (exchange.left(which, True, taken[which]), which, names[which], None)
                for which in order[: max(compared, ENOUGH_BY_CLOCK)]
            ]
            exchange.expect_right(seen, left[:compared])
            if total_us < best:
                best, waiting = total_us, left[compared:]
        exchange.expect_right(seen, waiting)
        return best - copy_us

    def copy_us(self, kind: str) -> float:
        """What copying the outputs of one call takes here, as a worker does it after each call that returns them. The
        worker stands still meanwhile: it would gain what it slows the copies down by."""
        exchange, count = self._exchange, 16
        outputs = exchange.sets[0].outputs
        held = {name: torch.empty_like(tensor) for name, tensor in outputs.items()}
        best = _longest_copies(len(outputs), outputs.values(), exchange.maker.device)
        with exchange.executor.still():
            for _ in range(4):
                synchronize(exchange.maker.device)
                start = time.perf_counter()
                for _ in range(count):
                    for name, tensor in outputs.items():
                        held[name].copy_(tensor)
                synchronize(exchange.maker.device)
                best = min(best, (time.perf_counter() - start) / count)
        return best * 1e6
