"""The set as it travels to a host: definitions, workloads and solutions, without rows; known by its hash."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Collection
from pathlib import Path

from kernelderby.catalog import Catalog
from kernelderby.store.files import inside, is_inside

_FOLDERS = ("definitions", "workloads", "solutions", "blob")
_SUFFIXES = {".json", ".jsonl", ".toml", ".py", ".cu", ".cuh", ".cpp", ".h", ".safetensors"}


def packed(catalog: Catalog, solutions: Collection[str]) -> tuple[str, bytes]:
    """Hash and contents. solutions: names; of the others only what they share with these comes along."""
    others = [each for name, each in catalog.solutions.items() if name not in solutions]
    left_out = {each.folder for each in others if each.folder} | {each.json_path for each in others}
    used = {catalog.solution(name).definition for name in solutions}
    paths = []
    for folder in _FOLDERS:
        for path in sorted((catalog.root / folder).rglob("*")):
            inner = path.relative_to(catalog.root)
            is_asked = folder != "blob" or not used.isdisjoint(inner.parts)  # tensors of other operators are large
            is_asked = is_asked and path.suffix in _SUFFIXES and left_out.isdisjoint((path, *path.parents))
            if is_asked and is_inside(catalog.root, path) and path.is_file():
                paths.append(inner)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for inner in paths:  # no time goes in: the same set has the same hash
            archive.writestr(zipfile.ZipInfo(inner.as_posix()), (catalog.root / inner).read_bytes())
    data = buffer.getvalue()
    return hashlib.sha256(data).hexdigest()[:16], data


def unpack(data: bytes, folder: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist():
            path = inside(folder, name, "the set of a job")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(name))
