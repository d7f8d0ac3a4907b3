"""Measures competitors: each in a process of its own, on one workload in turn, row by row into traces/."""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernelderby.catalog import Catalog, Definition, Solution, Workload
from kernelderby.measure.judge.cases import case_of_workload, select_workloads, workload_label
from kernelderby.measure.machine.environment import GpuSensors, git_commit, host_cpu
from kernelderby.measure.machine.probe import Machine, exclusive
from kernelderby.measure.machine.requirements import why_not
from kernelderby.measure.process import WorkerProcess
from kernelderby.measure.traces import append_row, repair, settled_keys
from kernelderby.trace import Correctness, Measurement, Status

_START_SECONDS = 180  # importing torch and the solution's libraries; the timeout of a case counts from there
_ROUND_MICROSECONDS = 200_000  # solutions slower than this / iterations get fewer iterations a round, 2 at least
_REFERENCE_ITERATIONS = 3


@dataclass(frozen=True, slots=True)
class Settings:
    """timeout_seconds: for each step of a solution (check with compilation, one round). again: measure also what has
    a row. together: when any chosen solution lacks a row on a workload, measure all of them, so that they pair."""

    rounds: int = 5
    iterations: int = 10
    timeout_seconds: float = 300
    again: bool = False
    together: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """One workload and the solutions to measure on it in turn."""

    definition: Definition
    workload: Workload
    solutions: tuple[Solution, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """skipped: solution -> reason. settled: how many (solution, workload) pairs have their row already."""

    jobs: tuple[Job, ...]
    skipped: dict[str, str]
    settled: int

    def steps(self, rounds: int) -> int:
        return sum(len(job.solutions) * (1 + rounds) for job in self.jobs)


class Observer:
    """What the runner tells while it works; the command overrides it."""

    def step(self, what: str) -> None:
        """One of Plan.steps is done."""

    def row(self, row: Measurement) -> None:
        """A row was written."""

    def note(self, line: str) -> None:
        """Something worth a line."""


def make_plan(catalog: Catalog, machine: Machine, settings: Settings, solutions: Iterable[str] = (),
              definitions: Iterable[str] = (), workloads: Iterable[str] = ()) -> Plan:
    """What is to be measured. Without names: everything. DerbyError for a name that does not exist."""
    chosen = [catalog.solution(name) for name in solutions] or list(catalog.solutions.values())
    wanted = [catalog.definition(name) for name in definitions] or list(catalog.definitions.values())
    jobs, skipped, settled = [], {}, 0
    for solution in chosen:
        reason = why_not(solution, machine)
        if reason and solution.definition in {definition.name for definition in wanted}:
            skipped[solution.name] = reason
    for definition in wanted:
        racers = [one for one in chosen if one.definition == definition.name and one.name not in skipped]
        if not racers:
            continue
        known = settled_keys(catalog.traces(definition.name))
        for workload in select_workloads(catalog.workloads(definition.name), workloads):
            missing = [one for one in racers
                       if settings.again or (one.hash, workload.uuid, machine.name, machine.protocol) not in known]
            measured = racers if settings.together and missing else missing
            settled += len(racers) - len(measured)
            if measured:
                jobs.append(Job(definition, workload, tuple(measured)))
    return Plan(tuple(jobs), skipped, settled)


@dataclass(slots=True)
class _Racer:
    """A solution on one workload: its worker, and what it has shown so far."""

    solution: Solution
    worker: WorkerProcess
    iterations: int = 0
    correctness: Correctness | None = None
    rounds: list[tuple[float, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    clocks_before: dict[str, Any] = field(default_factory=dict)


class Runner:
    def __init__(self, catalog: Catalog, machine: Machine, settings: Settings, observer: Observer) -> None:
        self.catalog, self.machine, self.settings, self.observer = catalog, machine, settings, observer
        self.rows: list[Measurement] = []
        self.session = f"{_now()}-{secrets.token_hex(3)}"
        self._workers: dict[str, WorkerProcess] = {}
        self._unbuildable: dict[str, dict[str, Any]] = {}
        self._sensors = GpuSensors(machine.gpu["uuid"]) if machine.gpu else None
        self._environment = self._describe()

    def run(self, plan: Plan) -> list[Measurement]:
        """Works the plan off and returns the rows. Whatever ends it, the workers end too."""
        with exclusive(self.machine, self.catalog.root):
            try:
                definition = None
                for job in plan.jobs:
                    if job.definition is not definition:
                        self._end_workers()
                        definition = job.definition
                        note = repair(self._path(definition))
                        if note:
                            self.observer.note(note)
                    self._run_job(job)
            finally:
                self._end_workers()
        return self.rows

    # ------------------------------------------------------------------------------------------------- one workload

    def _run_job(self, job: Job) -> None:
        racers = self._prepare(job, self._load(job))
        for number in range(1, self.settings.rounds + 1):
            racers = [racer for racer in racers if self._turn(job, racer, number)]
        reference = self._reference_latency(racers)
        for racer in racers:
            samples = [sample for spans in racer.rounds for sample in spans]
            self._write(job, racer.solution, Status.PASSED, "; ".join(dict.fromkeys(racer.notes)), racer,
                        latency_us=statistics.median(samples), reference_latency_us=reference)
        for worker in self._workers.values():
            worker.send("release", self.settings.timeout_seconds)
        for name, worker in list(self._workers.items()):
            if not worker.receive()["ok"]:
                self._drop(name)

    def _load(self, job: Job) -> list[_Racer]:
        """A worker for each solution, its code loaded; those that start do so side by side."""
        starting, racers = [], []
        for solution in job.solutions:
            if solution.name not in self._workers and solution.name not in self._unbuildable:
                worker = self._workers[solution.name] = WorkerProcess(self.catalog.root, self.machine.device)
                worker.send("load", _START_SECONDS + self.settings.timeout_seconds, definition=job.definition.name,
                            solution=solution.name)
                starting.append(solution)
        for solution in starting:
            reply = self._workers[solution.name].receive()
            if not reply["ok"]:
                self._drop(solution.name)
                self._unbuildable[solution.name] = reply
        for solution in job.solutions:
            if solution.name in self._unbuildable:
                reply = self._unbuildable[solution.name]
                self._write(job, solution, Status(reply["status"]), reply["message"])
                self._skip_steps(solution, 1 + self.settings.rounds)
            else:
                racers.append(_Racer(solution, self._workers[solution.name]))
        return racers

    def _prepare(self, job: Job, racers: list[_Racer]) -> list[_Racer]:
        """Checks all of them side by side (compilation takes the CPU's time); gives back those that passed."""
        case = case_of_workload(job.definition, job.workload).to_json()
        for racer in racers:
            racer.worker.send("prepare", self.settings.timeout_seconds, case=case, protocol=self.machine.protocol)
        passed = []
        for racer in racers:
            reply = racer.worker.receive()
            self.observer.step(f"{racer.solution.name} checked on {workload_label(job.workload)}")
            if self._continues(job, racer, reply, steps_left=self.settings.rounds):
                racer.iterations = max(2, min(self.settings.iterations,
                                              int(_ROUND_MICROSECONDS / max(reply["latency_us"], 1e-3))))
                passed.append(racer)
        return passed

    def _turn(self, job: Job, racer: _Racer, number: int) -> bool:
        """One round of one solution, alone on the GPU. False when it is out."""
        if self._sensors and not racer.clocks_before:
            racer.clocks_before = self._sensors.read()
        reply = racer.worker.ask("measure", self.settings.timeout_seconds, number=number, iterations=racer.iterations)
        self.observer.step(f"{racer.solution.name} round {number} on {workload_label(job.workload)}")
        if not self._continues(job, racer, reply, steps_left=self.settings.rounds - number):
            return False
        racer.rounds.append(tuple(round(sample, 3) for sample in reply["samples_us"]))
        racer.notes.extend(reply["notes"])
        return True

    def _continues(self, job: Job, racer: _Racer, reply: dict[str, Any], steps_left: int) -> bool:
        """True when the reply is good; otherwise its row is written."""
        if reply.get("correctness") and (racer.correctness is None or reply["status"] != Status.PASSED):
            racer.correctness = Correctness(**reply["correctness"])
        if reply["ok"] and reply["status"] == Status.PASSED:
            return True
        self._write(job, racer.solution, Status(reply["status"]), reply["message"], racer)
        self._skip_steps(racer.solution, steps_left)
        if not reply["ok"]:  # it raised, hung or died: who knows what is left in that process
            self._drop(racer.solution.name)
        return False

    def _reference_latency(self, racers: list[_Racer]) -> float | None:
        if not racers:
            return None
        worker = racers[0].worker
        reply = worker.ask("reference", self.settings.timeout_seconds, iterations=_REFERENCE_ITERATIONS)
        if not reply["ok"]:
            self._drop(racers[0].solution.name)
        return round(reply["latency_us"], 3) if reply["ok"] else None

    # --------------------------------------------------------------------------------------------------------- rows

    def _write(self, job: Job, solution: Solution, status: Status, message: str, racer: _Racer | None = None,
               **numbers: float | None) -> None:
        environment = dict(self._environment)
        if racer and self._sensors:
            environment |= {"clocks_before": racer.clocks_before, "clocks_after": self._sensors.read()}
        row = Measurement(
            definition=job.definition.name, workload=job.workload.raw["workload"], solution=solution.name,
            status=status, gpu=self.machine.name, protocol=self.machine.protocol, timestamp=_now(),
            samples_us=tuple(racer.rounds) if racer else (), correctness=racer.correctness if racer else None,
            solution_hash=solution.hash, session=self.session, message=message, environment=environment, **numbers)
        append_row(self._path(job.definition), row)
        self.rows.append(row)
        self.observer.row(row)

    def _path(self, definition: Definition) -> Path:
        return self.catalog.traces_path(self.machine.id, definition.name)

    def _describe(self) -> dict[str, Any]:
        """What is the same in every row of the run."""
        described = {"libs": self.machine.libs, "python": self.machine.python, "host_cpu": host_cpu(),
                     "flush_bytes": self.machine.flush_bytes, **git_commit(self.catalog.root)}
        if self.machine.gpu:
            described |= {"gpu_uuid": self.machine.gpu["uuid"], "driver": self._sensors.driver()}
        if self.machine.protocol_note:
            described["protocol_note"] = self.machine.protocol_note
        return described

    def _skip_steps(self, solution: Solution, count: int) -> None:
        for _ in range(count):
            self.observer.step(f"{solution.name} is out")

    def _drop(self, name: str) -> None:
        worker = self._workers.pop(name, None)
        if worker:
            worker.kill()

    def _end_workers(self) -> None:
        for name in list(self._workers):
            self._drop(name)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
