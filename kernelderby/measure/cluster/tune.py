"""derby tune over a Ray cluster: a task is one workload with all its candidates; the tables are written here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path

import msgspec
from msgspec import Struct

from kernelderby.catalog import Catalog, Solution, Workload
from kernelderby.catalog.selection import workload_label
from kernelderby.measure.cluster.messages import Hello, TaskAnswered, TaskAsked
from kernelderby.measure.cluster.pool import START_SECONDS, Kind, Pool, Task, TaskSource, kind_of
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.tune import table
from kernelderby.measure.tune.pick import Measured
from kernelderby.measure.tune.run import Result, expect_tunable, log_path, write_table
from kernelderby.measure.tune.turns import TuneSettings
from kernelderby.store.appended import append_line
from kernelderby.store.counts import counted

_CANDIDATES = 64  # number of candidates that fit a task's deadline if each takes the --timeout in all its turns


@dataclass(eq=False, slots=True, kw_only=True)
class TuneTask(Task):
    solution: Solution
    workload: Workload


class Tuned(Struct, frozen=True):
    """key: of the code and settings of the run. tuned: None if no candidate ran."""

    key: str
    workload: str
    tuned: Measured | None
    failed: tuple[str, ...]


class Unfinished:
    """The workloads of one solution that an unfinished run on one kind of GPU has tuned. The same command continues
    after them. They are kept in a file beside the log, which is removed when the table is written. found: workload ->
    its result; results of other code or settings are ignored."""

    def __init__(self, log: Path, solution: Solution, machine: Machine, settings: TuneSettings) -> None:
        self.path = log.with_name(f"{solution.name}.{machine.id}.{machine.protocol}.unfinished.jsonl")
        code = [(name, text) for name, text in solution.sources.items() if Path(name).name != table.NAME]
        self._key = f"{solution.digest_of(sorted(code))} {astuple(settings)}"
        self.found: dict[str, Tuned] = {}
        with suppress(FileNotFoundError):
            for line in self.path.read_bytes().splitlines():
                with suppress(msgspec.MsgspecError, UnicodeDecodeError):  # cut short by a kill
                    one = msgspec.json.decode(line, type=Tuned)
                    if one.key == self._key:
                        self.found[one.workload] = one

    def add(self, workload: str, tuned: Measured | None, failed: tuple[str, ...]) -> None:
        one = Tuned(self._key, workload, tuned, failed)
        append_line(self.path, msgspec.json.encode(one).decode())
        self.found[workload] = one

    def end(self) -> None:
        self.path.unlink(missing_ok=True)


@dataclass
class ClusterTune(TaskSource[TuneTask]):
    """results: each with the kind of GPU of its table. note: gets lines for the user. report: gets one line per
    workload. left: workloads that no host has tuned."""

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
        names = [solution.name for solution, _ in self.jobs]
        with closing(Pool(self.catalog, names, kinds, self, self.note)) as pool:
            pool.greet()
            pool.run()
        self.left = [f"{task.solution.name} {workload_label(task.workload)}" for task in pool.left]
        return [*self._written()]

    def tasks(self, hello: Hello) -> Iterable[TuneTask]:
        kind, settings = kind_of(hello.machine), asdict(self.settings)
        self._machines[kind] = hello.machine
        seconds = START_SECONDS + self.settings.timeout_seconds * _CANDIDATES
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

    def answered(self, machine: Machine, task: TuneTask, found: TaskAnswered) -> None:
        key = kind_of(machine), task.solution.name
        if found.log:
            append_line(self._found[key].log, "\n".join(found.log))
        self._before[key].add(task.workload.uuid, found.tuned, found.failed)
        self.report(f"{task.solution.name} {workload_label(task.workload)} on {machine.name}")

    def _written(self) -> Iterable[tuple[Machine, Result]]:
        """The results in the order of the workloads, not of the answers."""
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
