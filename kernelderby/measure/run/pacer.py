"""The process without a solution, which shows the judge's clock of single calls how much of a time is overhead
(judge/relay.py)."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch

from kernelderby.measure.clock.graphs import NotCapturable
from kernelderby.measure.judge.cases import Case
from kernelderby.measure.judge.exchange import Exchange
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.judge.race import Race
from kernelderby.measure.judge.relay import Pacemaker, Slack, calm, of_medians
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.run.workers import START_SECONDS
from kernelderby.measure.wire.process import WorkerProcess
from kernelderby.measure.wire.remote import RemoteExecutor
from kernelderby.measure.wire.replies import Done, Failed, Reply, Wrong
from kernelderby.measure.wire.shared import BufferSet, shared_set
from kernelderby.measure.wire.signals import Signals, signal_set
from kernelderby.measure.worker.empty import trusted_definition

_COPIED = {"cuda": 1 << 24, "cpu": 1 << 10}  # numbers of four bytes: far more than fit into L2
_TIMED, _CALLS = 24, 64  # by the protocol's timer, and by this clock


class Pacer:
    """Starts the process, which imports torch meanwhile."""

    def __init__(self, root: Path, machine: Machine, seconds: float) -> None:
        self._root, self._machine = root, machine
        self._device = torch.device("cuda", 0) if machine.device == "cuda" else torch.device("cpu")
        self._sets: list[BufferSet] = []
        self._worker = WorkerProcess(root, machine.device)
        self._worker.send("begin", START_SECONDS)
        self._begun: Reply | None = None
        self._executor = RemoteExecutor(self._worker, seconds)

    def begun(self) -> Reply:
        """Waits until it has imported torch, or has failed to."""
        self._begun = self._begun or self._worker.receive()
        return self._begun

    def pace(self, empty_us: dict[str, float]) -> Pacemaker:
        """NotPaced with the reason if this machine has no such clock; the process has ended then. empty_us: time of an
        empty kernel, by the protocol's timer."""
        try:
            self.begun().of(Done)
            return self._paced(empty_us)
        except (Failed, Wrong, NotCapturable, MemoryError, RuntimeError) as error:
            self.end()
            raise NotPaced(str(error)) from error

    def end(self) -> None:
        self._worker.kill()
        while self._sets:
            self._sets.pop().release()

    def _paced(self, empty_us: dict[str, float]) -> Pacemaker:
        """Times a trusted copy by the protocol's timer and by this clock; the excess of this clock is the slack."""
        count = _COPIED[self._device.type]
        definition, module = trusted_definition(count), ModuleType("trusted")
        module.run = lambda source: source.clone()  # type: ignore[attr-defined]
        case = Case("a copy", {"one": count}, {}, 0)
        self._load(copies=True)
        maker = InputMaker(definition, module, case, self._device, self._root)
        race = Race(Exchange(definition, module, maker, self._executor))
        try:
            race.start()
            if self._device.type == "cuda":
                race.capture()
            turn = race.turn(1, _TIMED)
            claimed = {"eager": statistics.median(turn.eager.spans_us)}
            if turn.graph is not None:
                claimed["graph"] = statistics.median(turn.graph.spans_us)
            executor, signals = self._executor, race.exchange.signals
            theirs = {kind: race.relay.us(executor, signals, kind, _CALLS) for kind in claimed}
            pace = self._empty(empty_us)
            slack = {}
            for kind, times in theirs.items():
                paced = race.relay.us(pace.executor, pace.signals, kind, _CALLS)
                call_us = of_medians(calm(times), calm(paced), empty_us[kind]).call_us
                slack[kind] = Slack(call_us - claimed[kind], call_us)
            return replace(pace, slack=slack)
        finally:
            race.release()

    def _empty(self, empty_us: dict[str, float]) -> Pacemaker:
        place = ((1,), torch.float32)
        signals = Signals(signal_set(self._device))
        sets = [shared_set({"source": place}, {"destination": place}, self._device) for _ in range(2)]
        self._sets += [*sets, signals.buffers]
        self._worker.ask(Done, "release", START_SECONDS)
        self._load(copies=False)
        self._executor.attach(sets, signals)
        if self._device.type == "cuda":
            self._executor.capture()
        return Pacemaker(self._executor, signals, empty_us)

    def _load(self, copies: bool) -> None:
        self._worker.ask(Done, "load_empty", START_SECONDS, protocol=self._machine.protocol, copies=copies)


class NotPaced(Exception):
    """Why single calls cannot be timed here."""
