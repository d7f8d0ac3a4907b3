"""Correctness of solutions without timing: full shapes on a GPU, small ones in Triton's interpreter on a CPU."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from kernelderby.catalog import Catalog, Definition, Solution
from kernelderby.catalog.selection import of_origin, select_workloads
from kernelderby.errors import DerbyError
from kernelderby.measure.judge.cases import Case, case_of_workload
from kernelderby.measure.judge.correctness import Verdict
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.machine.requirements import why_not
from kernelderby.measure.process import WorkerProcess
from kernelderby.measure.remote import Failed, RemoteHands, failure
from kernelderby.trace import Correctness, Status

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

    @property
    def matched_ratio(self) -> float | None:
        """Of the tolerance that is closest to failing."""
        return min(self.correctness.matched_ratio.values()) if self.correctness else None

    def to_json(self) -> dict[str, Any]:
        """As a dict; numbers that JSON does not have as strings."""
        found = asdict(self)
        if found["correctness"]:
            found["correctness"] = {
                name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
                for name, value in found["correctness"].items()
            }
        return found


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """jobs: each definition with its solutions and cases. skipped: solution -> reason."""

    jobs: tuple[tuple[Definition, tuple[Solution, ...], tuple[Case, ...]], ...]
    skipped: dict[str, str]

    @property
    def steps(self) -> int:
        return sum(len(solutions) * len(cases) for _, solutions, cases in self.jobs)


def plan_checks(
    catalog: Catalog,
    machine: Machine,
    solutions: Iterable[str] = (),
    definitions: Iterable[str] = (),
    workloads: Iterable[str] = (),
    seeds: int | None = None,
    origins: Collection[str] = (),
) -> CheckPlan:
    """seeds: contents per case; without a number 1 on a GPU (the workload's own) and 2 on a CPU."""
    chosen = [catalog.solution(name) for name in solutions] or list(catalog.solutions.values())
    wanted = [catalog.definition(name) for name in definitions] or list(catalog.definitions.values())
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
    if machine.device == "cuda":
        cases = [_full_cases(catalog, definition, workloads, seeds or 1, origins) for definition in checked]
    else:
        cases = _small_cases(catalog, machine, checked, seeds or 2)
    jobs = zip(checked, (chosen_for[definition.name] for definition in checked), cases, strict=True)
    return CheckPlan(tuple(jobs), skipped)


def _full_cases(
    catalog: Catalog, definition: Definition, workloads: Iterable[str], seeds: int, origins: Collection[str]
) -> tuple[Case, ...]:
    own = of_origin(catalog.workloads(definition.name), origins)
    chosen = select_workloads(own, workloads) if own or not origins else []
    return tuple(case_of_workload(definition, workload, offset) for workload in chosen for offset in range(seeds))


def _small_cases(
    catalog: Catalog, machine: Machine, definitions: list[Definition], seeds: int
) -> list[tuple[Case, ...]]:
    """Of each definition. SMALL_AXES stand in their code, so one process loads them all (a start takes seconds)."""
    cases: list[tuple[Case, ...]] = []
    worker = WorkerProcess(catalog.root, machine.device) if definitions else None
    try:
        for definition in definitions:
            for command, arguments in (
                ("load", {"definition": definition.name, "solution": None}),
                ("small_cases", {"seeds": seeds}),
            ):
                reply = worker.ask(command, _START_SECONDS, **arguments)
                if not reply["ok"]:
                    raise DerbyError(f"{definition.source_path or definition.path}: does not load: {reply['message']}")
            cases.append(tuple(Case(**case) for case in reply["cases"]))
    finally:
        if worker:
            worker.kill()
    return cases


def run_checks(
    catalog: Catalog, machine: Machine, plan: CheckPlan, timeout_seconds: float, report: Callable[[CheckResult], None]
) -> list[CheckResult]:
    """Each solution in a process of its own; a fresh one after a crash, a hang or an exception."""
    results = []
    secret = secrets.token_hex(16)
    for definition, solutions, cases in plan.jobs:
        for solution in solutions:
            one = _OneSolution(catalog, machine, definition, solution, timeout_seconds, secret)
            try:
                for case in cases:
                    results.append(one.check(case))
                    report(results[-1])
            finally:
                one.end()
    return results


class _OneSolution:
    """A solution's process, replaced when it fails, and the judge's look at each case."""

    def __init__(
        self,
        catalog: Catalog,
        machine: Machine,
        definition: Definition,
        solution: Solution,
        timeout_seconds: float,
        secret: str,
    ) -> None:
        self.catalog, self.machine, self.definition, self.solution = catalog, machine, definition, solution
        self.timeout_seconds, self.secret = timeout_seconds, secret
        self._worker: WorkerProcess | None = None
        self._unbuildable: Failed | None = None

    def check(self, case: Case) -> CheckResult:
        end: Verdict | Failed
        try:
            end = self._verdict(case)
        except Failed as failed:
            end = failed
            self.end()
        return CheckResult(
            self.definition.name,
            self.solution.name,
            case.label,
            end.status,
            end.message,
            getattr(end, "correctness", None),
        )

    def _verdict(self, case: Case) -> Verdict:
        import torch

        from kernelderby.measure.judge.table import JudgesTable

        hands = RemoteHands(self._loaded(), self.timeout_seconds)
        table = JudgesTable.of_case(self.catalog.root, self.definition, case, self.machine, self.secret)
        try:
            race = table.race(self.solution, hands)
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise Failed(Status.OUT_OF_MEMORY, f"the judge has no memory for its case: {error}") from error
        try:
            return race.check()
        finally:
            if self._worker and self._worker.ask("release", self.timeout_seconds).get("ok") is not True:
                self.end()
            race.release()
            table.release()

    def _loaded(self) -> WorkerProcess:
        if self._unbuildable:
            raise self._unbuildable
        if self._worker is None:
            self._worker = WorkerProcess(self.catalog.root, self.machine.device, solution_hash=self.solution.hash)
            reply = self._worker.ask(
                "load",
                _START_SECONDS + self.timeout_seconds,
                definition=self.definition.name,
                solution=self.solution.name,
            )
            if reply.get("ok") is not True:
                self._unbuildable = failure(reply)
                raise self._unbuildable
        return self._worker

    def end(self) -> None:
        if self._worker:
            self._worker.kill()
        self._worker = None
