"""Correctness of solutions without timing: full shapes on a GPU, small shapes in Triton's interpreter on a CPU."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from kernelderby.catalog import Catalog, Definition, Solution, Workload
from kernelderby.catalog.workloads import tensor_bytes
from kernelderby.errors import DerbyError
from kernelderby.measure.clock.graphs import NotCapturable
from kernelderby.measure.clock.timing import CUDA_EVENTS
from kernelderby.measure.fence import caches
from kernelderby.measure.judge.cases import Case, case_of_workload, small_cases
from kernelderby.measure.judge.definition import DefinitionFailed
from kernelderby.measure.judge.secret import drawn
from kernelderby.measure.machine.environment import GpuSensors
from kernelderby.measure.machine.health import Health
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.machine.requirements import why_not
from kernelderby.measure.run.plan import solutions_of_each, workloads_of_each
from kernelderby.measure.run.workers import without_memory
from kernelderby.measure.wire.process import WorkerProcess, interruptible
from kernelderby.measure.wire.quoted import shown
from kernelderby.measure.wire.remote import RemoteExecutor
from kernelderby.measure.wire.replies import Done, Failed, Verdict, Wrong
from kernelderby.rows.checked import CheckResult
from kernelderby.rows.measurement import Status

if TYPE_CHECKING:  # the judge's side, loaded by the first case
    from kernelderby.measure.judge.race import Race
    from kernelderby.measure.judge.table import JudgesTable

_START_SECONDS = 180


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """jobs: each definition with its solutions and cases. skipped: solution -> reason. broken: definition -> why it
    cannot judge anything."""

    jobs: tuple[tuple[Definition, tuple[Solution, ...], tuple[Case, ...]], ...]
    skipped: dict[str, str]
    broken: dict[str, str] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        return sum(len(solutions) * len(cases) for _, solutions, cases in self.jobs)


def plan_checks(
    catalog: Catalog,
    machine: Machine,
    solutions: Iterable[str] = (),
    definitions: Iterable[str] = (),
    workloads: Iterable[str] = (),
    seeds: int = 1,
    origins: Collection[str] = (),
    fresh: int = 0,
    secret: str = "",
) -> CheckPlan:
    """seeds: contents per case; on a GPU the first contents are the workload's. fresh: check this number of shapes that
    the secret draws, instead of the listed cases."""
    if fresh and (workloads or origins or seeds > 1):
        raise DerbyError("--fresh: draws shapes that no file holds; leave out --workloads, --origin and --seeds")
    if (workloads or origins) and machine.device == "cpu":
        option = "--workloads" if workloads else "--origin"
        raise DerbyError(f"{option}: a CPU checks at SMALL_AXES, not at a workload's size; leave it out")
    catalog.check_origins(origins)
    chosen = solutions_of_each(catalog, solutions, definitions)
    skipped = {one.name: why for each in chosen.values() for one in each if (why := why_not(one, machine))}
    runnable = {name: tuple(one for one in each if one.name not in skipped) for name, each in chosen.items()}
    checked = [catalog.definition(name) for name, some in runnable.items() if some]
    on_gpu = machine.device == "cuda" and not fresh
    listed = workloads_of_each(catalog, chosen, workloads, origins) if on_gpu else {}
    jobs, broken = [], {}
    for definition in checked:
        try:
            if on_gpu:
                cases = _of_workloads(definition, listed.get(definition.name, ()), seeds)
            elif fresh:
                cases = _fresh_cases(catalog, definition, fresh, secret, machine)
            else:
                cases = _small_cases(catalog, definition, seeds)
        except DerbyError as error:  # SMALL_AXES and AXES_SPACE are in code, which this process runs
            broken[definition.name] = str(error)
        else:
            jobs.append((definition, runnable[definition.name], cases))
    return CheckPlan(tuple(jobs), skipped, broken)


def _of_workloads(definition: Definition, chosen: Iterable[Workload], seeds: int) -> tuple[Case, ...]:
    return tuple(case_of_workload(definition, workload, offset) for workload in chosen for offset in range(seeds))


def _fresh_cases(
    catalog: Catalog, definition: Definition, count: int, secret: str, machine: Machine
) -> tuple[Case, ...]:
    from kernelderby.measure.judge.definition import module_of
    from kernelderby.measure.run.fresh import fresh_shapes

    shapes = fresh_shapes(catalog, definition, module_of(definition), secret, count, machine.device)
    return tuple(shape.case() for shape in shapes)


def _small_cases(catalog: Catalog, definition: Definition, seeds: int) -> tuple[Case, ...]:
    """The cases of SMALL_AXES. For a foreign definition, which has none, the workload that moves the fewest bytes."""
    if definition.source_path is None:
        if not (workloads := catalog.workloads(definition.name)):
            raise DerbyError(f"{definition.place}: has no workload that a CPU could check; add one")
        smallest = min(workloads, key=lambda each: tensor_bytes(definition, definition.sizes(each.axes)))
        return _of_workloads(definition, [smallest], seeds)
    from kernelderby.measure.judge.definition import module_of

    module = module_of(definition)
    if not hasattr(module, "SMALL_AXES"):
        raise DerbyError(f"{definition.source_path}: has no SMALL_AXES, so it cannot be checked on a CPU; add them")
    variants = getattr(module, "SMALL_VARIANTS", None)
    return tuple(small_cases(definition, module.SMALL_AXES, variants, seeds))


def run_checks(
    catalog: Catalog,
    machine: Machine,
    plan: CheckPlan,
    timeout_seconds: float,
    report: Callable[[CheckResult], None],
    secret: str | None = None,
    lanes: int | None = None,
    dump: Path | None = None,
) -> list[CheckResult]:
    """The results in the order of the plan. A definition whose code fails goes into plan.broken and has no results.
    secret: draws the inputs; None draws a new secret. lanes: number of parallel processes on a CPU (default: its cores,
    at most four).

    Each solution runs in its own process; on a CPU several run in parallel. A crash, a hang or an exception is followed
    by a fresh process."""
    left = [(definition, solution, cases) for definition, solutions, cases in plan.jobs for solution in solutions]
    waiting = deque(left)
    found: dict[tuple[str, str], list[CheckResult]] = {}
    secret, ended = secret or drawn(), Event()

    def lane() -> None:
        checker = _Checker(catalog, machine, timeout_seconds, secret, dump)
        try:
            while waiting and not ended.is_set():
                try:
                    definition, solution, cases = waiting.popleft()
                except IndexError:  # another lane has loaded it
                    return
                results = found[definition.name, solution.name] = []
                for case in cases:
                    if definition.name in plan.broken or ended.is_set():
                        break
                    try:
                        results.append(checker.check(definition, solution, case))
                    except DefinitionFailed as error:
                        plan.broken[definition.name] = str(error)
                        checker.end()  # it may be waiting in the middle of a command
                    else:
                        report(results[-1])
        finally:
            checker.end()

    width = lanes or _lanes() if machine.device == "cpu" else 1
    with ThreadPoolExecutor(width) as pool:
        working = [pool.submit(lane) for _ in range(width)]
        try:
            with interruptible():
                for done in working:
                    done.result()
        except BaseException:
            ended.set()
            raise
    ends = [(definition, solution, found.get((definition.name, solution.name), [])) for definition, solution, _ in left]
    right = (one for _, one, results in ends if results and all(each.status is Status.PASSED for each in results))
    caches.end_run({one.text_hash for one in right})
    return [result for definition, _, results in ends if definition.name not in plan.broken for result in results]


def _lanes() -> int:
    return max(1, min(4, os.cpu_count() or 1))


class _Checker:
    """The process of the solution in turn, which is replaced if it fails, and the judge's check of each case. Use and
    end it in one thread."""

    def __init__(
        self, catalog: Catalog, machine: Machine, timeout_seconds: float, secret: str, dump: Path | None
    ) -> None:
        self.catalog, self.machine = catalog, machine
        self.timeout_seconds, self.secret, self.dump = timeout_seconds, secret, dump
        self._why: tuple[str, ...] = ()
        self._worker: WorkerProcess | None = None
        self._solution: Solution | None = None
        self._unbuildable: Failed | None = None  # why the solution does not load
        self._was_overtaken = False
        self._health = Health(catalog.root, machine, GpuSensors(machine.gpu.uuid) if machine.gpu else None)

    def check(self, definition: Definition, solution: Solution, case: Case) -> CheckResult:
        """DefinitionFailed if the definition's own code fails."""
        self._why = ()
        end = self._end_of(definition, solution, case)
        why = () if end.status is Status.PASSED else self._why
        correctness = end.correctness if isinstance(end, Verdict) else None
        names = definition.name, solution.name, case.label
        return CheckResult(*names, end.status, shown(end.message), correctness, why)

    def _end_of(self, definition: Definition, solution: Solution, case: Case) -> Verdict | Failed:
        try:
            return self._verdict(definition, solution, case)
        except Failed as failed:
            self.end()
            self._health.expect_sound(failed.message)
            return failed
        except (MemoryError, RuntimeError, OSError) as error:
            self.end()
            return without_memory(error)

    def _verdict(self, definition: Definition, solution: Solution, case: Case) -> Verdict:
        from kernelderby.measure.judge.table import JudgesTable

        worker = self._worker_with(definition, solution)
        table = JudgesTable.of(self.catalog.root, definition, case, self.machine, self.secret)
        race = table.race(solution, RemoteExecutor(worker, self.timeout_seconds))
        try:
            verdict = race.check(looks_closer=True, dump=self.dump)
            self._why = race.why
            self.dump = None if race.why else self.dump  # the first failing case
            if verdict.status is not Status.PASSED or self.machine.device == "cpu":
                return verdict
            return self._overtaken(table, race) or verdict
        finally:
            self._release()
            race.release()
            table.release()

    def _overtaken(self, table: JudgesTable, race: Race) -> Verdict | None:
        """The verdict on the solution's graphs after a larger call, unless they pass. Once for each solution, on its
        first case for which there is a larger one. A call without a graph has nothing to test."""
        if self._was_overtaken:
            return None
        race.start()
        try:
            race.capture()
        except NotCapturable as error:
            if error.spoiled:
                self.end()
            return None
        except Wrong as wrong:
            return wrong.verdict
        verdict = table.overtaken(race, self.catalog)
        self._was_overtaken = verdict is not None
        return None if verdict is None or verdict.status is Status.PASSED else verdict

    def _release(self) -> None:
        """Gives the judge's memory back after the worker has released it."""
        try:
            if self._worker:
                self._worker.ask(Done, "release", self.timeout_seconds)
        except Failed:
            self.end()

    def _worker_with(self, definition: Definition, solution: Solution) -> WorkerProcess:
        """The process, with the solution loaded."""
        if self._solution is not solution:
            self.end()
            self._solution, self._unbuildable, self._was_overtaken = solution, None, False
        if self._unbuildable:
            raise self._unbuildable
        if self._worker is None:
            self._worker = WorkerProcess(self.catalog.root, self.machine.device, solution_hash=solution.text_hash)
            # A timer for its graphs. Any timer will do, since nothing is timed.
            protocol = CUDA_EVENTS if self.machine.device == "cuda" else None
            names = {"definition": definition.name, "solution": solution.name}
            try:
                self._worker.ask(Done, "load", _START_SECONDS + self.timeout_seconds, **names, protocol=protocol)
            except Failed as failed:
                self._unbuildable = failed
                raise
        return self._worker

    def end(self) -> None:
        if self._worker:
            self._worker.kill()
        self._worker = None
