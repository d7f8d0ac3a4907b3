"""The candidates of one workload: a worker checks each once, then times the correct ones in turn."""

from __future__ import annotations

import datetime
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernelderby.catalog import Catalog, Solution, Workload
from kernelderby.catalog.selection import workload_label
from kernelderby.measure.judge.cases import case_of_workload
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.tune.pick import Measured, config_text
from kernelderby.measure.wire.process import WorkerProcess
from kernelderby.measure.wire.quoted import shown
from kernelderby.measure.wire.replies import Config, Done, Failed, Kind, TunedTimes, TunePrepared, Verdict
from kernelderby.rows.measurement import Status

HOPELESS = 1.25  # a candidate slower than the best by this factor in the first round gets no further rounds
_LOAD_SECONDS = 600


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """budget_seconds: for all solutions together; None for no limit."""

    rounds: int = 5
    iterations: int = 10
    timeout_seconds: float = 120
    budget_seconds: float | None = None


def is_overdue(deadline: float | None) -> bool:
    """Whether the time is up."""
    return deadline is not None and time.monotonic() >= deadline


class Bench:
    """The worker with a prepared case. A fresh one follows after a crash, a hang or a broken context."""

    def __init__(self, catalog: Catalog, machine: Machine, settings: TuneSettings) -> None:
        self.catalog, self.root, self.machine, self.settings = catalog, catalog.root, machine, settings
        self._worker: WorkerProcess | None = None
        self._holds: tuple[str, str, TunePrepared] | None = None  # solution, workload, their case
        self._loaded: str | None = None
        self._text_hash: str | None = None

    def check(self, solution: Solution, workload: Workload, number: int) -> Verdict:
        """One call of a candidate. Failed if the worker hangs or dies."""
        self.prepared(solution, workload)
        return self._ask(Verdict, "tune_check", self.settings.timeout_seconds, number=number)

    def time(self, solution: Solution, workload: Workload, number: int) -> TunedTimes:
        """One turn of a candidate. Failed if the worker hangs or dies."""
        self.prepared(solution, workload)
        seconds, iterations = self.settings.timeout_seconds, self.settings.iterations
        times = self._ask(TunedTimes, "tune_time", seconds, number=number, iterations=iterations)
        if times.spoiled:
            self.close()
        return times

    def prepared(self, solution: Solution, workload: Workload) -> TunePrepared:
        """Prepares the case in a worker. Failed if this is impossible."""
        if self._holds and self._holds[:2] == (solution.name, workload.uuid):
            return self._holds[2]
        self._holds = None
        if self._loaded != solution.name:
            self.close()  # the next process gets this solution's caches
            self._text_hash = solution.text_hash
            self._ask(Done, "load", _LOAD_SECONDS, definition=solution.definition, solution=solution.name)
            self._loaded = solution.name
        case = case_of_workload(self.catalog.definition(solution.definition), workload).to_json()
        found = self._ask(TunePrepared, "tune_prepare", _LOAD_SECONDS, case=case, protocol=self.machine.protocol)
        self._holds = solution.name, workload.uuid, found
        return found

    def _ask(self, kind: type[Kind], command: str, seconds: float, **arguments: Any) -> Kind:
        """Asks the worker, and ends it if it is gone or its context is broken."""
        if self._worker is None:
            self._worker = WorkerProcess(self.root, self.machine.device, trusted=True, solution_hash=self._text_hash)
        try:
            return self._worker.ask(kind, command, seconds, **arguments)
        except Failed as failed:
            self._holds = None
            if failed.gone or "CUDA error" in failed.message:
                self.close()
            raise

    def close(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker = self._holds = self._loaded = None


@dataclass(slots=True)
class Turns:
    """One workload: every candidate is checked once, and the correct ones are timed in turn. log: gets a line for each
    turn and each failure. failed: gets the failures. key: None until the case is prepared. chosen: the configuration
    that run() uses, if the solution tells it."""

    bench: Bench
    solution: Solution
    workload: Workload
    deadline: float | None
    log: Callable[[str], object]
    failed: list[str]
    key: str | None = None
    configs: tuple[Config, ...] = ()
    chosen: int | None = None

    def measured(self) -> Measured | None:
        """The times; None if nothing ran, or the budget ended before every candidate had a turn."""
        try:
            case = self.bench.prepared(self.solution, self.workload)
        except Failed as failed:
            self._fail(None, "prepare", failed.status, failed.message)
            return None
        self.key, self.configs, self.chosen = case.key, case.configs, case.chosen
        running = []
        for number in range(len(self.configs)):
            if is_overdue(self.deadline):
                return None
            if self._is_right(number):
                running.append(number)
        times = self._rounds(running)
        if not times:
            return None
        return Measured(
            workload_label(self.workload),
            case.key,
            {config_text(self.configs[number]): us for number, us in sorted(times.items())},
            config_text(self.configs[0]),
            None if self.chosen is None else config_text(self.configs[self.chosen]),
        )

    def _is_right(self, number: int) -> bool:
        end: Verdict | Failed
        try:
            end = self.bench.check(self.solution, self.workload, number)
        except Failed as failed:
            end = failed
        if end.status is not Status.PASSED:
            self._fail(number, "check", end.status, end.message)
        return end.status is Status.PASSED

    def _rounds(self, running: list[int]) -> dict[int, float]:
        """Number of a candidate -> median of its rounds' medians. {} if the first round was cut short."""
        order = random.Random(f"0 {self.workload.uuid}")
        medians: dict[int, list[float]] = {number: [] for number in running}
        for turn in range(self.bench.settings.rounds):
            order.shuffle(running)
            for number in list(running):
                if is_overdue(self.deadline):
                    return _middles(medians) if turn else {}
                median = self._time(number, turn)
                if median is None:
                    running.remove(number)
                    medians.pop(number)
                else:
                    medians[number].append(median)
            if turn == 0 and medians:
                best = min(found[0] for found in medians.values())
                kept = (0, self.chosen)
                running = [number for number in running if number in kept or medians[number][0] <= HOPELESS * best]
        return _middles(medians)

    def _time(self, number: int, turn: int) -> float | None:
        try:
            times = self.bench.time(self.solution, self.workload, number)
        except Failed as failed:
            self._fail(number, f"round {turn}", failed.status, failed.message)
            return None
        if times.problem:
            self._fail(number, f"round {turn}", Status.RAISED, times.problem)
            return None
        samples_us = [round(sample, 3) for sample in times.samples_us]
        self._write(config=self.configs[number], heuristic=number == 0, round=turn, samples_us=samples_us)
        return statistics.median(times.samples_us)

    def _fail(self, number: int | None, stage: str, status: str, message: str) -> None:
        config, message = None if number is None else self.configs[number], shown(message)
        line = message.strip().splitlines()[0] if message.strip() else ""
        what = "" if config is None else f" {config_text(config)}"
        self.failed.append(f"{self.solution.name} {workload_label(self.workload)}{what}: {status}: {line}")
        self._write(config=config, stage=stage, status=str(status), message=message)

    def _write(self, **found: Any) -> None:
        machine = self.bench.machine
        row = {
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "solution": self.solution.name,
            "hash": self.solution.hash,
            "gpu": machine.name,
            "protocol": machine.protocol,
            "workload": self.workload.uuid,
            "axes": self.workload.axes,
            "key": self.key,
            **found,
        }
        self.log(json.dumps(row) + "\n")


def _middles(medians: dict[int, list[float]]) -> dict[int, float]:
    return {number: statistics.median(found) for number, found in medians.items()}
