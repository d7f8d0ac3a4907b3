"""derby bench over a Ray cluster: this process plans and writes all rows, and measures nothing itself."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kernelderby.catalog import Catalog
from kernelderby.measure.cluster.messages import Hello, TaskAnswered, TaskAsked
from kernelderby.measure.cluster.pool import START_SECONDS, Kind, Pool, Task, TaskSource, kind_of
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.run.neighbours import Neighbours
from kernelderby.measure.run.plan import Job, Plan, Settings, without_others_rows
from kernelderby.measure.run.progress import Observer
from kernelderby.measure.run.rows import claim, last_line, line_of, make_ready
from kernelderby.rows.measurement import Measurement
from kernelderby.store.appended import append_line, exclusive_lock


@dataclass(eq=False, slots=True, kw_only=True)
class JobTask(Task):
    job: Job


class ClaimedWorkloads:
    """Workloads that this driver has claimed. Nobody else measures them, and their rows are written once.

    While a task is out and until its rows are in the file, this process holds the claim (rows.claim) on its workload.
    Every run takes this claim before it measures a workload: other drivers of the set, and `derby bench` without a
    cluster."""

    def __init__(self, catalog: Catalog, together: bool) -> None:
        self._catalog, self._together = catalog, together
        self._claims: dict[tuple[Path, str], ExitStack] = {}
        self._sizes: dict[Path, int] = {}  # lines of each file that this driver knows: the plan's and its own rows
        self._sessions = set[str]()  # sessions of the rows appended here
        self._alone = ExitStack()  # it tells other runs that these rows are no worker's
        self._alone.enter_context(Neighbours(catalog.root))

    def take(self, machine: Machine, job: Job, plan: Plan) -> Job | None:
        """Claims the job, and returns the part that others have not measured since the plan, possibly without
        solutions. None while another run holds the claim."""
        path = self._catalog.traces_path(machine.id, job.definition.name)
        key = path, job.workload.uuid
        if key not in self._claims:  # rows of a former try
            claims = ExitStack()
            if not claims.enter_context(claim(path, job.workload.uuid)):
                claims.close()
                return None
            self._claims[key] = claims
        planned = plan.lines[job.definition.name]
        if path not in self._sizes and last_line(path) == planned:
            self._sizes[path] = _size(path)
        if self._sizes.get(path) == _size(path):
            return job
        left = without_others_rows(job, path, planned, self._sessions, machine, self._together)
        if not left:
            self._claims.pop(key).close()
        return left or replace(job, solutions=())

    def append(self, machine: Machine, job: Job, rows: list[dict[str, Any]]) -> None:
        """Writes all rows of a task at once and gives the claim up. DerbyError: none of them could be written."""
        path = self._catalog.traces_path(machine.id, job.definition.name)
        if rows:
            text = "\n".join(map(line_of, rows))
            size = _size(path)
            append_line(path, text)
            if self._sizes.get(path) == size:
                self._sizes[path] = size + len(text.encode()) + 1
            self._sessions |= {row["measurement"]["session"] for row in rows}
        if claims := self._claims.pop((path, job.workload.uuid), None):
            claims.close()

    def close(self) -> None:
        for claims in self._claims.values():
            claims.close()
        self._claims.clear()
        self._alone.close()


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


class ClusterBench(TaskSource[JobTask]):
    """plans: kind of GPU -> one of its machines, and the plan for the kind. hosts: kind -> number of hosts in the
    cluster."""

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
        self._hand = ClaimedWorkloads(catalog, settings.together)
        self._postponed: list[tuple[Machine, JobTask]] = []
        self._pool = Pool(catalog, solutions, kinds, self, observer.note)
        self.hosts = {kind: hosts for kind, (_, hosts) in self._pool.greet().items()}

    @property
    def pairs(self) -> int:
        return sum(plan.pairs for _, plan in self.plans.values())

    @property
    def seconds(self) -> float:
        """The time of the kind that takes longest, with its hosts in parallel."""
        return max(
            (plan.known_seconds / self.hosts.get(kind, 1) for kind, (_, plan) in self.plans.items()), default=0.0
        )

    def run(self) -> int:
        """Runs, and returns the number of pairs (solution, workload) that are left without a row. The same command
        measures them later."""
        for machine, plan in self.plans.values():
            for name in dict.fromkeys(job.definition.name for job in plan.jobs):
                make_ready(self.catalog.traces_path(machine.id, name), self._observer.note)
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
            seconds = START_SECONDS + self.settings.timeout_seconds * (2 + len(job.solutions))
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
        """Writes all rows of a task at once."""
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
