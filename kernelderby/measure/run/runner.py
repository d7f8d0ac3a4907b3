"""Measures competitors: each in a process of its own, on one workload in turn, row by row into traces/."""

from __future__ import annotations

import os
import secrets
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import asdict

from kernelderby.catalog import Catalog, Definition, Solution, published
from kernelderby.catalog.selection import workload_label
from kernelderby.catalog.traces import load_rows
from kernelderby.catalog.workloads import FRESH
from kernelderby.errors import DerbyError
from kernelderby.measure.clock.graphs import NotCapturable
from kernelderby.measure.clock.timing import TimingFailed
from kernelderby.measure.judge import secret
from kernelderby.measure.judge.blame import DefinitionFailed
from kernelderby.measure.judge.race import PASSED, Race, Turn
from kernelderby.measure.judge.table import JudgesTable
from kernelderby.measure.machine.environment import GpuSensors, git_commit, host_cpu
from kernelderby.measure.machine.probe import Machine, exclusive
from kernelderby.measure.run import helpers, turns
from kernelderby.measure.run.budget import in_time
from kernelderby.measure.run.neighbours import Neighbours
from kernelderby.measure.run.plan import Job, Plan, Settings
from kernelderby.measure.run.rows import (
    append_row,
    claim,
    expect_writable,
    repair,
    set_aside_foreign,
    settled_keys,
)
from kernelderby.measure.wire.process import WorkerProcess
from kernelderby.measure.wire.remote import RemoteHands
from kernelderby.measure.wire.replies import EmptyKernelTimes, Failed, Verdict, Wrong
from kernelderby.row import JUDGE_WITHOUT_MEMORY
from kernelderby.trace import Correctness, Measurement, Status, Timed

_START_SECONDS = 180  # importing torch and the solution's libraries; the timeout of a case counts from there
_ROUND_MICROSECONDS = 200_000  # solutions slower than this / iterations get fewer iterations a round, 2 at least
_REFERENCE_ITERATIONS = 3
_STRANGERS_SECONDS = 5  # the driver lists a process that has just ended a little longer
_COOLING_SECONDS = 2  # before a disturbed turn is repeated


_empty_kernels: dict[tuple[str, str], dict[str, float | None]] = {}  # of a GPU and a protocol


class Observer:
    """What the runner tells while it works; the command overrides it."""

    def step(self, what: str) -> None:
        """Something is done, on the way to the next row."""

    def row(self, row: Measurement) -> None:
        """A row was written: one of Plan.pairs."""

    def note(self, line: str) -> None:
        """Something worth a line."""


@dataclass(slots=True)
class _Racer:
    """A solution on one workload: its worker, and what it has shown so far. times: kind -> rounds -> a span a call."""

    solution: Solution
    worker: WorkerProcess
    iterations: int = 0
    correctness: Correctness | None = None
    times: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)
    host_us: list[float] = field(default_factory=list)
    wall_us: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    clocks: list[dict[str, Any]] = field(default_factory=list)  # before the first turn, then after each
    graph_missing: str = ""
    seconds: float = 0.0  # that this solution alone has taken
    judged: Race | None = None  # None until it is prepared

    @property
    def race(self) -> Race:
        if self.judged is None:
            raise RuntimeError(f"{self.solution.name} is not prepared yet")
        return self.judged

    def release(self) -> None:
        """Gives the judge's memory back."""
        if self.judged is not None:
            self.judged.release()

    def add(self, turn: Turn) -> None:
        for kind, spans in (
            ("eager", turn.eager.spans_us),
            ("busy", turn.eager.busy_us),
            ("graph", turn.graph.spans_us if turn.graph else []),
        ):
            if spans:
                self.times.setdefault(kind, []).append(tuple(round(span, 3) for span in spans))
        self.host_us += turn.eager.host_us
        self.wall_us += turn.eager.wall_us
        self.notes += turn.eager.notes + [f"graph: {note}" for note in (turn.graph.notes if turn.graph else [])]

    def compared(self, kind: str) -> list[tuple[float, ...]]:
        return self.times.get(kind, [])


class Runner:
    def __init__(self, catalog: Catalog, machine: Machine, settings: Settings, observer: Observer) -> None:
        self.catalog, self.machine, self.settings, self.observer = catalog, machine, settings, observer
        self.rows: list[Measurement] = []
        self.session = f"{_now()}-{secrets.token_hex(3)}"
        self._workers: dict[str, WorkerProcess] = {}
        self._unbuildable: dict[str, Failed] = {}
        self._sensors = GpuSensors(machine.gpu.uuid) if machine.gpu else None
        self._environment = self._describe()
        self._lines_before: dict[str, int] = {}  # of each definition's traces file, when the plan was made
        self._sizes: dict[Path, int] = {}  # of the files of rows, as this run left them
        self._looked_at: dict[Path, float] = {}  # time.monotonic() of that
        self._neighbours = Neighbours(catalog.root)
        self._judges_table: JudgesTable | None = None
        self._watch = helpers.Watch()
        self._were_overtaken: set[str] = set()  # solutions whose graphs were replayed after a larger call
        self._end: float | None = None  # time.monotonic() of the budget's
        self._caught: dict[str, Verdict] = {}  # solution -> why it is out before its next turn
        self._is_racing, self._held = False, list[tuple[Job, Measurement]]()

    @property
    def _table(self) -> JudgesTable:
        """Of the workload in hand."""
        if self._judges_table is None:
            raise RuntimeError("no workload is in hand")
        return self._judges_table

    def run(self, plan: Plan) -> list[Measurement]:
        """Works the plan off and returns the rows. Whatever ends it, the workers end too."""
        self._lines_before = plan.lines
        if self.settings.budget_seconds is not None:
            self._end = time.monotonic() + self.settings.budget_seconds
        with exclusive(self.machine, self.catalog.root), self._neighbours:
            self._refuse_strangers()
            if plan.jobs:
                self._environment |= self._empty_kernel()
            try:
                self._each_in_turn(plan.jobs)
            finally:
                self._end_workers()
                for path in self._sizes:
                    self._only_ours(path)
        return self.rows

    def _each_in_turn(self, jobs: Sequence[Job]) -> None:
        """Each job that no other run of the machine has in hand (see rows.claim), those that one had once more in
        the end; without what that run has measured meanwhile."""
        for path in dict.fromkeys(self._path(job.definition) for job in jobs):
            expect_writable(path)  # now, not when the first row is there
            if note := repair(path):
                self.observer.note(note)
            self._remember(path)
        definition, elsewhere = None, list(jobs)
        for _ in range(2):
            waiting, elsewhere = elsewhere, []
            for job in self._in_time(waiting):
                with claim(self._path(job.definition), job.workload.uuid) as is_ours:
                    if not is_ours:
                        elsewhere.append(job)
                    elif left := self._without_others_rows(job):
                        if job.definition is not definition:
                            self._end_workers()
                            definition = job.definition
                        self._run_job(left)
        for job in elsewhere:
            self.observer.note(f"{workload_label(job.workload)}: another run measures it; left to that one")

    def _in_time(self, jobs: list[Job]) -> Iterable[Job]:
        """All of them, or those that the budget allows; what it does not is said."""
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

    def _without_others_rows(self, job: Job) -> Job | None:
        """The job without the solutions of which another run has written a row since this one was planned."""
        path, known = self._path(job.definition), {job.workload.uuid: job.workload}
        rows = load_rows(path, known, _said_already, _said_already) if path.is_file() else []
        done = settled_keys(
            (
                row
                for row in rows
                if row.session != self.session
                and row.place
                and row.place.line > self._lines_before[job.definition.name]
            ),
            job.solutions,
        )
        missing = tuple(
            solution
            for solution in job.solutions
            if (solution.name, job.workload.uuid, self.machine.name, self.machine.protocol) not in done
        )
        if not missing:
            return None
        return job if self.settings.together else replace(job, solutions=missing)

    def _refuse_strangers(self) -> None:
        """DerbyError when another process computes on the GPU: none of ours runs yet."""
        until = time.monotonic() + _STRANGERS_SECONDS
        ours = {os.getpid()} if torch.cuda.is_initialized() else set()  # type: ignore[no-untyped-call]
        while processes := (self._sensors.processes() if self._sensors else None):
            if len(processes) <= len(ours):  # in a container our own number may be another one
                return
            if time.monotonic() > until:
                raise DerbyError(
                    f"{self.machine.name}: {len(processes)} other processes compute on it (process ids "
                    f"{', '.join(map(str, processes))}, as the driver counts); end them, or wait"
                )
            time.sleep(0.25)

    def _empty_kernel(self) -> dict[str, Any]:
        """empty_kernel_us, measured once in this process for each machine and protocol; without it, where it cannot be
        measured, and a note."""
        what = self.machine.gpu.uuid if self.machine.gpu else self.machine.name, self.machine.protocol
        if what in _empty_kernels:
            return {"empty_kernel_us": _empty_kernels[what]}
        worker = WorkerProcess(self.catalog.root, self.machine.device)
        try:
            times = worker.ask(EmptyKernelTimes, "empty_kernel", _START_SECONDS, protocol=self.machine.protocol)
        except Failed as failed:
            self.observer.note(f"the empty kernel has no time: {failed.message.partition(chr(10))[0]}")
            return {}
        finally:
            worker.kill()
        _empty_kernels[what] = times.empty_kernel_us
        return {"empty_kernel_us": times.empty_kernel_us}

    # ------------------------------------------------------------------------------------------------- one workload

    def _run_job(self, job: Job) -> None:
        own = secret.of_workload(self.settings.secret, job.workload.uuid)  # it stands in its rows, and others follow
        self._caught = {}
        try:
            self._judges_table = table = JudgesTable.of(
                self.catalog.root, job.definition, job.workload, self.machine, own
            )
        except DefinitionFailed as error:
            self.observer.note(f"{workload_label(job.workload)}: left out: {error}")
            return
        racers = self._load(job)
        try:
            self._work_off(job, racers)
        except DefinitionFailed as error:  # nobody can be judged by it, so nobody gets a row
            self.observer.note(f"{workload_label(job.workload)}: left out: {error}")
            self._end_workers()  # which wait in the middle of something
        finally:
            self._release_workers()  # they let go of the judge's memory before it is given back
            for racer in racers:
                racer.release()
            table.release()

    def _work_off(self, job: Job, racers: list[_Racer]) -> None:
        self._is_racing = True
        try:
            racers = self._capture(job, self._prepare(job, racers))
            racers = self._witnessed(job, self._rounds(job, racers))
        finally:
            self._append_held()
        reference = self._reference_latency(racers)
        for racer in racers:
            times = {
                kind: Timed(round(statistics.median([span for spans in rounds for span in spans]), 3), tuple(rounds))
                for kind, rounds in racer.times.items()
            }
            self._write(
                job,
                racer.solution,
                Status.PASSED,
                "; ".join(dict.fromkeys(racer.notes)),
                racer,
                times=times,
                latency_us=times["eager"].median_us,
                samples_us=times["eager"].samples_us,
                graph_missing=racer.graph_missing,
                setup=asdict(racer.race.setup) if racer.race.setup else None,
                reference_latency_us=reference,
                host_us=round(statistics.median(racer.host_us), 3),
                wall_us=round(statistics.median(racer.wall_us), 3),
            )

    def _release_workers(self) -> None:
        for worker in self._workers.values():
            worker.send("release", self.settings.timeout_seconds)
        for name, worker in list(self._workers.items()):
            if worker.receive().failed:
                self._drop(name)

    def _rounds(self, job: Job, racers: list[_Racer]) -> list[_Racer]:
        """All of them in turn, then the first two alone until their ratio has settled. Gives back those that are in."""
        settings = self.settings
        for number in range(1, settings.rounds + 1):
            order = turns.shuffled(racers, self.session, job.workload.uuid, number)
            out = [racer for racer in order if not self._turn(job, racer, number)]
            racers = [racer for racer in racers if racer not in out]
        for number in range(settings.rounds + 1, settings.most_rounds + 1):
            first_two, kind = _first_two(racers)
            if len(first_two) < 2 or turns.interval_width(*(one.compared(kind) for one in first_two)) < turns.NARROW:
                break
            order = turns.shuffled(first_two, self.session, job.workload.uuid, number)
            out = [racer for racer in order if not self._turn(job, racer, number)]
            racers = [racer for racer in racers if racer not in out]
        return racers

    def _load(self, job: Job) -> list[_Racer]:
        """A worker for each solution, its code loaded; those that start do so side by side."""
        starting, racers = [], []
        for solution in job.solutions:
            if solution.name not in self._workers and solution.name not in self._unbuildable:
                self._workers[solution.name] = self._started(solution)
                starting.append(solution)
        for solution in starting:  # now that each can be told who its rivals are
            self._ask_to_load(job, solution)
        for solution in starting:
            if failed := self._workers[solution.name].receive().failed:
                self._drop(solution.name)
                self._unbuildable[solution.name] = failed
        for solution in job.solutions:
            if solution.name in self._unbuildable:
                failed = self._unbuildable[solution.name]
                self._write(job, solution, failed.status, failed.message)
            else:
                racers.append(_Racer(solution, self._workers[solution.name]))
        return racers

    def _started(self, solution: Solution) -> WorkerProcess:
        return WorkerProcess(self.catalog.root, self.machine.device, solution_hash=solution.text_hash)

    def _ask_to_load(self, job: Job, solution: Solution) -> None:
        """The answer of its worker is due."""
        self._workers[solution.name].send(
            "load",
            _START_SECONDS + self.settings.timeout_seconds,
            definition=job.definition.name,
            solution=solution.name,
            protocol=self.machine.protocol,
            guarded=self._workers[solution.name].rivals(),
        )

    def _prepare(self, job: Job, racers: list[_Racer]) -> list[_Racer]:
        """Checks all of them side by side (compilation takes the CPU's time); gives back those that passed."""
        if not racers:
            return []
        with ThreadPoolExecutor(len(racers)) as pool:
            ends = list(pool.map(self._prepared, racers))
        passed = []
        for racer, end in zip(racers, ends, strict=True):
            self.observer.step(f"{racer.solution.name} checked on {workload_label(job.workload)}")
            if self._goes_on(job, racer, end):
                passed.append(racer)
        return passed

    def _prepared(self, racer: _Racer) -> Verdict | Failed:
        """Check, set-up and a trial turn of one racer. Runs in a thread of its own."""
        start = time.monotonic()
        try:
            hands = RemoteHands(racer.worker, self.settings.timeout_seconds)
            racer.judged = race = self._table.race(racer.solution, hands)
            verdict = race.check()
            if verdict.status is Status.PASSED:
                racer.correctness = verdict.correctness
                race.start()
                trial = race.turn(0, 2)
                verdict = trial.verdict
                if verdict.status is Status.PASSED:
                    racer.iterations = max(
                        2, min(self.settings.iterations, int(_ROUND_MICROSECONDS / min(trial.samples_us)))
                    )
            return verdict
        except Failed as failed:
            return failed
        except Wrong as wrong:
            return wrong.verdict
        except (MemoryError, torch.OutOfMemoryError) as error:
            return Failed(Status.OUT_OF_MEMORY, f"{JUDGE_WITHOUT_MEMORY}: {error}")
        finally:
            racer.seconds += time.monotonic() - start

    def _capture(self, job: Job, racers: list[_Racer]) -> list[_Racer]:
        """A CUDA graph of each one's call. Where there is none the row says why, and a process that the attempt has
        spoiled is replaced."""
        captured = []
        for racer in racers:
            start = time.monotonic()
            spoiled = False
            try:
                racer.race.capture()
            except NotCapturable as error:
                racer.graph_missing, spoiled = str(error), error.spoiled
            except Wrong as wrong:
                racer.graph_missing = f"{wrong.verdict.status}: {wrong.verdict.message}"
            except Failed as failed:
                racer.graph_missing, spoiled = f"{failed.status}: {failed.message}", True
            end = self._overtaken(racer)
            racer.seconds += time.monotonic() - start
            if self._goes_on(job, racer, end) and (not spoiled or self._started_anew(job, racer)):
                captured.append(racer)
        return captured

    def _overtaken(self, racer: _Racer) -> Verdict | Failed:
        """Of each solution once, on the first workload that has a larger one: its graphs after a larger call."""
        if not racer.race.has_graph or racer.solution.name in self._were_overtaken:
            return PASSED
        try:
            verdict = self._table.overtaken(racer.race, self.catalog)
        except Failed as failed:
            return failed
        if verdict is not None:
            self._were_overtaken.add(racer.solution.name)
        return verdict or PASSED

    def _started_anew(self, job: Job, racer: _Racer) -> bool:
        """Prepares a racer in a fresh process. False when it is out."""
        self._drop(racer.solution.name)
        racer.release()
        racer.worker = self._workers[racer.solution.name] = self._started(racer.solution)
        self._ask_to_load(job, racer.solution)
        return self._goes_on(job, racer, racer.worker.receive().failed or self._prepared(racer))

    def _turn(self, job: Job, racer: _Racer, number: int) -> bool:
        """One round of one solution, alone on the GPU; a disturbed one again. False when it is out."""
        self._catch(self._watch.out_of_turn(self._workers, self._table.device), helpers.OUT_OF_TURN)
        if caught := self._caught.pop(racer.solution.name, None):
            return self._goes_on(job, racer, caught)
        start = time.monotonic()
        for attempt in range(turns.REPEATS + 1):
            if self._sensors and not racer.clocks:
                racer.clocks.append(self._sensors.read())
            with self._alone(racer):
                turn, end = self._taken(racer, number * (turns.REPEATS + 1) + attempt)
            after = self._sensors.read() if self._sensors else {}
            # The workers, and this process.
            disturbed = turns.disturbance(self._sensors, after, len(self._workers) + 1)
            if not disturbed or turn is None:
                break
            if self._sensors:
                self._catch(helpers.helper_of(self._workers, self._sensors), helpers.HELPER)
            if racer.solution.name in self._caught:
                break
            if attempt < turns.REPEATS:
                self.observer.step(f"{racer.solution.name} again: {disturbed}")
                time.sleep(_COOLING_SECONDS)
        self.observer.step(f"{racer.solution.name} round {number} on {workload_label(job.workload)}")
        racer.seconds += time.monotonic() - start
        if after:
            racer.clocks.append(after)
        goes_on = self._goes_on(job, racer, self._caught.pop(racer.solution.name, end))
        if turn is None or not goes_on:
            return False
        if disturbed:
            racer.notes.append(f"round {number}: {disturbed}")
        racer.add(turn)
        return True

    def _alone(self, racer: _Racer) -> AbstractContextManager[None]:
        """Meanwhile its rivals stand still."""
        return helpers.standing_still(each for each in self._workers.values() if each is not racer.worker)

    def _catch(self, name: str | None, at: str) -> None:
        """Ends the worker of a solution; its row is written when it would have its next turn."""
        if name is not None:
            self._caught[name] = Verdict(Status.REWARD_HACK, at)
            self._drop(name)

    def _taken(self, racer: _Racer, number: int) -> tuple[Turn | None, Verdict | Failed]:
        try:
            turn = racer.race.turn(number, racer.iterations)
        except Failed as failed:
            return None, failed
        except torch.OutOfMemoryError as error:
            return None, Failed(Status.OUT_OF_MEMORY, f"{JUDGE_WITHOUT_MEMORY}: {error}")
        return (turn if turn.verdict.status is Status.PASSED else None), turn.verdict

    def _witnessed(self, job: Job, racers: list[_Racer]) -> list[_Racer]:
        """Those whose times the judge's own clock and the floor allow."""
        kept = []
        for racer in racers:
            end: Verdict | Failed
            self._catch(self._watch.out_of_turn(self._workers, self._table.device), helpers.OUT_OF_TURN)
            try:
                with self._alone(racer):
                    end = self._caught.pop(racer.solution.name, None) or self._table.doubt(
                        racer.race, racer.times, racer.host_us, racer.solution, self._environment.get("empty_kernel_us")
                    )
            except Failed as failed:
                end = failed
            except Wrong as wrong:
                end = wrong.verdict
            if self._goes_on(job, racer, end):
                kept.append(racer)
        return [racer for racer in kept if self._goes_on(job, racer, self._caught.pop(racer.solution.name, PASSED))]

    def _goes_on(self, job: Job, racer: _Racer, end: Verdict | Failed) -> bool:
        """True for a verdict that passed; otherwise its row is written."""
        if end.status is Status.PASSED:
            return True
        if isinstance(end, Verdict) and end.correctness:
            racer.correctness = end.correctness
        self._write(job, racer.solution, end.status, end.message, racer)
        if isinstance(end, Failed):  # it raised, hung or died: who knows what is left in that process
            self._drop(racer.solution.name)
        return False

    def _reference_latency(self, racers: list[_Racer]) -> float | None:
        if not racers:
            return None
        try:
            with helpers.standing_still(self._workers.values()):
                return round(racers[0].race.reference_latency_us(self._table.timer(), _REFERENCE_ITERATIONS), 3)
        except (TimingFailed, torch.OutOfMemoryError) as error:
            self.observer.note(f"the reference has no time: {error}")
            return None

    # --------------------------------------------------------------------------------------------------------- rows

    def _write(
        self, job: Job, solution: Solution, status: Status, message: str, racer: _Racer | None = None, **numbers: Any
    ) -> None:
        environment = dict(self._environment)
        if racer:
            environment |= {"secret": self._table.secret, "seconds": round(racer.seconds, 3)}
            if racer.clocks:
                environment |= {"clocks_before": racer.clocks[0], "clocks": racer.clocks[1:]}
        row = Measurement(
            definition=job.definition.name,
            workload=job.workload.raw["workload"],
            solution=solution.name,
            status=status,
            gpu=self.machine.name,
            protocol=self.machine.protocol,
            timestamp=_now(),
            correctness=racer.correctness if racer else None,
            solution_hash=solution.hash,
            session=self.session,
            message=message,
            environment=environment,
            shape=_unlisted(job.workload.raw),
            **numbers,
        )
        if racer and self._is_racing:
            self._held.append((job, row))
        else:
            self._append(job, row)

    def _append(self, job: Job, row: Measurement) -> None:
        path = self._path(job.definition)
        self._only_ours(path)
        append_row(path, row)
        self._remember(path)
        self.rows.append(row)
        self.observer.row(row)

    def _append_held(self) -> None:
        """The rows of those who were out before the race ended. They hold its secret, which everybody may read there:
        until the last timed call they stay here."""
        self._is_racing = False
        while self._held:
            self._append(*self._held.pop(0))

    def _only_ours(self, path: Path) -> None:
        """No row but a run's: what a worker wrote into the file goes. Not while another run writes there too."""
        if not self._neighbours.lived_since(self._looked_at.get(path, 0.0)):
            note = set_aside_foreign(path, self._sizes.get(path, 0))
            if note:
                self.observer.note(note)
        self._remember(path)

    def _remember(self, path: Path) -> None:
        self._looked_at[path] = time.monotonic()
        self._sizes[path] = path.stat().st_size if path.is_file() else 0

    def _path(self, definition: Definition) -> Path:
        return self.catalog.traces_path(self.machine.id, definition.name)

    def _describe(self) -> dict[str, Any]:
        """What is the same in every row of the run."""
        described = {
            "libs": self.machine.libs,
            "python": self.machine.python,
            "host_cpu": host_cpu(),
            "flush_bytes": self.machine.flush_bytes,
            **git_commit(self.catalog.root),
        }
        if self.machine.gpu and self._sensors:
            described |= {"gpu_uuid": self.machine.gpu.uuid, "driver": self._sensors.driver()}
        if self.settings.is_secret_given:
            described["secret_given"] = True  # whoever read the command line could know the inputs
        if self.machine.protocol_note:
            described["protocol_note"] = self.machine.protocol_note
        return described

    def _drop(self, name: str) -> None:
        worker = self._workers.pop(name, None)
        if worker:
            worker.kill()

    def _end_workers(self) -> None:
        for name in list(self._workers):
            self._drop(name)


def _unlisted(line: dict[str, Any]) -> dict[str, Any]:
    """Of a fresh shape what its row has to tell, since no file does."""
    is_fresh = line.get("origin") == FRESH
    return {name: line[name] for name in ("origin", "cost", "generator") if name in line} if is_fresh else {}


def _said_already(problem: str) -> None:
    """The catalog of the plan warned of it."""


def _first_two(racers: list[_Racer]) -> tuple[list[_Racer], str]:
    """The two that lead, and the kind of time by which: graph where two have it or all, else eager."""
    with_graph = [racer for racer in racers if "graph" in racer.times]
    kind = "graph" if with_graph and len(with_graph) >= min(2, len(racers)) else "eager"
    leading = sorted(
        with_graph if kind == "graph" else racers,
        key=lambda racer: statistics.median([span for spans in racer.compared(kind) for span in spans]),
    )
    return leading[:2], kind


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
