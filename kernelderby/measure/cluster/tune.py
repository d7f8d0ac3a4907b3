"""derby tune over a Ray cluster: a task is one workload with all its candidates; the tables are written here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field

from kernelderby.catalog import Catalog, Solution, Workload
from kernelderby.catalog.selection import workload_label
from kernelderby.measure.cluster.bundle import packed
from kernelderby.measure.cluster.messages import Hello, TaskAnswered, TaskAsked
from kernelderby.measure.cluster.pool import Kind, Pool, Task, kind_of
from kernelderby.measure.cluster.unfinished import Unfinished
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.tune.run import Result, expect_tunable, log_path, write_table
from kernelderby.measure.tune.turns import TuneSettings
from kernelderby.store.appended import append_line
from kernelderby.store.counts import counted

_START_SECONDS = 600.0  # of a task's deadline: the first compilation of all candidates
_CANDIDATES = 64  # that a task may have within its deadline, each with all its turns at the --timeout


@dataclass(eq=False, slots=True, kw_only=True)
class TuneTask(Task):
    solution: Solution
    workload: Workload


@dataclass
class ClusterTune:
    """results: each with the kind of GPU whose table it is. note: told a line worth saying; report: one a workload.
    left: workloads that no host has tuned."""

    catalog: Catalog
    settings: TuneSettings
    jobs: Sequence[tuple[Solution, Sequence[Workload]]]
    note: Callable[[str], None]
    report: Callable[[str], None] = lambda line: None
    only_losses: bool = False
    left: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._machines: dict[Kind, Machine] = {}
        self._found: dict[tuple[Kind, str], Result] = {}
        self._before: dict[tuple[Kind, str], Unfinished] = {}
        for solution, _ in self.jobs:
            expect_tunable(solution)

    def run(self, kinds: Sequence[str]) -> list[tuple[Machine, Result]]:
        _, data = packed(self.catalog, [solution.name for solution, _ in self.jobs])
        pool = Pool(data, "cpu" if tuple(kinds) == ("cpu",) else "cuda", tuple(kinds), self, self.note)
        try:
            pool.greet()
            pool.run()
        finally:
            pool.close()
        self.left = [f"{task.solution.name} {workload_label(task.workload)}" for task in pool.left]
        return [*self._written()]

    def tasks(self, hello: Hello) -> Iterable[TuneTask]:
        kind, settings = kind_of(hello.machine), asdict(self.settings)
        self._machines[kind] = hello.machine
        seconds = _START_SECONDS + self.settings.timeout_seconds * _CANDIDATES
        for solution, workloads in self.jobs:
            if solution.name in hello.skipped:
                self.note(f"{solution.name}: {hello.skipped[solution.name]}; not tuned for {hello.machine.name}")
                continue
            result = Result(solution.name, log_path(self.catalog.root, solution))
            before = Unfinished(result.log, solution, hello.machine, self.settings)
            self._found[kind, solution.name], self._before[kind, solution.name] = result, before
            if done := [each for each in workloads if each.uuid in before.found]:
                self.note(
                    f"{solution.name}: a run that did not end has tuned {len(done)} of "
                    f"{counted(len(workloads), 'workload')}"
                )
            for workload in workloads:
                if workload in done:
                    self.report(f"{solution.name} {workload_label(workload)} on {hello.machine.name}")
                    continue
                asked = TaskAsked("tune", solution.definition, (solution.name,), workload.raw, settings)
                yield TuneTask(asked, seconds, solution=solution, workload=workload)

    def begun(self, machine: Machine, task: TuneTask) -> bool:
        return True

    def answered(self, machine: Machine, task: TuneTask, found: TaskAnswered) -> None:
        key = kind_of(machine), task.solution.name
        if found.log:
            append_line(self._found[key].log, "\n".join(found.log))
        self._before[key].add(task.workload.uuid, found.tuned, found.failed)
        self.report(f"{task.solution.name} {workload_label(task.workload)} on {machine.name}")

    def _written(self) -> Iterable[tuple[Machine, Result]]:
        """In the order of the workloads, whichever host was the first."""
        for (kind, name), result in self._found.items():
            solution, workloads = next(each for each in self.jobs if each[0].name == name)
            before = self._before[kind, name]
            came = [before.found[each.uuid] for each in workloads if each.uuid in before.found]
            result.failed += [line for each in came for line in each.failed]
            measured = [each.tuned for each in came if each.tuned is not None]
            write_table(self._machines[kind], solution, result, measured, self.only_losses)
            if len(came) == len(workloads):
                before.end()
            yield self._machines[kind], result
