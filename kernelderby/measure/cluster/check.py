"""derby check over a Ray cluster, a few solutions per task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from kernelderby.catalog import Catalog
from kernelderby.measure.cluster.messages import Hello, TaskAnswered, TaskAsked
from kernelderby.measure.cluster.pool import START_SECONDS, Pool, Task, TaskSource
from kernelderby.measure.machine.probe import Machine
from kernelderby.rows.checked import CheckResult

_AT_ONCE = 4  # solutions of a task


@dataclass
class ClusterCheck(TaskSource[Task]):
    """settings: the form of serve._checked(). results: by definition, solution and case. left: solutions without an
    answer of any host."""

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
        self._report = report
        with closing(Pool(self.catalog, self.solutions, kinds, self, self.note)) as pool:
            hosts = pool.greet()
            self.machine = ", ".join(f"{count} x {hello.machine.name}" for hello, count in hosts.values())
            pool.run()
        self.left = [name for task in pool.left for name in task.asked.solutions]
        places = {name: place for place, name in enumerate(self.catalog.solutions)}
        self.results.sort(key=lambda each: (each.definition, places[each.solution]))

    def tasks(self, hello: Hello) -> Iterable[Task]:
        self.skipped |= {name: hello.skipped[name] for name in self.solutions if name in hello.skipped}
        names = [name for name in self.solutions if name not in hello.skipped]
        for start in range(0, len(names), _AT_ONCE):
            some = tuple(names[start : start + _AT_ONCE])
            asked = TaskAsked("check", "", some, None, self.settings)
            yield Task(asked, START_SECONDS + self.settings["timeout"] * 4 * len(some))

    def answered(self, machine: Machine, task: Task, found: TaskAnswered) -> None:
        self.broken.update(found.broken)
        for result in found.results:
            self.results.append(result)
            self._report(result)
