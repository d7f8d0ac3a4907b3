"""derby bench over a Ray cluster: this process plans, writes every row, and measures nothing itself."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from kernelderby.appended import append_line, exclusive_lock
from kernelderby.catalog import Catalog
from kernelderby.measure.cluster.bundle import packed
from kernelderby.measure.cluster.messages import Hello, TaskAnswered, TaskAsked
from kernelderby.measure.cluster.pool import Pool, Task
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.run.observer import Observer
from kernelderby.measure.run.plan import Job, Plan, Settings
from kernelderby.measure.run.rows import expect_writable, repair
from kernelderby.trace import Measurement

_START_SECONDS = 600.0  # of a task's deadline: the first compilation of its solutions


class ClusterBench:
    """plans: kind of GPU -> what is to be measured there. hosts: how many of it the cluster has."""

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        kinds: Sequence[str],
        chosen: Callable[..., Plan],
        solutions: Sequence[str],
        observer: Observer,
    ) -> None:
        """chosen: make_plan() of the command's names; wants machine and skipped."""
        self.catalog, self.settings, self._chosen, self._observer = catalog, settings, chosen, observer
        self.plans: dict[str, tuple[Machine, Plan]] = {}
        self.rows: list[Measurement] = []
        _, data = packed(catalog, solutions)
        device = "cpu" if tuple(kinds) == ("cpu",) else "cuda"
        self._pool = Pool(data, device, tuple(kinds), self._tasks, observer.note)
        self.hosts = {kind: hosts for kind, (_, hosts) in self._pool.greet().items()}

    @property
    def pairs(self) -> int:
        return sum(plan.pairs for _, plan in self.plans.values())

    @property
    def seconds(self) -> float:
        """Of the kind that takes longest, its hosts side by side."""
        return max((plan.seconds / self.hosts[kind] for kind, (_, plan) in self.plans.items()), default=0.0)

    def run(self) -> int:
        """How many solutions on a workload are left without a row, which the same command measures."""
        for machine, plan in self.plans.values():
            for name in dict.fromkeys(job.definition.name for job in plan.jobs):
                path = self.catalog.traces_path(machine.id, name)
                expect_writable(path)
                if note := repair(path):
                    self._observer.note(note)
        self._pool.run(self._answered)
        return sum(len(task.asked.solutions) for task in self._pool.left)

    def close(self) -> None:
        self._pool.close()

    def _tasks(self, hello: Hello) -> Iterable[Task]:
        plan = self._chosen(hello.machine, hello.skipped)
        self.plans[hello.machine.id] = hello.machine, plan
        return [self._task(job, hello.machine, plan) for job in plan.jobs]

    def _task(self, job: Job, machine: Machine, plan: Plan) -> Task:
        settings = replace(self.settings, budget_seconds=None)
        asked = TaskAsked(
            job.definition.name, tuple(each.name for each in job.solutions), job.workload.raw, asdict(settings)
        )
        return Task(asked, _START_SECONDS + settings.timeout_seconds * (2 + len(job.solutions)))

    def _answered(self, machine: Machine, task: Task, found: TaskAnswered) -> None:
        """All rows of a task in one write: a kill leaves each of them or none."""
        for line in found.notes:
            self._observer.note(line)
        if not found.rows:
            return
        path = self.catalog.traces_path(machine.id, task.asked.definition)
        lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) for row in found.rows]
        append_line(path, "\n".join(lines).encode("utf-8", "replace").decode())
        for row in found.rows:
            self.rows.append(Measurement.from_trace(row))
            self._observer.row(self.rows[-1])


def one_writer(catalog: Catalog) -> Any:
    """Held by one driver of a set at a time."""
    name = hashlib.sha256(os.path.realpath(catalog.root).encode()).hexdigest()[:16]
    return exclusive_lock(f"cluster-{name}", "another `derby bench --ray` writes into this set; wait for its end")
