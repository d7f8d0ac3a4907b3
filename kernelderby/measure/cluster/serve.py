"""The process on a host that measures for a remote driver: tasks come on stdin, answers go to stdout. It ends when
stdin ends, which happens whenever the actor that started it is gone.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import IO

import msgspec

from kernelderby.catalog import Catalog
from kernelderby.catalog.columns.parts import code_digest
from kernelderby.catalog.workloads import workload_of
from kernelderby.errors import DerbyError
from kernelderby.measure.cluster.messages import Hello, TaskAnswered, TaskAsked
from kernelderby.measure.machine.probe import Machine, exclusive, find_machine
from kernelderby.measure.machine.requirements import try_modules, why_not
from kernelderby.measure.run.checks import plan_checks, run_checks
from kernelderby.measure.run.plan import Job, Settings
from kernelderby.measure.run.progress import Observer
from kernelderby.measure.run.runner import Runner
from kernelderby.measure.tune.turns import Bench, TuneSettings, Turns
from kernelderby.rows.checked import CheckResult
from kernelderby.rows.measurement import Measurement


def main(root: Path, device: str) -> None:
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # output of libraries must not count as answers
    catalog = Catalog.open(root)
    machine = find_machine(root, device)
    if machine.gpu is not None:
        try_modules(catalog.solutions.values())
    skipped = {name: why for name, each in catalog.solutions.items() if (why := why_not(each, machine))}
    _say(answers, Hello(machine, skipped, code_digest(), _held_by_others(machine, root)))
    tasks: queue.Queue[TaskAsked] = queue.Queue()
    threading.Thread(target=_read, args=(tasks,), daemon=True).start()
    first = tasks.get()
    if first.verb == "check":
        for task in chain([first], iter(tasks.get, None)):
            _say(answers, _checked(catalog, machine, task))
    else:
        (_tune if first.verb == "tune" else _measure)(catalog, machine, first, tasks, answers)


def _held_by_others(machine: Machine, root: Path) -> str:
    """Who holds the GPU; empty if nobody does."""
    try:
        with exclusive(machine, root):
            return ""
    except DerbyError as error:
        return str(error)


def _read(tasks: queue.Queue[TaskAsked]) -> None:
    """Reads tasks. At the end of stdin nobody waits for results, so the process ends at once, and its workers with it
    (fence/watcher.py)."""
    decode = msgspec.json.Decoder(TaskAsked).decode
    with os.fdopen(os.dup(0), "rb") as lines:  # not sys.stdin, whose lock Python waits for at its end
        for line in lines:
            tasks.put(decode(line))
    os._exit(0)


def _say(answers: IO[bytes], what: Hello | TaskAnswered) -> None:
    answers.write(msgspec.json.encode(what) + b"\n")


class _Collected(Observer):
    def __init__(self) -> None:
        self.rows: list[Measurement] = []
        self.notes: list[str] = []

    def row(self, row: Measurement) -> None:
        self.rows.append(row)

    def note(self, line: str) -> None:
        self.notes.append(line)

    def taken(self) -> TaskAnswered:
        found = TaskAnswered(tuple(row.to_trace() for row in self.rows), notes=tuple(self.notes))
        self.rows, self.notes = [], []
        return found


def _measure(
    catalog: Catalog, machine: Machine, first: TaskAsked, tasks: queue.Queue[TaskAsked], answers: IO[bytes]
) -> None:
    """Measures task after task in one session; the processes of a definition's solutions stay."""
    observer = _Collected()

    def jobs() -> Iterator[tuple[Job, dict[str, int]]]:
        for task in chain([first], iter(tasks.get, None)):
            definition = catalog.definition(task.definition)
            workload = workload_of("a task", task.workload or {}, definition)
            yield Job(definition, workload, tuple(map(catalog.solution, task.solutions))), task.tries
            _say(answers, observer.taken())

    try:
        Runner(catalog, machine, msgspec.convert(first.settings, Settings), observer).run_as_they_come(jobs())
    except DerbyError as error:
        _say(answers, TaskAnswered(error=str(error), notes=tuple(observer.notes)))


def _tune(
    catalog: Catalog, machine: Machine, first: TaskAsked, tasks: queue.Queue[TaskAsked], answers: IO[bytes]
) -> None:
    """Tunes task after task with one worker for each solution."""
    settings = msgspec.convert(first.settings, TuneSettings)
    try:
        with exclusive(machine, catalog.root), closing(Bench(catalog, machine, settings)) as bench:
            for task in chain([first], iter(tasks.get, None)):
                (name,), log, failed = task.solutions, list[str](), list[str]()
                workload = workload_of("a task", task.workload or {}, catalog.definition(task.definition))
                turns = Turns(bench, catalog.solution(name), workload, None, log.append, failed)
                tuned, lines = turns.measured(), tuple(line.rstrip() for line in log)
                _say(answers, TaskAnswered(tuned=tuned, log=lines, failed=tuple(failed)))
    except DerbyError as error:
        _say(answers, TaskAnswered(error=str(error)))


def _checked(catalog: Catalog, machine: Machine, task: TaskAsked) -> TaskAnswered:
    given = task.settings
    results: list[CheckResult] = []
    try:
        plan = plan_checks(
            *(catalog, machine, task.solutions, (), tuple(given["workloads"]), given["seeds"]),
            *(tuple(given["origins"]), given["fresh"], given["secret"]),
        )
        results = run_checks(catalog, machine, plan, given["timeout"], lambda _: None, given["secret"], lanes=1)
    except DerbyError as error:
        return TaskAnswered(error=str(error))
    return TaskAnswered(results=tuple(results), broken=plan.broken)
