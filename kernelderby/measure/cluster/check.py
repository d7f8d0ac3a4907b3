"""derby check over a Ray cluster: solutions of one author by the handful, since they share a process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelderby.catalog import Catalog
from kernelderby.measure.cluster.bundle import packed
from kernelderby.measure.cluster.messages import Hello, TaskAnswered, TaskAsked
from kernelderby.measure.cluster.pool import Pool, Task
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.run.checks import CheckResult

_AT_ONCE = 4  # solutions of a task
_START_SECONDS = 600.0


@dataclass
class ClusterCheck:
    """settings: as serve._checked() reads them. results: by definition, solution and case. left: solutions that no host
    has answered for."""

    catalog: Catalog
    solutions: Sequence[str]
    settings: dict[str, Any]
    note: Callable[[str], None]
    results: list[CheckResult] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    machine: str = ""
    _report: Callable[[CheckResult], None] = lambda _: None

    def run(self, kinds: Sequence[str], report: Callable[[CheckResult], None]) -> None:
        _, data = packed(self.catalog, self.solutions)
        self._report = report
        pool = Pool(data, "cpu" if tuple(kinds) == ("cpu",) else "cuda", tuple(kinds), self, self.note)
        try:
            hosts = pool.greet()
            self.machine = ", ".join(f"{count} x {hello.machine.name}" for hello, count in hosts.values())
            pool.run()
        finally:
            pool.close()
        self.left = [name for task in pool.left for name in task.asked.solutions]
        places = {name: place for place, name in enumerate(self.catalog.solutions)}
        self.results.sort(key=lambda each: (each.definition, places[each.solution]))

    def tasks(self, hello: Hello) -> Iterable[Task]:
        runnable: dict[str, list[str]] = {}
        for name in self.solutions:
            if name in hello.skipped:
                self.skipped[name] = hello.skipped[name]
            else:
                runnable.setdefault(self.catalog.solution(name).author, []).append(name)
        for names in runnable.values():
            for start in range(0, len(names), _AT_ONCE):
                some = tuple(names[start : start + _AT_ONCE])
                asked = TaskAsked("check", "", some, None, self.settings)
                yield Task(asked, _START_SECONDS + self.settings["timeout"] * 4 * len(some))

    def begun(self, machine: Machine, task: Task) -> bool:
        return True

    def answered(self, machine: Machine, task: Task, found: TaskAnswered) -> None:
        self.broken.update(found.broken)
        for result in found.results:
            self.results.append(result)
            self._report(result)
