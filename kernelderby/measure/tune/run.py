"""Tunes solutions: a worker runs the candidates, every time is logged at once, then the table is chosen and written."""

from __future__ import annotations

import ast
import datetime
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kernelderby.catalog import Catalog, Solution, Workload
from kernelderby.catalog.selection import workload_label
from kernelderby.errors import DerbyError
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.tune import table
from kernelderby.measure.tune.pick import KeyChoice, Measured, pick
from kernelderby.measure.tune.turns import Bench, TuneSettings, Turns, is_overdue

CONTRACT = ("tuning_key", "candidates", "run_with")  # names in a tunable solution's file in addition to the entry point


@dataclass(slots=True)
class Result:
    """One solution. failed: a line for each candidate that failed or was wrong. left_over: workloads outside the
    budget. path: the written tuned.py, None without a choice. files: written files of the library's format, beside the
    log."""

    solution: str
    log: Path
    choices: list[KeyChoice] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    path: Path | None = None
    files: list[Path] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "solution": self.solution,
            "choices": [asdict(one) for one in self.choices],
            "failed": self.failed,
            "left_over": self.left_over,
            "log": str(self.log),
            "written": str(self.path) if self.path else None,
            "files": [str(path) for path in self.files],
        }


def tune(
    catalog: Catalog,
    machine: Machine,
    settings: TuneSettings,
    jobs: Sequence[tuple[Solution, list[Workload]]],
    report: Callable[[str], None] = lambda line: None,
    only_losses: bool = False,
) -> list[Result]:
    """Tunes each solution on its workloads and writes its tuned.py. In its turn a solution gets an equal share of the
    remaining time. report: gets one line after each workload. only_losses: write only the candidates' losses at these
    shapes, from which choices are interpolated, and no rows of the table."""
    for solution, _ in jobs:
        expect_tunable(solution)
    end = time.monotonic() + settings.budget_seconds if settings.budget_seconds is not None else None
    results = []
    with closing(Bench(catalog, machine, settings)) as bench:
        for position, (solution, workloads) in enumerate(jobs):
            now = time.monotonic()
            deadline = now + (end - now) / (len(jobs) - position) if end is not None else None
            result, measured = Result(solution.name, log_path(catalog.root, solution)), list[Measured]()
            for workload, one in each_measured(bench, solution, workloads, result, report, deadline):
                if one is not None:
                    measured.append(one)
                elif is_overdue(deadline):
                    result.left_over.append(workload_label(workload))
            write_table(machine, solution, result, measured, only_losses)
            results.append(result)
    return results


class HasLog(Protocol):
    log: Path
    failed: list[str]


def each_measured(
    bench: Bench,
    solution: Solution,
    workloads: Sequence[Workload],
    result: HasLog,
    report: Callable[[str], None],
    deadline: float | None = None,
) -> Iterator[tuple[Workload, Measured | None]]:
    """The times on each workload, which also go to the result's log; None if nothing ran or the time is over."""
    result.log.parent.mkdir(parents=True, exist_ok=True)
    with result.log.open("a", encoding="utf-8", buffering=1) as log:
        for workload in workloads:
            one = None
            if not is_overdue(deadline):
                one = Turns(bench, solution, workload, deadline, log.write, result.failed).measured()
                report(f"{solution.name} {workload_label(workload)}")
            yield workload, one


def expect_tunable(solution: Solution) -> None:
    """DerbyError for a problem of the solution or its table, before a GPU is used."""
    table.read(tunable_folder(solution) / table.NAME)


def log_path(root: Path, solution: Solution) -> Path:
    return root / "reports" / "tune" / f"{solution.name}.jsonl"


def tunable_folder(solution: Solution, contract: Sequence[str] = CONTRACT) -> Path:
    """The folder of its sources. DerbyError if it cannot be tuned. contract: names that its file must define."""
    if solution.folder is None:
        raise DerbyError(
            f"{solution.json_path}: has no folder of sources, so it has no place for {table.NAME}; "
            "tune it in the set that it was packed in"
        )
    file = solution.entry_point.partition("::")[0]
    path = solution.folder / file
    try:
        body = ast.parse(solution.sources[file]).body
    except SyntaxError as error:
        raise DerbyError(f"{path}:{error.lineno}: {error.msg}; only a Python solution is tuned") from error
    names = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    names |= {target.id for target in targets if isinstance(target, ast.Name)}
    missing = [name for name in contract if name not in names]
    if missing:
        raise DerbyError(
            f"{path}: has no {', '.join(missing)} beside {solution.entry_point.partition('::')[2]}(), so "
            "there is nothing to tune; write what CONTRIBUTING.md says under Tuning"
        )
    return solution.folder


def write_table(
    machine: Machine, solution: Solution, result: Result, measured: Sequence[Measured], only_losses: bool
) -> None:
    """Picks the result's choices and writes them into the solution's table for that GPU."""
    result.choices = pick(measured)
    if not result.choices:
        return
    shapes = [(one.key, one.times_us) for one in measured]
    picked = [] if only_losses else result.choices
    found = {one.key: one.config for one in picked if one.config is not None}
    left = {one.key for one in picked if one.config is None}
    path = tunable_folder(solution) / table.NAME
    today = datetime.date.today().isoformat()
    table.write(path, solution.name, table.merged(table.read(path), machine.name, today, found, left, shapes))
    result.path = path
    result.files = table.write_library_files(result.log.with_suffix(""), found)
