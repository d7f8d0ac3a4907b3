"""`derby pack --check`: definitions are imported in a worker behind the fences, never in the caller's process."""

from __future__ import annotations

from types import TracebackType

from kernelderby.catalog import Catalog, Definition, Workload
from kernelderby.errors import DerbyError
from kernelderby.measure.wire.process import WorkerProcess
from kernelderby.measure.wire.quoted import shown
from kernelderby.measure.wire.replies import Failed, PackChecked

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
        if self._worker is None:
            self._worker = WorkerProcess(self._root, "cpu", solution_hash="definitions")
        try:
            found = self._worker.ask(PackChecked, "pack_check", _SECONDS, definition=definition.name)
        except Failed as failed:
            self._end()
            said = shown(failed.message).partition("\n")[0]
            raise DerbyError(f"{definition.place}: its code was ended ({failed.status}: {said}); mend it") from None
        if found.broken:
            raise DerbyError(found.broken)
        return list(found.changes)

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker = None
