"""Tunes solutions: a worker runs the candidates, every time is logged at once, then a table is picked and written."""

from __future__ import annotations

import ast
import datetime
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from kernelderby.catalog import Catalog, Solution, Workload
from kernelderby.catalog.selection import workload_label
from kernelderby.errors import DerbyError
from kernelderby.measure.judge.cases import case_of_workload
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.tune import table
from kernelderby.measure.tune.pick import Choice, Measured, config_text, pick
from kernelderby.measure.wire.process import WorkerProcess
from kernelderby.measure.wire.replies import Config, Done, Failed, Judged, Kind, TunedTimes, TunePrepared
from kernelderby.trace import Status

CONTRACT = ("tuning_key", "candidates", "run_with")  # what stands in a tunable solution's file beside the entry point
HOPELESS = 1.25  # slower than the best by this factor in the first round: no further rounds
_LOAD_SECONDS = 600


@dataclass(frozen=True, slots=True)
class TuneSettings:
    """budget_seconds: for all solutions together; None without a limit. seed: of the order of the turns."""

    rounds: int = 5
    iterations: int = 10
    timeout_seconds: float = 120
    budget_seconds: float | None = None
    seed: int = 0


@dataclass(slots=True)
class Result:
    """One solution. failed: what did not run or was wrong, a line each. left_over: workloads that the budget did not
    reach. path: the tuned.py that was written, None when nothing was picked."""

    solution: str
    log: Path
    choices: list[Choice] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    path: Path | None = None

    def to_json(self) -> dict[str, Any]:
        rows = [
            {
                "key": one.key,
                "workloads": one.workloads,
                "config": one.config,
                "us": one.us,
                "gain": one.gain,
                "note": one.note,
            }
            for one in self.choices
        ]
        return {
            "solution": self.solution,
            "choices": rows,
            "failed": self.failed,
            "left_over": self.left_over,
            "log": str(self.log),
            "written": str(self.path) if self.path else None,
        }


def tune(
    catalog: Catalog,
    machine: Machine,
    settings: TuneSettings,
    jobs: Sequence[tuple[Solution, list[Workload]]],
    report: Callable[[str], None] = lambda line: None,
) -> list[Result]:
    """Tunes each solution on its workloads and writes its tuned.py. A solution gets an equal share of the time that is
    left when its turn comes. report: one line after each workload."""
    for solution, _ in jobs:  # what is wrong is said before the GPU is used
        table.read(_tunable_folder(solution) / table.NAME)
    end = time.monotonic() + settings.budget_seconds if settings.budget_seconds is not None else None
    results = []
    bench = _Bench(catalog, machine, settings)
    try:
        for position, (solution, workloads) in enumerate(jobs):
            now = time.monotonic()
            deadline = now + (end - now) / (len(jobs) - position) if end is not None else None
            results.append(_tune_one(bench, solution, workloads, deadline, report))
    finally:
        bench.close()
    return results


def _tunable_folder(solution: Solution) -> Path:
    """The folder of its sources. DerbyError where it is not to be tuned."""
    if solution.folder is None:
        raise DerbyError(
            f"{solution.json_path}: has no folder of sources, so there is no place for {table.NAME}; "
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
    missing = [name for name in CONTRACT if name not in names]
    if missing:
        raise DerbyError(
            f"{path}: has no {', '.join(missing)} beside {solution.entry_point.partition('::')[2]}(), so "
            "there is nothing to tune; write what CONTRIBUTING.md says under Tuning"
        )
    return solution.folder


def _tune_one(
    bench: _Bench, solution: Solution, workloads: list[Workload], deadline: float | None, report: Callable[[str], None]
) -> Result:
    result = Result(solution.name, bench.root / "reports" / "tune" / f"{solution.name}.jsonl")
    result.log.parent.mkdir(parents=True, exist_ok=True)
    measured = []
    with result.log.open("a", encoding="utf-8") as log:
        for workload in workloads:
            if _over(deadline):
                result.left_over.append(workload_label(workload))
                continue
            one = _Turns(bench, solution, workload, deadline, log, result.failed).measured()
            if one is not None:
                measured.append(one)
            elif _over(deadline):
                result.left_over.append(workload_label(workload))
            report(f"{solution.name} {workload_label(workload)}")
    result.choices = pick(measured)
    _write(bench.machine, solution, result)
    return result


def _write(machine: Machine, solution: Solution, result: Result) -> None:
    if not result.choices:
        return
    found = {one.key: one.config for one in result.choices if one.config is not None}
    left = {one.key for one in result.choices if one.config is None}
    path = _tunable_folder(solution) / table.NAME
    before = table.read(path)
    table.write(path, solution.name, table.merged(before, machine.name, datetime.date.today().isoformat(), found, left))
    result.path = path


def _over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


class _Bench:
    """The worker that holds a prepared case; a fresh one after a crash, a hang or a broken context."""

    def __init__(self, catalog: Catalog, machine: Machine, settings: TuneSettings) -> None:
        self.catalog, self.root, self.machine, self.settings = catalog, catalog.root, machine, settings
        self._worker: WorkerProcess | None = None
        self._holds: tuple[str, str, TunePrepared] | None = None  # solution, workload, their case
        self._loaded: str | None = None

    def check(self, solution: Solution, workload: Workload, number: int) -> Judged:
        """One call of a candidate. Failed where it has no end."""
        self.prepared(solution, workload)
        return self._ask(Judged, "tune_check", self.settings.timeout_seconds, number=number)

    def time(self, solution: Solution, workload: Workload, number: int) -> TunedTimes:
        """One turn of a candidate. Failed where it has no end."""
        self.prepared(solution, workload)
        seconds, iterations = self.settings.timeout_seconds, self.settings.iterations
        times = self._ask(TunedTimes, "tune_time", seconds, number=number, iterations=iterations)
        if times.spoiled:
            self.close()
        return times

    def prepared(self, solution: Solution, workload: Workload) -> TunePrepared:
        """The case, which a worker holds from now on. Failed where it cannot be."""
        if self._holds and self._holds[:2] == (solution.name, workload.uuid):
            return self._holds[2]
        self._holds = None
        if self._loaded != solution.name:
            self._ask(Done, "load", _LOAD_SECONDS, definition=solution.definition, solution=solution.name)
            self._loaded = solution.name
        case = case_of_workload(self.catalog.definition(solution.definition), workload).to_json()
        found = self._ask(TunePrepared, "tune_prepare", _LOAD_SECONDS, case=case, protocol=self.machine.protocol)
        self._holds = solution.name, workload.uuid, found
        return found

    def _ask(self, kind: type[Kind], command: str, seconds: float, **arguments: Any) -> Kind:
        """A worker that is gone or whose context is broken is ended."""
        if self._worker is None:
            self._worker = WorkerProcess(self.root, self.machine.device, trusted=True)
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


class _Turns:
    """One workload: every candidate checked once, those that are right timed in turn."""

    def __init__(
        self,
        bench: _Bench,
        solution: Solution,
        workload: Workload,
        deadline: float | None,
        log: IO[str],
        failed: list[str],
    ) -> None:
        self.bench, self.solution, self.workload = bench, solution, workload
        self.deadline, self.log, self.failed = deadline, log, failed
        self.key: str | None = None  # None until the case is prepared
        self.configs: tuple[Config, ...] = ()

    def measured(self) -> Measured | None:
        """None when nothing ran, or the budget ended before every candidate had a turn."""
        try:
            case = self.bench.prepared(self.solution, self.workload)
        except Failed as failed:
            self._fail(None, "", failed.status, failed.message)
            return None
        self.key, self.configs = case.key, case.configs
        running = []
        for number in range(len(self.configs)):
            if _over(self.deadline):
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
        )

    def _is_right(self, number: int) -> bool:
        end: Judged | Failed
        try:
            end = self.bench.check(self.solution, self.workload, number)
        except Failed as failed:
            end = failed
        if end.status is not Status.PASSED:
            self._fail(number, "check", end.status, end.message)
        return end.status is Status.PASSED

    def _rounds(self, running: list[int]) -> dict[int, float]:
        """Number of a candidate -> median of its rounds' medians. {} when the first round was cut short."""
        order = random.Random(f"{self.bench.settings.seed} {self.workload.uuid}")
        medians: dict[int, list[float]] = {number: [] for number in running}
        for turn in range(self.bench.settings.rounds):
            order.shuffle(running)
            for number in list(running):
                if _over(self.deadline):
                    return self._middle(medians) if turn else {}
                median = self._time(number, turn)
                if median is None:
                    running.remove(number)
                    medians.pop(number)
                else:
                    medians[number].append(median)
            if turn == 0 and medians:
                best = min(found[0] for found in medians.values())
                running = [number for number in running if number == 0 or medians[number][0] <= HOPELESS * best]
        return self._middle(medians)

    def _middle(self, medians: dict[int, list[float]]) -> dict[int, float]:
        return {number: statistics.median(found) for number, found in medians.items()}

    def _time(self, number: int, turn: int) -> float | None:
        try:
            times = self.bench.time(self.solution, self.workload, number)
        except Failed as failed:
            self._fail(number, f"round {turn}", failed.status, failed.message)
            return None
        if times.problem:
            self._fail(number, f"round {turn}", Status.RAISED, times.problem)
            return None
        self._write(
            {
                "config": self.configs[number],
                "heuristic": number == 0,
                "round": turn,
                "samples_us": [round(sample, 3) for sample in times.samples_us],
            }
        )
        return statistics.median(times.samples_us)

    def _fail(self, number: int | None, stage: str, status: str, message: str) -> None:
        config = None if number is None else self.configs[number]
        line = message.strip().splitlines()[0] if message.strip() else ""
        what = "" if config is None else f" {config_text(config)}"
        self.failed.append(f"{self.solution.name} {workload_label(self.workload)}{what}: {status}: {line}")
        self._write({"config": config, "stage": stage or "prepare", "status": str(status), "message": message})

    def _write(self, found: dict[str, Any]) -> None:
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
        self.log.write(json.dumps(row) + "\n")
        self.log.flush()
