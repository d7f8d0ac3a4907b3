"""Sources -> the JSON that flashinfer-bench loads; a set -> another dataset. No torch: measure/ makes the blobs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from kernelderby.catalog import Catalog, Solution, Workload, published
from kernelderby.catalog.definitions import check_reference
from kernelderby.catalog.reference import is_reference
from kernelderby.catalog.same_code import stale
from kernelderby.catalog.solutions import read_folder, solution_folders
from kernelderby.catalog.templates import template_solutions, templates
from kernelderby.catalog.traces import doubled_keys
from kernelderby.catalog.workloads import shared
from kernelderby.errors import DerbyError
from kernelderby.store.fields import read_json, read_text
from kernelderby.store.files import folders_below, inside, is_inside, json_text, read_bytes, write_whole

LeftOut = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Change:
    """One file that packing or exporting wrote, or would write."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def pack(catalog_root: Path | str, check: bool = False, left_out: LeftOut | None = None) -> list[Change]:
    """Rewrites the stale JSON of definitions and solutions. With check it only lists the stale files.

    A definition's `reference` becomes the text of the .py beside it; a solution's JSON is written anew from its folder.
    If a source cannot be packed, left_out gets a line and the source is skipped; without left_out the DerbyError is
    raised. A set that contradicts itself is a DerbyError too.
    """
    root = Path(catalog_root)
    catalog = Catalog.open(root)

    def _pack_template(root: Path, folder: Path, check: bool) -> list[Change]:
        solutions = list(template_solutions(folder, catalog.definitions))
        return [change for each in solutions for change in _pack_one(root, each, folder, check)]

    jobs: list[tuple[Path, Callable[[Path, Path, bool], list[Change]]]] = [
        (path, _pack_definition)
        for folder in folders_below(root / "definitions", 1)
        for path in sorted(folder.glob("*.json"))
    ]
    jobs += [(folder, _pack_solution) for folder in solution_folders(root)]
    jobs += [(folder, _pack_template) for folder in templates(root)]
    changes = []
    for path, work in jobs:
        try:
            changes += work(root, path, check)
        except DerbyError as error:
            if left_out is None:
                raise
            left_out(str(error))
    if left_out is None:
        Catalog.open(root, strict=True).solutions  # noqa: B018 - reads everything: names, paths and op_types agree
    return changes


def problems(catalog_root: Path | str) -> list[str]:
    """A line for each broken part of a set. Every other command leaves these parts out with a warning."""
    catalog = Catalog.open(catalog_root)
    found: list[str] = []
    for name, definition in catalog.definitions.items():
        found += shared(catalog.workloads_path(name), catalog.workloads(name), definition)
        try:
            check_reference(definition)
        except DerbyError as error:
            found.append(str(error))
    found += stale(catalog.root, catalog.solutions)
    catalog.traces()
    for path in catalog.traces_files():
        found += doubled_keys(path)
    for read in (published.importance, published.times_us):
        read(catalog.root, catalog.left_out)
    return [line.removesuffix("; left out") for line in [*catalog.warnings, *found]]


def _pack_definition(root: Path, path: Path, check: bool) -> list[Change]:
    source = path.with_suffix(".py")
    if not source.is_file():
        return []
    _expect_inside(root, path, source)
    data: dict[str, Any] = read_json(path)
    reference = read_text(source)
    if data.get("reference") == reference:
        return []
    return [_write(path, {**data, "reference": reference}, f"reference is not the text of {source.name}", check)]


def _pack_solution(root: Path, folder: Path, check: bool) -> list[Change]:
    return _pack_one(root, read_folder(folder), folder, check)


def _pack_one(root: Path, solution: Solution, folder: Path, check: bool) -> list[Change]:
    """folder: of the sources."""
    _expect_inside(root, solution.json_path)
    packed = packed_solution(solution)
    if not solution.json_path.is_file():
        return [_write(solution.json_path, packed, f"is not packed from {folder.name}/", check)]
    if read_text(solution.json_path) == json_text(packed):
        return []
    return [_write(solution.json_path, packed, f"does not match {folder.name}/", check)]


def _expect_inside(root: Path, *paths: Path) -> None:
    """DerbyError if a path that is packed or copied leads outside the set."""
    for path in paths:
        if not is_inside(root, path):
            raise DerbyError(f"{path}: leads outside {root} through a symlink; put the file itself there")


def packed_solution(solution: Solution) -> dict[str, Any]:
    """The JSON of a solution that has a folder. flashinfer-bench ignores our fields beside `sources`."""
    spec: dict[str, Any] = {
        "language": solution.language,
        "target_hardware": list(solution.target_hardware),
        "entry_point": solution.entry_point,
        "dependencies": list(solution.dependencies),
        "destination_passing_style": solution.destination_passing_style,
    }
    if solution.binding is not None:
        spec["binding"] = solution.binding
    own: dict[str, Any] = {"setup": solution.setup} if solution.setup else {}
    if solution.in_place:
        own["in_place"] = solution.in_place
    if solution.aliases:
        own["aliases"] = list(solution.aliases)
    return {
        "name": solution.name,
        "definition": solution.definition,
        "author": solution.author,
        "description": solution.description,
        "spec": spec,
        "sources": [{"path": path, "content": content} for path, content in solution.sources.items()],
        **own,
        "requires": _without_none(asdict(solution.requires)),
        "stages": [_without_none(asdict(stage)) for stage in solution.stages],
    }


def _without_none(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if value is not None}


def _write(path: Path, data: dict[str, Any], reason: str, check: bool) -> Change:
    if not check:
        write_whole(path, json_text(data))
    return Change(path, reason)


def export(root: Path | str, destination: Path | str) -> list[Change]:
    """Copies definitions, workloads, solutions and their blobs into another dataset, and deletes nothing there. A
    definition of the same name in the destination stays as it is, and so do its workloads if it has any. DerbyError if
    the destination does not exist or is not a dataset, or if a solution's name belongs to another definition or author
    there.
    """
    catalog, destination = Catalog.open(root, strict=True), Path(destination)
    if not destination.is_dir():
        raise DerbyError(f"{destination}: does not exist; give the folder of a dataset ($FIB_DATASET_PATH)")
    if not any((destination / part).is_dir() for part in ("definitions", "solutions", "workloads")):
        raise DerbyError(
            f"{destination}: has no definitions/, solutions/ or workloads/, so it is no dataset; "
            "make definitions/ there or give another folder"
        )
    if os.path.realpath(destination) == os.path.realpath(catalog.root):
        raise DerbyError(f"{destination}: is the set itself; give another dataset's folder")
    unpacked = pack(root, check=True)
    if unpacked:
        raise DerbyError(f"{unpacked[0]}; run derby pack first")
    files = [*_definition_files(catalog, destination), *_solution_files(catalog, destination)]  # all errors come here
    return [change for path, reason in files if (change := _copy(catalog.root, destination, path, reason))]


def _definition_files(catalog: Catalog, destination: Path) -> Iterator[tuple[Path, str]]:
    """The files to copy, each with its kind."""
    definitions = _stems(destination, "definitions", ".json")
    workloads = _stems(destination, "workloads", ".jsonl")
    for name, definition in catalog.definitions.items():
        if name not in definitions:
            yield definition.path, "definition"
        path = catalog.workloads_path(name)
        if name not in workloads and path.is_file():
            for workload in catalog.workloads(name):
                for blob in _blob_paths(catalog.root, workload):
                    if not blob.is_file():
                        raise DerbyError(f"{blob}: does not exist; run derby pack first")
                    yield blob, "inputs of a workload"
            yield path, "workloads"


def _blob_paths(root: Path, workload: Workload) -> list[Path]:
    """The safetensors files that a workload's inputs name, each once."""
    where = f"workload {workload.uuid}"
    return sorted(
        {
            inside(root, spec["path"], f"{where}: inputs.{name}.path")
            for name, spec in workload.inputs.items()
            if spec["type"] == "safetensors"
        }
    )


def _solution_files(catalog: Catalog, destination: Path) -> Iterator[tuple[Path, str]]:
    there = _stems(destination, "solutions", ".json")
    for solution in catalog.solutions.values():
        if is_reference(solution, catalog.definitions):
            continue
        place = solution.json_path.relative_to(catalog.root)
        others = [path for path in there.get(solution.name, []) if path != destination / place]
        if others:
            raise DerbyError(
                f"{others[0]}: a solution of the name {solution.name!r} is there already; rename one "
                "(flashinfer-bench wants names unique in a dataset)"
            )
        yield solution.json_path, "solution"


def _stems(destination: Path, part: str, suffix: str) -> dict[str, list[Path]]:
    """File name without suffix -> its path, for one part of a dataset. flashinfer-bench uses the file name as key
    too."""
    stems: dict[str, list[Path]] = {}
    for path in sorted((destination / part).rglob(f"*{suffix}")):
        stems.setdefault(path.stem, []).append(path)
    return stems


def _copy(root: Path, destination: Path, path: Path, reason: str) -> Change | None:
    """Copies a file to the same place in the destination, unless the same bytes are already there."""
    _expect_inside(root, path)
    target = destination / path.relative_to(root)
    _expect_inside(destination, target)
    content = read_bytes(path)
    if target.is_file() and target.stat().st_size == len(content) and read_bytes(target) == content:
        return None
    write_whole(target, content)
    return Change(target, reason)


def pack_one(root: Path, folder: Path) -> Change | None:
    """The JSON of one solution's folder."""
    return next(iter(_pack_solution(root, folder, False)), None)
