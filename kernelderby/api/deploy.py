"""Winners into packages that servers install."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kernelderby.catalog import Catalog
from kernelderby.deploy.export import Exported, export_wheel
from kernelderby.deploy.winners import winners
from kernelderby.report.answer import Answer
from kernelderby.report.deploy import exported_answer


def wheel(
    catalog: Catalog,
    folder: Path,
    definitions: Sequence[str] = (),
    *,
    gpu: str | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> Answer[Exported]:
    """Writes a wheel of the fastest solutions on one GPU (default: the one with most rows). definitions: default all.
    told: of each solution that nvcc builds. DerbyError: no rows, an unknown name, no architecture known."""
    with catalog.telling():
        wanted = [catalog.definition(name) for name in definitions] or list(catalog.definitions.values())
        exported = export_wheel(winners(catalog, wanted, gpu), folder, told)
    lost = [f"{name}: left out of the package, since {reason}" for name, reason in exported.not_built.items()]
    return exported_answer(exported, (*catalog.warnings, *lost))
