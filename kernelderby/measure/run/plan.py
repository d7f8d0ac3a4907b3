"""What a run measures, in which order, and how long it will take."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kernelderby.catalog import Catalog, Definition, Solution, Workload
from kernelderby.catalog.selection import of_origin, select_in_each
from kernelderby.errors import DerbyError
from kernelderby.measure.judge.secret import drawn
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.machine.requirements import try_modules, why_not
from kernelderby.measure.run.rows import TRIES, Key, last_line, tries_of
from kernelderby.rows.measurement import Measurement

# Where no recorded row says how long its like took: seconds for one solution on one workload, seen on an H200 between
# 0.3 (small operators) and 6 (MoE); and for a definition's processes to start, load and compile.
_UNKNOWN_SECONDS = 2.0
_START_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    """rounds: turns of each solution; the two fastest of a workload take up to most_rounds, until the interval of
    their ratio is narrow. timeout_seconds: for each step of a solution (check with compilation, one round). again:
    measure also what has a row. this_gpu: a row counts only where it was measured on this very GPU, not on another of
    its kind. together: when any chosen solution lacks a row on a workload, measure all of them, so that they pair.
    secret: of the session. is_secret_given: on the command line, where others may have read it.
    budget_seconds: of the whole run, see budget.py. sealed: see seal.py."""

    rounds: int = 5
    iterations: int = 10
    timeout_seconds: float = 300
    again: bool = False
    together: bool = False
    most_rounds: int = 10
    this_gpu: bool = False
    secret: str = field(default_factory=drawn)
    is_secret_given: bool = False
    budget_seconds: float | None = None
    sealed: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """One workload and the solutions to measure on it in turn."""

    definition: Definition
    workload: Workload
    solutions: tuple[Solution, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """skipped: solution -> reason. settled: how many (solution, workload) pairs have their row already. seconds: how
    long it may take; measured_like: for how many of its pairs a recorded row says so, the others are guessed. lines:
    definition -> how many lines its traces file of this machine had: rows behind them are of runs at the same time.
    tries: how often a pair without a row that stands was tried (rows.TRIES)."""

    jobs: tuple[Job, ...]
    skipped: dict[str, str]
    settled: int
    lines: dict[str, int]
    seconds: float = 0.0
    measured_like: int = 0
    tries: dict[Key, int] = field(default_factory=dict)

    @property
    def pairs(self) -> int:
        return sum(len(job.solutions) for job in self.jobs)


def make_plan(
    catalog: Catalog,
    machine: Machine,
    settings: Settings,
    solutions: Iterable[str] = (),
    definitions: Iterable[str] = (),
    workloads: Iterable[str] = (),
    origins: Collection[str] = (),
    fresh: Mapping[str, Sequence[Workload]] | None = None,
    skipped: Mapping[str, str] | None = None,
) -> Plan:
    """skipped: what the machine cannot run and why, where it is another one than this; looked up here without it.
    What is to be measured. Without names: everything. fresh: of each definition the shapes instead of the listed
    ones, or beside those of the origins. DerbyError for a name that does not exist."""
    workloads = list(workloads)
    if fresh is not None and workloads:
        raise DerbyError("--fresh: draws shapes that no file holds; leave out --workloads")
    catalog.check_origins(origins)
    chosen = catalog.solutions_named(solutions) or list(catalog.solutions.values())
    wanted = [catalog.definition(name) for name in definitions] or list(catalog.definitions.values())
    names = {definition.name for definition in wanted}
    chosen = [one for one in chosen if one.definition in names]
    jobs: list[Job] = []
    took: dict[tuple[str, str], float] = {}
    lines: dict[str, int] = {}
    tries: dict[Key, int] = {}
    settled = 0
    named = {one.definition for one in chosen}
    own = {
        each.name: of_origin(catalog.workloads(each.name), origins) if fresh is None or origins else []
        for each in wanted
        if each.name in named
    }
    any_listed = not (origins or fresh)
    listed = select_in_each({name: found for name, found in own.items() if found or any_listed}, workloads)
    if skipped is None:
        if machine.gpu is not None:
            try_modules(chosen)
        skipped = {one.name: reason for one in chosen if (reason := why_not(one, machine))}
    skipped = {one.name: skipped[one.name] for one in chosen if one.name in skipped}
    for definition in wanted:
        racers = [one for one in chosen if one.definition == definition.name and one.name not in skipped]
        if not racers:
            continue
        lines[definition.name] = last_line(catalog.traces_path(machine.id, definition.name))
        rows = catalog.traces(definition.name)
        took |= _recorded_seconds(rows, machine)
        of_rows = tries_of((row for row in rows if not settings.this_gpu or _is_of(row, machine)), racers)
        known = {key for key, tried in of_rows.items() if tried is None or tried >= TRIES}
        tries |= {key: tried for key, tried in of_rows.items() if tried is not None}
        # The least work first: a run that is stopped has measured the most shapes.
        for workload in sorted([*listed.get(definition.name, ()), *(fresh or {}).get(definition.name, ())], key=_work):
            missing = [
                one
                for one in racers
                if settings.again or (one.name, workload.uuid, machine.name, machine.protocol) not in known
            ]
            measured = racers if settings.together and missing else missing
            settled += len(racers) - len(measured)
            if measured:
                jobs.append(Job(definition, workload, tuple(measured)))
    return Plan(tuple(jobs), skipped, settled, lines, *_seconds(jobs, took), tries)


def _work(workload: Workload) -> float:
    """Roughly the seconds that it takes on a large GPU: 1e15 flops or 4e12 bytes in one."""
    cost = workload.cost
    return 0.0 if cost is None else max(sum(cost.flops.values()) / 1e15, cost.needed() / 4e12)


def _is_of(row: Measurement, machine: Machine) -> bool:
    return machine.gpu is not None and row.environment.get("gpu_uuid") == machine.gpu.uuid


def _recorded_seconds(rows: Iterable[Measurement], machine: Machine) -> dict[tuple[str, str], float]:
    """(solution, uuid) -> what the newest row of this machine's kind says it took."""
    return {
        (row.solution, row.uuid): row.environment["seconds"]
        for row in rows
        if row.gpu == machine.name and isinstance(row.environment.get("seconds"), (int, float))
    }


def _seconds(jobs: list[Job], took: dict[tuple[str, str], float]) -> tuple[float, int]:
    pairs = [(solution.name, job.workload.uuid) for job in jobs for solution in job.solutions]
    known = [took[pair] for pair in pairs if pair in took]
    each = statistics.median(known) if known else _UNKNOWN_SECONDS
    starts = len({job.definition.name for job in jobs})
    return sum(known) + each * (len(pairs) - len(known)) + _START_SECONDS * starts, len(known)
