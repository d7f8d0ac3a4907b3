"""The worker processes of a run: one for each solution of the present definition, and those of the next one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from kernelderby.catalog import Solution
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.wire.process import WorkerProcess
from kernelderby.measure.wire.replies import Failed
from kernelderby.measure.wire.still import standing_still
from kernelderby.measure.worker.failures import status_of
from kernelderby.rows.measurement import Status
from kernelderby.rows.row import JUDGE_WITHOUT_MEMORY

START_SECONDS = 180  # time to import torch and the solution's libraries; the timeout of a case starts after it


class Workers:
    """by_name: solution -> the process that holds it. unbuildable: solution -> why it has no process."""

    def __init__(self, root: Path, machine: Machine, timeout_seconds: float) -> None:
        self.by_name: dict[str, WorkerProcess] = {}
        self.unbuildable: dict[str, Failed] = {}
        self.beside = 1  # processes of the run on the GPU besides workers: this one, and a pacer
        self._root, self._machine, self._timeout_seconds = root, machine, timeout_seconds
        self._ahead: dict[str, WorkerProcess] = {}

    @property
    def on_gpu(self) -> int:
        """The number of the run's processes that the driver lists."""
        return len(self.by_name) + self.beside

    def start_ahead(self, solutions: Sequence[Solution]) -> None:
        """Starts the processes of the next solutions, since importing torch takes seconds of a core that compilation
        leaves idle. They stand still with the others, hold no solution, and have nothing on the GPU."""
        for name in [name for name in self._ahead if name not in {each.name for each in solutions}]:
            self._ahead.pop(name).kill()
        for solution in solutions:
            if solution.name not in self._ahead and solution.name not in self.by_name:
                worker = self._ahead[solution.name] = self._process(solution)
                worker.send("begin", START_SECONDS)

    def load(self, solutions: Sequence[Solution]) -> Iterator[tuple[Solution, WorkerProcess]]:
        """The solutions that load, each with its worker. New workers start in parallel."""
        starting = []
        for solution in solutions:
            if solution.name not in self.by_name and solution.name not in self.unbuildable:
                self._start(solution)
                starting.append(solution)
        for solution in starting:  # now each can be told its rivals
            ask_to_load(self.by_name[solution.name], solution, self._machine.protocol, self._timeout_seconds)
        for solution in starting:
            if failed := self.by_name[solution.name].receive().failed:
                self.drop(solution.name)
                self.unbuildable[solution.name] = failed
        for solution in solutions:
            if solution.name not in self.unbuildable:
                yield solution, self.by_name[solution.name]

    def anew(self, solution: Solution) -> tuple[WorkerProcess, Failed | None]:
        """Replaces a spoiled process with a fresh one. Returns why the solution does not load, if so."""
        self.drop(solution.name)
        worker = self._start(solution)
        ask_to_load(worker, solution, self._machine.protocol, self._timeout_seconds)
        return worker, worker.receive().failed

    def _start(self, solution: Solution) -> WorkerProcess:
        begun = self._ahead.pop(solution.name, None)
        if begun and (begun.receive().failed or not begun.lives()):  # it is late, or ended while it stood still
            begun.kill()
            begun = None
        self.by_name[solution.name] = worker = begun or self._process(solution)
        return worker

    def _process(self, solution: Solution) -> WorkerProcess:
        return WorkerProcess(self._root, self._machine.device, solution_hash=solution.text_hash)

    def alone(self, worker: WorkerProcess | None = None) -> AbstractContextManager[None]:
        """In this context all others stand still."""
        all_of_them = [*self.by_name.values(), *self._ahead.values()]
        return standing_still(each for each in all_of_them if each is not worker)

    def release(self) -> None:
        """Makes them release the judge's memory."""
        for worker in self.by_name.values():
            worker.send("release", self._timeout_seconds)
        for name, worker in list(self.by_name.items()):
            if worker.receive().failed:
                self.drop(name)

    def drop(self, name: str) -> None:
        worker = self.by_name.pop(name, None)
        if worker:
            worker.kill()

    def make_room(self) -> bool:
        """Ends the workers beside which a disk has filled up, with all that they have written there. Whether there were
        any."""
        found = [name for name, worker in self.by_name.items() if worker.filled() is not None]
        for name in found:
            self.drop(name)
        return bool(found)

    def end(self) -> None:
        """Ends the workers of solutions that loaded."""
        for name in list(self.by_name):
            self.drop(name)

    def end_all(self) -> None:
        self.end()
        self.start_ahead(())


def ask_to_load(worker: WorkerProcess, solution: Solution, protocol: str, timeout_seconds: float) -> None:
    """Its answer is due."""
    names = {"definition": solution.definition, "solution": solution.name}
    worker.send("load", START_SECONDS + timeout_seconds, **names, protocol=protocol, guarded=worker.rivals())


def without_memory(error: MemoryError | RuntimeError | OSError) -> Failed:
    """The end of a case for which the judge lacks memory, on a GPU or a CPU. Raises any other error again."""
    if status_of(error, Status.RAISED) is not Status.OUT_OF_MEMORY:
        raise error
    return Failed(Status.OUT_OF_MEMORY, f"{JUDGE_WITHOUT_MEMORY}: {error}")
