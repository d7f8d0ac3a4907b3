"""Correctness of solutions without timing: full shapes on a GPU, small ones in Triton's interpreter on a CPU."""

from __future__ import annotations

import hashlib
import math
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import msgspec

from kernelderby.catalog import Catalog, Definition, Solution, Workload
from kernelderby.catalog.selection import of_origin, select_in_each
from kernelderby.catalog.workloads import tensor_bytes
from kernelderby.errors import DerbyError
from kernelderby.measure.clock.graphs import NotCapturable
from kernelderby.measure.clock.timing import CUDA_EVENTS
from kernelderby.measure.fence import caches
from kernelderby.measure.judge.blame import DefinitionFailed
from kernelderby.measure.judge.cases import Case, case_of_workload, small_cases
from kernelderby.measure.judge.secret import drawn
from kernelderby.measure.machine.environment import GpuSensors
from kernelderby.measure.machine.health import Health
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.machine.requirements import why_not
from kernelderby.measure.wire.process import WorkerProcess, interruptible
from kernelderby.measure.wire.quoted import shown
from kernelderby.measure.wire.remote import RemoteHands
from kernelderby.measure.wire.replies import Done, Failed, Verdict, Wrong
from kernelderby.rows.measurement import Correctness, Status
from kernelderby.rows.row import JUDGE_WITHOUT_MEMORY

if TYPE_CHECKING:  # the judge's own side, loaded by the first case
    from kernelderby.measure.judge.race import Race
    from kernelderby.measure.judge.table import JudgesTable

_START_SECONDS = 180


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One solution on one case."""

    definition: str
    solution: str
    case: str
    status: Status
    message: str
    correctness: Correctness | None
    why: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"CheckResult({self.solution!r}, {self.case!r}: {self.status})"

    @property
    def matched_ratio(self) -> float | None:
        """Of the tolerance that is closest to failing."""
        return min(self.correctness.matched_ratio.values()) if self.correctness else None

    def to_json(self) -> dict[str, Any]:
        """As a dict; numbers that JSON does not have as strings."""
        found = asdict(self)
        if self.correctness:
            found["correctness"] = {
                name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
                for name, value in msgspec.structs.asdict(self.correctness).items()
            }
        return found


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """jobs: each definition with its solutions and cases. skipped: solution -> reason. broken: definition -> why
    nothing can be judged by it."""

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
    """seeds: contents per case; on a GPU the first is the workload's own. fresh: instead of the listed cases so many
    that the secret draws."""
    chosen = catalog.solutions_named(solutions) or list(catalog.solutions.values())
    wanted = [catalog.definition(name) for name in definitions] or list(catalog.definitions.values())
    if fresh and (workloads or origins or seeds > 1):
        raise DerbyError("--fresh: draws shapes that no file holds; leave out --workloads, --origin and --seeds")
    if (workloads or origins) and machine.device == "cpu":
        option = "--workloads" if workloads else "--origin"
        raise DerbyError(f"{option}: a CPU checks at SMALL_AXES, not at a workload's size; leave it out")
    catalog.check_origins(origins)
    chosen_for, skipped = {}, {}
    for definition in wanted:
        runnable = []
        for solution in (one for one in chosen if one.definition == definition.name):
            reason = why_not(solution, machine)
            if reason:
                skipped[solution.name] = reason
            else:
                runnable.append(solution)
        if runnable:
            chosen_for[definition.name] = tuple(runnable)
    checked = [definition for definition in wanted if definition.name in chosen_for]
    if fresh:
        cases, broken = _of_each(checked, lambda each: _fresh_cases(catalog, each, fresh, secret, machine))
    elif machine.device == "cuda":
        named = {one.definition for one in chosen}
        own = {each.name: of_origin(catalog.workloads(each.name), origins) for each in wanted if each.name in named}
        listed = select_in_each({name: found for name, found in own.items() if found or not origins}, list(workloads))
        cases = {each.name: _full_cases(each, listed.get(each.name, ()), seeds) for each in checked}
        broken = {}
    else:
        cases, broken = _of_each(checked, lambda each: _cases_of(catalog, each, seeds))
    jobs = ((each, chosen_for[each.name], cases[each.name]) for each in checked if each.name in cases)
    return CheckPlan(tuple(jobs), skipped, broken)


def _full_cases(definition: Definition, chosen: Sequence[Workload], seeds: int) -> tuple[Case, ...]:
    return tuple(case_of_workload(definition, workload, offset) for workload in chosen for offset in range(seeds))


def _fresh_cases(
    catalog: Catalog, definition: Definition, count: int, secret: str, machine: Machine
) -> tuple[Case, ...]:
    from kernelderby.measure.judge.definition import module_of
    from kernelderby.measure.run.fresh import fresh_shapes

    shapes = fresh_shapes(catalog, definition, module_of(definition), secret, count, machine.device)
    return tuple(shape.case() for shape in shapes)


def _of_each(
    definitions: list[Definition], cases_of: Callable[[Definition], tuple[Case, ...]]
) -> tuple[dict[str, tuple[Case, ...]], dict[str, str]]:
    """The cases of each definition that loads, and of the others why not. SMALL_AXES and AXES_SPACE stand in their
    code, which this process runs for the references too."""
    cases: dict[str, tuple[Case, ...]] = {}
    broken: dict[str, str] = {}
    for definition in definitions:
        try:
            cases[definition.name] = cases_of(definition)
        except DerbyError as error:
            broken[definition.name] = str(error)
    return cases, broken


def _cases_of(catalog: Catalog, definition: Definition, seeds: int) -> tuple[Case, ...]:
    if definition.source_path is None:
        return _smallest(catalog, definition, seeds)
    from kernelderby.measure.judge.definition import module_of

    module = module_of(definition)
    if not hasattr(module, "SMALL_AXES"):
        raise DerbyError(f"{definition.source_path}: has no SMALL_AXES, so it cannot be checked on a CPU; add them")
    variants = getattr(module, "SMALL_VARIANTS", None)
    return tuple(small_cases(definition, module.SMALL_AXES, variants, seeds))


def _smallest(catalog: Catalog, definition: Definition, seeds: int) -> tuple[Case, ...]:
    """Of a foreign definition, which brings no SMALL_AXES: the workload that moves the fewest bytes."""
    workloads = catalog.workloads(definition.name)
    if not workloads:
        raise DerbyError(f"{definition.place}: has no workload that a CPU could check; add one")
    smallest = min(workloads, key=lambda each: tensor_bytes(definition, definition.sizes(each.axes)))
    return tuple(case_of_workload(definition, smallest, offset) for offset in range(seeds))


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
    """In the order of the plan. What a definition's own code does wrong goes into plan.broken; it has no results.
    secret: what the inputs are drawn from; None draws one. lanes: how many side by side on a CPU (default: its cores,
    four at most).

    On a GPU one solution after the other, each in a process of its own. On a CPU several side by side, and solutions of
    one author share a process, since most of the time goes into starting Python: a case that fails there is checked
    again in a process of its own, which decides. A fresh process after a crash, a hang or an exception."""
    on_cpu = machine.device == "cpu"
    left = [(definition, solution, cases) for definition, solutions, cases in plan.jobs for solution in solutions]
    waiting = deque(sorted(left, key=lambda job: job[1].author) if on_cpu else left)
    found: dict[tuple[str, str], list[CheckResult]] = {}
    secret, ended = secret or drawn(), Event()

    def lane() -> None:
        checker = _Checker(catalog, machine, timeout_seconds, secret, shares=on_cpu)
        checker.dump = dump
        try:
            while waiting and not ended.is_set():
                try:
                    definition, solution, cases = waiting.popleft()
                except IndexError:  # another lane was first
                    return
                results = found[definition.name, solution.name] = []
                for case in cases:
                    if definition.name in plan.broken or ended.is_set():
                        break
                    try:
                        results.append(checker.check(definition, solution, case))
                    except DefinitionFailed as error:
                        plan.broken[definition.name] = str(error)
                        checker.end()  # it may wait in the middle of something
                    else:
                        report(results[-1])
        finally:
            checker.end()

    width = 1 if not on_cpu else lanes or _lanes()
    with ThreadPoolExecutor(width) as pool:
        working = [pool.submit(lane) for _ in range(width)]
        try:
            with interruptible():
                for done in working:
                    done.result()
        except BaseException:
            ended.set()
            raise
    caches.end_run({solution.text_hash for _, solution, _ in left if _all_passed(found, solution)})
    return [
        result
        for definition, solution, _ in left
        if definition.name not in plan.broken
        for result in found[definition.name, solution.name]
    ]


def _all_passed(found: dict[tuple[str, str], list[CheckResult]], solution: Solution) -> bool:
    results = found.get((solution.definition, solution.name), [])
    return bool(results) and all(each.status is Status.PASSED for each in results)


def _lanes() -> int:
    return max(1, min(4, os.cpu_count() or 1))


class _Checker:
    """A process that runs solutions, replaced when one fails, and the judge's look at each case. To be used and ended
    in one thread.

    shares: solutions of one author run in the same process."""

    def __init__(self, catalog: Catalog, machine: Machine, timeout_seconds: float, secret: str, shares: bool) -> None:
        self.catalog, self.machine, self.shares = catalog, machine, shares
        self.timeout_seconds, self.secret = timeout_seconds, secret
        self.dump: Path | None = None
        self._why: tuple[str, ...] = ()
        self._worker: WorkerProcess | None = None
        self._author = ""
        self._loaded: Solution | None = None
        self._is_shared = False  # other solutions ran in this process before
        self._health = Health(catalog.root, machine, GpuSensors(machine.gpu.uuid) if machine.gpu else None)
        self._unbuildable: dict[str, Failed] = {}
        self._were_overtaken: set[str] = set()

    def check(self, definition: Definition, solution: Solution, case: Case) -> CheckResult:
        """DefinitionFailed where the definition's own code does."""
        self._why = ()
        end = self._end_of(definition, solution, case)
        if end.status is not Status.PASSED and self._is_shared:
            self.end()
            self._unbuildable.pop(solution.name, None)
            end = self._end_of(definition, solution, case)
        return CheckResult(
            definition.name,
            solution.name,
            case.label,
            end.status,
            shown(end.message),
            end.correctness if isinstance(end, Verdict) else None,
            () if end.status is Status.PASSED else self._why,
        )

    def _end_of(self, definition: Definition, solution: Solution, case: Case) -> Verdict | Failed:
        try:
            return self._verdict(definition, solution, case)
        except Failed as failed:
            self.end()
            self._health.expect_sound(failed.message)
            return failed

    def _verdict(self, definition: Definition, solution: Solution, case: Case) -> Verdict:
        import torch

        from kernelderby.measure.judge.table import JudgesTable

        worker = self._worker_with(definition, solution)
        table = JudgesTable.of_case(self.catalog.root, definition, case, self.machine, self.secret)
        try:
            race = table.race(solution, RemoteHands(worker, self.timeout_seconds))
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise Failed(Status.OUT_OF_MEMORY, f"{JUDGE_WITHOUT_MEMORY}: {error}") from error
        try:
            verdict = race.check(looks_closer=True, dump=self.dump)
            self._why = race.why
            self.dump = None if race.why else self.dump  # the first failing case
            if verdict.status is not Status.PASSED or self.machine.device == "cpu":
                return verdict
            return self._overtaken(table, race, solution) or verdict
        finally:
            self._release()
            race.release()
            table.release()

    def _overtaken(self, table: JudgesTable, race: Race, solution: Solution) -> Verdict | None:
        """The verdict on its graphs after a larger call where it is none of passed. Of each solution once, on its first
        case that has a larger one; a call without a graph has none to look at."""
        if solution.name in self._were_overtaken:
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
        if verdict is not None:
            self._were_overtaken.add(solution.name)
        return None if verdict is None or verdict.status is Status.PASSED else verdict

    def _release(self) -> None:
        """The judge's memory is given back once the worker has let go of it."""
        try:
            if self._worker:
                self._worker.ask(Done, "release", self.timeout_seconds)
        except Failed:
            self.end()

    def _worker_with(self, definition: Definition, solution: Solution) -> WorkerProcess:
        """The process with the solution loaded."""
        if solution.name in self._unbuildable:
            raise self._unbuildable[solution.name]
        if self._worker and self._loaded is solution:
            return self._worker
        if not self.shares or solution.author != self._author:
            self.end()
        if self._worker is None:
            self._worker = WorkerProcess(self.catalog.root, self.machine.device, solution_hash=self._cache(solution))
            self._author = solution.author
        self._is_shared, self._loaded = self._loaded is not None, solution
        seconds = _START_SECONDS + self.timeout_seconds
        # A timer for its graphs; which one does not matter, since nothing is timed.
        protocol = CUDA_EVENTS if self.machine.device == "cuda" else None
        try:
            self._worker.ask(
                Done, "load", seconds, definition=definition.name, solution=solution.name, protocol=protocol
            )
        except Failed as failed:
            self._unbuildable[solution.name] = failed
            raise
        return self._worker

    def _cache(self, solution: Solution) -> str:
        """Whose caches the process gets: the solution's own, or where it is shared the author's."""
        if not self.shares:
            return solution.text_hash
        return hashlib.sha256(f"author {solution.author}".encode()).hexdigest()[:16]

    def end(self) -> None:
        if self._worker:
            self._worker.kill()
        self._worker = self._loaded = None
