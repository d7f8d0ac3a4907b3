"""The version of compiled libraries that lie somewhere without metadata, by the build ids in their files."""

from __future__ import annotations

import functools
import hashlib
import struct
from pathlib import Path

from kernelderby.store.fields import read_toml

_KNOWN = Path(__file__).with_name("builds.toml")
_HEADER, _PROGRAM, _NOTE = "<32xQ14x2H", "<I4xQ16xQ16x", "<3I"  # of ELF64: where and how many, type place size, lengths
_IS_NOTE, _IS_BUILD_ID = 4, 3


def version_of_builds(folder: Path) -> str | None:
    """The version that the libraries (*.so) under the folder are of; where they are of several, "0.25.1/0.33.0"; where
    one is not known, "build-" and eight digits that tell these files from others. None where no file has a build id."""
    found = [build for path in sorted(folder.rglob("*.so")) if (build := build_id(path))]
    if not found:
        return None
    versions = {_versions().get(build) for build in found}
    if None in versions:
        return f"build-{hashlib.sha256(' '.join(found).encode()).hexdigest()[:8]}"
    return "/".join(sorted(filter(None, versions)))


def build_id(path: Path) -> str | None:
    """The GNU build id of an ELF file in hexadecimal; None without one, and for what is no 64-bit little-endian ELF."""
    with path.open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
            return None
        place, entry, count = struct.unpack_from(_HEADER, header)
        file.seek(place)
        table = file.read(entry * count)
        for at in range(0, len(table) - struct.calcsize(_PROGRAM) + 1, entry or 1):
            kind, start, size = struct.unpack_from(_PROGRAM, table, at)
            if kind == _IS_NOTE:
                file.seek(start)
                if found := _build_id_of(file.read(size)):
                    return found
    return None


def _build_id_of(notes: bytes) -> str | None:
    at = 0
    while at + struct.calcsize(_NOTE) <= len(notes):
        name_size, size, kind = struct.unpack_from(_NOTE, notes, at)
        name = at + struct.calcsize(_NOTE)
        value = name + _padded(name_size)
        if kind == _IS_BUILD_ID and notes[name : name + name_size] == b"GNU\0":
            return notes[value : value + size].hex()
        at = value + _padded(size)
    return None


def _padded(size: int) -> int:
    return -(-size // 4) * 4


@functools.cache
def _versions() -> dict[str, str]:
    known = read_toml(_KNOWN, dict[str, dict[str, str]])
    return {build: library.split()[1] for library, files in known.items() for build in files.values()}
