"""Winners into packages that servers install."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from kernelderby.catalog import Catalog, Definition
from kernelderby.deploy.export import Exported, export_wheel
from kernelderby.deploy.hub import export_hub
from kernelderby.deploy.twins import WrittenTwins, export_twins
from kernelderby.deploy.winners import AllWinners, winners
from kernelderby.report.answer import Answer
from kernelderby.report.deploy import exported_answer, planned_answer, twins_answer


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
    from kernelderby.measure.certify.libraries import library_files

    with catalog.telling():
        found = winners(catalog, _wanted(catalog, definitions), gpu)
        exported = export_wheel(found, folder, partial(library_files, catalog), told)
    lost = [f"{name}: left out of the package, since {reason}" for name, reason in exported.not_built.items()]
    return exported_answer(exported, (*catalog.warnings, *lost))


def plan(catalog: Catalog, definitions: Sequence[str] = (), *, gpu: str | None = None) -> Answer[AllWinners]:
    """What a package would run at which shapes, and what its choice loses; nothing is built. Otherwise as wheel()."""
    with catalog.telling():
        found = winners(catalog, _wanted(catalog, definitions), gpu)
    return planned_answer(found, catalog.warnings)


def hub(catalog: Catalog, folder: Path, definitions: Sequence[str] = (), *, gpu: str | None = None) -> Answer[Exported]:
    """Writes a repository for Hugging Face's `kernels`, without CUDA solutions. Otherwise as wheel()."""
    with catalog.telling():
        exported = export_hub(winners(catalog, _wanted(catalog, definitions), gpu), folder)
    return exported_answer(exported, catalog.warnings)


def trace_apply(
    catalog: Catalog, folder: Path, definitions: Sequence[str] = (), *, gpu: str | None = None
) -> Answer[WrittenTwins]:
    """Writes a folder for FlashInfer's trace_apply. Otherwise as wheel()."""
    with catalog.telling():
        written = export_twins(winners(catalog, _wanted(catalog, definitions), gpu), folder)
    return twins_answer(written, catalog.warnings)


def _wanted(catalog: Catalog, definitions: Sequence[str]) -> list[Definition]:
    return [catalog.definition(name) for name in definitions] or list(catalog.definitions.values())
