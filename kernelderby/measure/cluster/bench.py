"""derby bench over a Ray cluster: this process plans, writes every row, and measures nothing itself."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kernelderby.catalog import Catalog
from kernelderby.measure.cluster.bundle import packed
from kernelderby.measure.cluster.hand import InHand
from kernelderby.measure.cluster.messages import Hello, TaskAnswered, TaskAsked
from kernelderby.measure.cluster.pool import Kind, Pool, Task, kind_of
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.run.observer import Observer
from kernelderby.measure.run.plan import Job, Plan, Settings
from kernelderby.measure.run.rows import expect_writable, repair
from kernelderby.rows.measurement import Measurement
from kernelderby.store.appended import exclusive_lock

_START_SECONDS = 600.0  # of a task's deadline: the first compilation of its solutions


@dataclass(eq=False, slots=True, kw_only=True)
class JobTask(Task):
    job: Job


class ClusterBench:
    """plans: kind of GPU -> a machine of it and what is to be measured there. hosts: how many the cluster has."""

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
        self.plans: dict[Kind, tuple[Machine, Plan]] = {}
        self.rows: list[Measurement] = []
        self._hand = InHand(catalog, settings.together)
        self._postponed: list[tuple[Machine, JobTask]] = []
        _, data = packed(catalog, solutions)
        device = "cpu" if tuple(kinds) == ("cpu",) else "cuda"
        self._pool = Pool(data, device, tuple(kinds), self, observer.note)
        self.hosts = {kind: hosts for kind, (_, hosts) in self._pool.greet().items()}

    @property
    def pairs(self) -> int:
        return sum(plan.pairs for _, plan in self.plans.values())

    @property
    def seconds(self) -> float:
        """Of the kind that takes longest, its hosts side by side."""
        return max((plan.seconds / self.hosts.get(kind, 1) for kind, (_, plan) in self.plans.items()), default=0.0)

    def run(self) -> int:
        """How many solutions on a workload are left without a row, which the same command measures."""
        for machine, plan in self.plans.values():
            for name in dict.fromkeys(job.definition.name for job in plan.jobs):
                path = self.catalog.traces_path(machine.id, name)
                expect_writable(path)
                if note := repair(path):
                    self._observer.note(note)
        self._pool.run()
        again, self._postponed = self._postponed, []
        for machine, task in again:
            self._pool.again(machine, [task])
        if again:
            self._pool.run()
        for _, task in self._postponed:
            self._observer.note(f"{task.job.workload.uuid}: another run measures it; left to that one")
        return sum(len(task.job.solutions) for task in self._pool.left)

    def close(self) -> None:
        self._pool.close()
        self._hand.close()

    def tasks(self, hello: Hello) -> Iterable[JobTask]:
        plan = self._chosen(hello.machine, hello.skipped)
        self.plans[kind_of(hello.machine)] = hello.machine, plan
        settings = asdict(replace(self.settings, budget_seconds=None))
        for job in plan.jobs:
            key = job.workload.uuid, hello.machine.name, hello.machine.protocol
            tries = {one.name: plan.tries.get((one.name, *key), 0) for one in job.solutions}
            seconds = _START_SECONDS + self.settings.timeout_seconds * (2 + len(job.solutions))
            yield JobTask(_asked(job, settings, tries), seconds, job=job)

    def begun(self, machine: Machine, task: JobTask) -> bool:
        _, plan = self.plans[kind_of(machine)]
        left = self._hand.take(machine, task.job, plan)
        if left is None:
            self._postponed.append((machine, task))
            return False
        task.job = left
        task.asked = _asked(left, task.asked.settings, task.asked.tries)
        return bool(left.solutions)

    def answered(self, machine: Machine, task: JobTask, found: TaskAnswered) -> None:
        """All rows of a task in one write."""
        for line in found.notes:
            self._observer.note(line)
        rows = [Measurement.from_trace(row) for row in found.rows]
        self._hand.append(machine, task.job, list(found.rows))
        for row in rows:
            self.rows.append(row)
            self._observer.row(row)


def _asked(job: Job, settings: dict[str, Any], tries: dict[str, int]) -> TaskAsked:
    names = tuple(each.name for each in job.solutions)
    return TaskAsked("bench", job.definition.name, names, job.workload.raw, settings, tries)


def one_writer(catalog: Catalog) -> Any:
    """Held by one driver of a set at a time."""
    name = hashlib.sha256(os.path.realpath(catalog.root).encode()).hexdigest()[:16]
    return exclusive_lock(f"cluster-{name}", "another `derby bench --ray` writes into this set; wait for its end")
