"""Code of the set, asked by one who measures nothing: it is imported in a worker behind the fences, with a limit of
time, never in the caller's process.

Definitions: for `derby pack --check`, the costs of shapes that no file lists, and fresh shapes of a race. Solutions:
the worker calls a function of a room above (`code_here`, `seen_here` ...) with the set's folder and the names that it
needs. It keeps what it compiles in a folder of its own, from call to call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

from kernelderby.catalog import Catalog, Definition, Solution, Workload
from kernelderby.errors import DerbyError
from kernelderby.measure.wire.process import WorkerProcess
from kernelderby.measure.wire.quoted import shown
from kernelderby.measure.wire.replies import CostCounted, Done, Failed, PackChecked, ShapesDrawn
from kernelderby.store.counts import counted

R = TypeVar("R", bound=Done)
_SECONDS = 900.0  # for a definition's generator and costs
_BUILD_SECONDS = 1800.0  # for all libraries of a solution: nvcc takes up to a minute for one
_FRESH = "kernelderby.measure.run.fresh:drawn_in_worker"


class FencedDefinitions(AbstractContextManager["FencedDefinitions"]):
    """What blobs.pack_blobs(check=True) asks for, of a worker that is replaced when a definition ends it. Each method:
    DerbyError where the definition's code is at fault."""

    def __init__(self, catalog: Catalog) -> None:
        self._root = catalog.root
        self._worker: WorkerProcess | None = None

    def __exit__(self, *ended: object) -> None:
        self._end()

    def changes(self, catalog: Catalog, definition: Definition, workloads: list[Workload], check: bool) -> list[str]:
        return list(self._ask(PackChecked, "pack_check", definition).changes)

    def cost(self, definition: Definition, line: dict[str, Any]) -> dict[str, Any] | None:
        """Of a line of workloads without one; None where nothing tells it."""
        return self._ask(CostCounted, "count_cost", definition, line=line).cost

    def fresh(self, definition: Definition, secret: str, count: int) -> tuple[dict[str, Any], ...]:
        """So many lines of workloads from its AXES_SPACE, each once."""
        lines = self._ask(ShapesDrawn, _FRESH, definition, secret=secret, count=count).lines
        if len(lines) != count:
            raise DerbyError(
                f"{definition.place}: AXES_SPACE: gave {counted(len(lines), 'shape')}, not {count}; mend it"
            )
        return lines

    def _ask(self, kind: type[R], command: str, definition: Definition, **arguments: Any) -> R:
        if self._worker is None:
            self._worker = WorkerProcess(self._root, "cpu", solution_hash="definitions")
        try:
            return self._worker.ask(kind, command, _SECONDS, definition=definition.name, **arguments)
        except Failed as failed:
            self._end()
            raise DerbyError(f"{definition.place}: {_ended(failed)}; mend it") from None

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker = None


class Ask(Protocol):
    """Of a worker: the answer of a function."""

    def __call__(self, kind: type[R], function: Callable[..., R], seconds: float = ..., **arguments: Any) -> R: ...


@contextmanager
def fenced(catalog: Catalog, solution: Solution) -> Iterator[Ask]:
    """Gives ask(kind, function, seconds=..., **arguments). DerbyError where the solution's code is at fault or takes
    too long. catalog: of the definitions; the solution may be of another one. Triton is there as a compiler."""
    worker = WorkerProcess(catalog.root, "cpu", True, f"kernels-{solution.text_hash}", interprets=False)

    def ask(kind: type[R], function: Callable[..., R], seconds: float = _BUILD_SECONDS, **arguments: Any) -> R:
        named = {"definition": solution.definition, "solution": solution.name, **arguments}
        try:
            return worker.ask(kind, f"{function.__module__}:{function.__name__}", seconds, **named)
        except Failed as failed:
            raise DerbyError(f"{solution.name}: {_ended(failed)}") from None

    try:
        yield ask
    finally:
        worker.kill()


def _ended(failed: Failed) -> str:
    said = shown(failed.message).partition("\n")[0]
    return f"its code was ended ({failed.status}: {said})"
