"""Measures competitors, each in its own process, in turn on one workload, and writes row by row into traces/."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from kernelderby import __version__
from kernelderby.catalog import Catalog, Definition, published
from kernelderby.catalog.selection import workload_label
from kernelderby.errors import DerbyError
from kernelderby.measure.clock.graphs import NotCapturable
from kernelderby.measure.fence import caches
from kernelderby.measure.judge import secret
from kernelderby.measure.judge.batch import calibrated
from kernelderby.measure.judge.definition import DefinitionFailed
from kernelderby.measure.judge.doubt import SessionClock
from kernelderby.measure.judge.table import JudgesTable
from kernelderby.measure.machine.environment import GpuSensors
from kernelderby.measure.machine.health import Health
from kernelderby.measure.machine.probe import Machine, exclusive
from kernelderby.measure.run.contest import Contest, Run
from kernelderby.measure.run.ledger import Ledger, described, now
from kernelderby.measure.run.pacer import NotPaced, Pacer
from kernelderby.measure.run.plan import Job, Plan, Settings, by_weight, in_time, without_others_rows
from kernelderby.measure.run.progress import Observer
from kernelderby.measure.run.rows import claim
from kernelderby.measure.run.seal import Seal
from kernelderby.measure.run.workers import START_SECONDS, Workers
from kernelderby.measure.wire.process import WorkerProcess
from kernelderby.measure.wire.quoted import shown
from kernelderby.measure.wire.remote import RemoteExecutor
from kernelderby.measure.wire.replies import Done, EmptyKernelTimes, Failed
from kernelderby.measure.wire.sources import cache_folder
from kernelderby.rows.measurement import Measurement, Status
from kernelderby.store.counts import counted

_STRANGERS_SECONDS = 5  # the driver still lists a process for a moment after its end

_clocks: dict[tuple[str, str], SessionClock] = {}  # of a GPU and a protocol


class Runner:
    def __init__(self, catalog: Catalog, machine: Machine, settings: Settings, observer: Observer) -> None:
        self.catalog, self.machine, self.settings, self.observer = catalog, machine, settings, observer
        self.session = f"{now()}-{secrets.token_hex(3)}"
        self._sensors = GpuSensors(machine.gpu.uuid) if machine.gpu else None
        self._workers = Workers(catalog.root, machine, settings.timeout_seconds)
        environment = described(catalog.root, machine, self._sensors, settings.is_secret_given)
        self._ledger = Ledger(catalog, machine, self.session, environment, observer)
        self._ledger.make_room = self._workers.make_room
        health = Health(catalog.root, machine, self._sensors)
        self._run = Run(catalog, settings, self.session, self._workers, self._ledger, self._sensors, observer, health)
        self._lines_before: dict[str, int] = {}  # lines of each definition's traces file when the plan was made
        self._end: float | None = None  # time.monotonic() at the end of the budget
        self._pacer: Pacer | None = None
        self._starts_ahead = machine.device == "cuda"  # on a CPU processes are forked, which is quick

    def run(self, plan: Plan) -> list[Measurement]:
        """Runs the plan and returns the rows. The workers end with it in any case."""
        self._lines_before, self._ledger.tries = plan.lines, dict(plan.tries)
        if self.settings.budget_seconds is not None:
            self._end = time.monotonic() + self.settings.budget_seconds
        with self._at_work(plan):
            try:
                self._each_in_turn(plan.jobs)
            finally:
                passed = {row.solution for row in self._ledger.rows if row.status is Status.PASSED}
                caches.end_run({each.text_hash for job in plan.jobs for each in job.solutions if each.name in passed})
        return self._ledger.rows

    def run_as_they_come(self, jobs: Iterable[tuple[Job, Mapping[str, int]]]) -> None:
        """Runs jobs that others have planned, each with the number of former tries of its solutions. Its rows are
        written when the next job is requested."""
        definition = None
        with self._at_work(None):
            for job, tries in jobs:
                for name, count in tries.items():
                    self._ledger.tries[name, job.workload.uuid, self.machine.name, self.machine.protocol] = count
                if job.definition is not definition:
                    self._workers.end()
                    self._ledger.open(self._ledger.path(job.definition))
                    definition = job.definition
                self._run_job(job)

    @contextmanager
    def _at_work(self, plan: Plan | None) -> Iterator[None]:
        """In this context the run has the GPU to itself and its clock is calibrated; at the end no worker is left.
        plan: None if others plan."""
        with exclusive(self.machine, self.catalog.root), self._ledger.neighbours:
            self._refuse_strangers()
            try:
                if self.settings.sealed and plan is not None:
                    self._begin_seal(plan)  # before any process of a solution, whose caches it empties
                if plan is None or plan.jobs:
                    self._begin_ahead(plan)
                    self._time_clock()
                yield
            finally:
                self._workers.end_all()
                self._end_pacer()
                self._ledger.close()
                if (place := self._ledger.logs.place()) is not None:
                    self.observer.note(f"the output of failed solutions, by the hash in their rows: {place}")
                if self._ledger.seal is not None:
                    self._ledger.seal.end(self.settings.secret)

    def _begin_seal(self, plan: Plan) -> None:
        """From now on each row and note also goes into the seal; the secret follows at the end of the run, in any
        case. No solution finds what it has left in an earlier run, such as answers for inputs that are published."""
        self._ledger.seal = seal = Seal(self.catalog.root, self.machine.id, self.session)
        solutions = {each.name: each for job in plan.jobs for each in job.solutions}
        caches.forget(cache_folder(), {each.text_hash for each in solutions.values()})
        about = {"gpu": self.machine.name, "protocol": self.machine.protocol, "version": __version__, "time": now()}
        about |= {name: str(self._ledger.environment.get(name, "")) for name in ("commit", "dirty")}
        promised = seal.begin(self.settings.secret, solutions.values(), about)
        self.observer.note(f"sealed session {self.session}, commitment {promised}: publish it before the first row")
        told = self.observer.note

        def note(line: str) -> None:
            told(line)
            seal.note(line)

        self.observer.note = note  # type: ignore[method-assign]

    @property
    def seal(self) -> Path | None:
        """The file of a sealed session."""
        return self._ledger.seal.path if self._ledger.seal else None

    def _each_in_turn(self, jobs: Sequence[Job]) -> None:
        """Each job that no other run of the machine has claimed (see rows.claim). Jobs that were claimed are tried
        again at the end, without the solutions that the other run has measured."""
        for path in dict.fromkeys(self._ledger.path(job.definition) for job in jobs):
            self._ledger.open(path)  # now, not at the first row
        definition, elsewhere = None, list(jobs)
        for _ in range(2):
            waiting, elsewhere = elsewhere, []
            for job in self._in_time(waiting):
                path, line = self._ledger.path(job.definition), self._lines_before[job.definition.name]
                with claim(path, job.workload.uuid) as is_ours:
                    if not is_ours:
                        elsewhere.append(job)
                    elif left := without_others_rows(
                        job, path, line, {self.session}, self.machine, self.settings.together
                    ):
                        if job.definition is not definition:
                            self._workers.end()
                            definition = job.definition
                            self._start_ahead(jobs, definition)
                        self._run_job(left)
        for job in elsewhere:
            self.observer.note(f"{workload_label(job.workload)}: another run measures it; left to that one")

    def _begin_ahead(self, plan: Plan | None) -> None:
        """Starts processes that are soon needed on a GPU: they import torch side by side, which takes each of them
        five seconds (16 cores beside an H200, 2026-11-29)."""
        if self._starts_ahead:
            self._pacer = self._new_pacer()
            self._start_ahead(plan.jobs if plan else ())

    def _start_ahead(self, jobs: Sequence[Job], present: Definition | None = None) -> None:
        """Starts the processes of the present definition and of the one that most likely comes next; without a present
        one, of the first."""
        if not self._starts_ahead:
            return
        solutions = {job.definition.name: job.solutions for job in reversed(jobs)}
        importance = published.importance(self.catalog.root, self.catalog.left_out) if self._end is not None else {}
        order = by_weight(list(dict.fromkeys(job.definition.name for job in jobs)), importance)
        at = order.index(present.name) if present else -1
        self._workers.start_ahead([each for name in order[max(at, 0) : at + 2] for each in solutions[name]])

    def _in_time(self, jobs: list[Job]) -> Iterable[Job]:
        """All jobs, or those within the budget; a note counts the others."""
        if (end := self._end) is None:
            return jobs
        importance = published.importance(self.catalog.root, self.catalog.left_out)
        left = {id(job): job for job in jobs}

        def taken() -> Iterator[Job]:
            for job in in_time(jobs, max(0.0, end - time.monotonic()), importance):
                del left[id(job)]
                yield job
            if left:
                pairs = sum(len(job.solutions) for job in left.values())
                self.observer.note(
                    f"the time is over: {pairs} of the plan are not measured; the same command goes on, of fresh "
                    "shapes with --secret"
                )

        return taken()

    def _refuse_strangers(self) -> None:
        """DerbyError if another process computes on the GPU, since none of ours runs yet."""
        until = time.monotonic() + _STRANGERS_SECONDS
        ours = {os.getpid()} if torch.cuda.is_initialized() else set()  # type: ignore[no-untyped-call]
        while processes := (self._sensors.processes() if self._sensors else None):
            if len(processes) <= len(ours):  # in a container our own number may be another one
                return
            if time.monotonic() > until:
                others = counted(len(processes), "other process computes", "other processes compute")
                raise DerbyError(
                    f"{self.machine.name}: {others} on it (process ids "
                    f"{', '.join(map(str, processes))}, as the driver counts); end them, or wait"
                )
            time.sleep(0.25)

    def _time_clock(self) -> None:
        """Times the judge's clock; its figures go with the rows."""
        self._run.clock = clock = self._calibrate()
        if clock.empty_kernel_us:
            self._ledger.environment["empty_kernel_us"] = clock.empty_kernel_us
        self._ledger.environment["judge_beside_us"] = {
            kind: [round(each.batch_us, 3), round(each.call_us, 3)] for kind, each in clock.beside.items()
        }
        self._start_pace(clock)

    def _calibrate(self) -> SessionClock:
        """The time of an empty kernel, and the overhead of the judge's clock; measured once in this process for each
        machine and protocol. Parts that cannot be measured are left out, with a note."""
        what = self.machine.gpu.uuid if self.machine.gpu else self.machine.name, self.machine.protocol
        if what in _clocks:
            return _clocks[what]
        worker, protocol = WorkerProcess(self.catalog.root, self.machine.device), self.machine.protocol
        found = SessionClock()
        try:
            worker.ask(Done, "begin", START_SECONDS)
            if self._pacer is not None:
                self._pacer.begun()
            with self._workers.alone():  # those that were started ahead
                times = worker.ask(EmptyKernelTimes, "empty_kernel", START_SECONDS, protocol=protocol)
                found = SessionClock(times.empty_kernel_us)
                worker.ask(Done, "load_empty", START_SECONDS, protocol=protocol)
                device = torch.device("cuda", 0) if self.machine.device == "cuda" else torch.device("cpu")
                beside = calibrated(RemoteExecutor(worker, self.settings.timeout_seconds), device)
                found = SessionClock(times.empty_kernel_us, beside)
        except (Failed, NotCapturable) as failed:
            what_failed = "judge's clock" if found.empty_kernel_us else "empty kernel"
            self.observer.note(f"the {what_failed} is not calibrated: {shown(str(failed)).partition(chr(10))[0]}")
            return found
        finally:
            worker.kill()
        _clocks[what] = found
        return found

    def _new_pacer(self) -> Pacer:
        return Pacer(self.catalog.root, self.machine, self.settings.timeout_seconds)

    def _start_pace(self, clock: SessionClock) -> None:
        """Has the pacer give the clock of single calls its pace; a note if there is none. On a CPU there is none."""
        if self._pacer is None:
            return
        empty_us = {kind: us for kind, us in (clock.empty_kernel_us or {}).items() if us is not None}
        if set(empty_us) != {"eager", "graph"}:
            self._end_pacer()
            return
        try:
            with self._workers.alone():
                pace = self._pacer.pace(empty_us)
        except NotPaced as error:
            self._pacer = None
            why = shown(str(error)).partition(chr(10))[0]
            self.observer.note(f"the judge's clock times calls in batches, not one by one: {why}")
            return
        self._workers.beside = 2
        self._run.clock = replace(clock, pace=pace)
        slack = {kind: round(each.us, 3) for kind, each in pace.slack.items()}
        self._ledger.environment["judge_slack_us"] = slack

    def _end_pacer(self) -> None:
        if self._pacer is not None:
            self._pacer.end()
        self._pacer = None

    def _renew_pacer(self) -> None:
        if (pace := self._run.clock.pace) is None or not pace.is_lost:
            return
        self.observer.note("the pace of the judge's clock was late; its process is started again")
        self._end_pacer()
        self._run.clock = replace(self._run.clock, pace=None)
        self._pacer = self._new_pacer()
        self._start_pace(self._run.clock)

    def _run_job(self, job: Job) -> None:
        self._renew_pacer()
        apart = job.solutions[0].name if job.apart else ""
        own = secret.of_workload(self.settings.secret, job.workload.uuid, apart)  # it stands in its rows
        left_out = f"{workload_label(job.workload)}: left out"
        try:
            table = JudgesTable.of(self.catalog.root, job.definition, job.workload, self.machine, own)
        except DefinitionFailed as error:
            self.observer.note(f"{left_out}: {error}")
            return
        contest = Contest(self._run, job, table)
        try:
            contest.hold()
        except DefinitionFailed as error:
            if table.breaks_alone():  # it cannot judge, so no solution gets a row
                self.observer.note(f"{left_out}: {error}")
            else:
                self._apart(job)
        except RuntimeError as error:
            if "CUDA" not in str(error):
                raise
            raise self._run.health.judge_failed(error) from error
        finally:
            table.release()
        for solution in contest.crowded:
            self._workers.end()
            self._run_job(replace(job, solutions=(solution,), apart="by itself: beside the others was no memory"))

    def _apart(self, job: Job) -> None:
        """The definition works without solutions, so one of them has changed what it reads. Each is measured by itself,
        and the guilty one gets the row."""
        if len(job.solutions) == 1:
            told = "the definition's own code fails while this solution runs, and works without it"
            self._ledger.write(job, job.solutions[0], Status.INPUT_CHANGED, told)
            return
        have_rows = {row.solution for row in self._ledger.rows if row.uuid == job.workload.uuid}
        for solution in job.solutions:
            if solution.name not in have_rows:
                self._run_job(replace(job, solutions=(solution,), apart="by itself: another one breaks the definition"))
