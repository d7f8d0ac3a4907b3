"""Definitions imported in a worker behind the fences, never in the caller's process: for `derby pack --check`, and for
the costs of captured shapes."""

from __future__ import annotations

from types import TracebackType
from typing import Any, TypeVar

from kernelderby.catalog import Catalog, Definition, Workload
from kernelderby.errors import DerbyError
from kernelderby.measure.wire.process import WorkerProcess
from kernelderby.measure.wire.quoted import shown
from kernelderby.measure.wire.replies import CostCounted, Done, Failed, PackChecked

R = TypeVar("R", bound=Done)
_SECONDS = 900.0  # for a definition's generator and costs


class FencedDefinitions:
    """What blobs.pack_blobs(check=True) asks for, of a worker that is replaced when a definition ends it."""

    def __init__(self, catalog: Catalog) -> None:
        self._root = catalog.root
        self._worker: WorkerProcess | None = None

    def __enter__(self) -> FencedDefinitions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def changes(self, catalog: Catalog, definition: Definition, workloads: list[Workload], check: bool) -> list[str]:
        """DerbyError where the definition's code is at fault."""
        found = self._ask(PackChecked, "pack_check", definition)
        if found.broken:
            raise DerbyError(found.broken)
        return list(found.changes)

    def cost(self, definition: Definition, line: dict[str, Any]) -> dict[str, Any]:
        """Of a line of workloads without one. DerbyError where the definition's code counts none."""
        found = self._ask(CostCounted, "count_cost", definition, line=line)
        if found.cost is None:
            raise DerbyError(f"{definition.place}: {shown(found.broken)}")
        return found.cost

    def _ask(self, kind: type[R], command: str, definition: Definition, **arguments: Any) -> R:
        if self._worker is None:
            self._worker = WorkerProcess(self._root, "cpu", solution_hash="definitions")
        try:
            return self._worker.ask(kind, command, _SECONDS, definition=definition.name, **arguments)
        except Failed as failed:
            self._end()
            said = shown(failed.message).partition("\n")[0]
            raise DerbyError(f"{definition.place}: its code was ended ({failed.status}: {said}); mend it") from None

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker = None
