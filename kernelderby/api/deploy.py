"""Winners into packages that servers install."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kernelderby.catalog import Catalog
from kernelderby.deploy.contents import licences
from kernelderby.deploy.export import Exported, export_hub, export_wheel, refused
from kernelderby.deploy.twins import WrittenTwins, export_twins
from kernelderby.deploy.winners import AllWinners, winners
from kernelderby.report.answer import Answer
from kernelderby.report.deploy import exported_answer, planned_answer, twins_answer
from kernelderby.store.files import expect_writable


def wheel(
    catalog: Catalog,
    folder: Path,
    definitions: Sequence[str] = (),
    *,
    gpu: str | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> Answer[Exported]:
    """Writes a wheel of the fastest solutions on one GPU (default: the one with most rows). definitions: default all.
    told: called for each solution that nvcc builds. DerbyError: no rows, an unknown name, an unknown architecture, or a
    folder without write permission."""
    from kernelderby.measure.certify.build import library_files

    expect_writable(folder)
    with catalog.telling():
        found = _winners(catalog, definitions, gpu)
        exported = export_wheel(found, folder, partial(library_files, catalog), told, licences(catalog.root))
    lost = [f"{name}: left out of the package, since {reason}" for name, reason in exported.not_built.items()]
    beside = [f"{path}: an earlier wheel; pip takes no two at once, so name the newer one" for path in exported.beside]
    return exported_answer(exported, (*catalog.warnings, *lost, *beside))


def plan(catalog: Catalog, definitions: Sequence[str] = (), *, gpu: str | None = None) -> Answer[AllWinners]:
    """Which solutions a package would run at which shapes, and how much time its choice loses. Builds nothing.
    Otherwise as wheel()."""
    with catalog.telling():
        found = _winners(catalog, definitions, gpu)
    return planned_answer(found, catalog.warnings)


def hub(catalog: Catalog, folder: Path, definitions: Sequence[str] = (), *, gpu: str | None = None) -> Answer[Exported]:
    """Writes a repository for Hugging Face's `kernels`, without CUDA solutions. Otherwise as wheel()."""
    expect_writable(folder)
    with catalog.telling():
        exported = export_hub(_winners(catalog, definitions, gpu, refused), folder, licences(catalog.root))
    return exported_answer(exported, catalog.warnings)


def trace_apply(
    catalog: Catalog, folder: Path, definitions: Sequence[str] = (), *, gpu: str | None = None
) -> Answer[WrittenTwins]:
    """Writes a folder for FlashInfer's trace_apply. Otherwise as wheel()."""
    expect_writable(folder)
    with catalog.telling():
        written = export_twins(_winners(catalog, definitions, gpu), folder)
    return twins_answer(written, catalog.warnings)


def _winners(catalog: Catalog, definitions: Sequence[str], *chosen: Any) -> AllWinners:
    wanted = [catalog.definition(name) for name in definitions] or list(catalog.definitions.values())
    return winners(catalog, wanted, *chosen)
