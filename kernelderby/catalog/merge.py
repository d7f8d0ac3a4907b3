"""Joins rows of machines that never met in one set. The same call again, or with the folders in another order, changes
nothing.

Every row is kept once. The set's rows keep their order, and new rows are inserted by their time, because in one file
the last row of a solution on a workload counts. Two rows contradict each other if they agree in session, moment,
solution, workload, GPU, protocol and code, but differ in a value. Then the set's row stays; of two new rows the one
with the smaller hash stays. The other row goes to <file>.conflicts, which nobody reads as rows.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from kernelderby.errors import DerbyError
from kernelderby.rows.measurement import Measurement
from kernelderby.rows.row import Row
from kernelderby.store.appended import append_line, replaced_under_lock
from kernelderby.store.counts import counted
from kernelderby.store.fields import lines_of
from kernelderby.store.files import files_under

Identity = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class MergedFile:
    """path: the file in the set. known: number of source rows that it already had. conflicts: number of rows that were
    set aside."""

    path: Path
    added: int
    known: int
    conflicts: int


@dataclass(frozen=True, slots=True)
class MergeResult:
    files: tuple[MergedFile, ...]
    warnings: tuple[str, ...]


class _SourceLine(NamedTuple):
    moment: datetime
    digest: bytes
    identity: Identity | None  # None if nothing identifies the row
    text: bytes


def merge(root: Path, sources: Sequence[Path]) -> MergeResult:
    """Adds the rows of the sources (trace sets or their traces folders) to the set at root. DerbyError: a source has no
    rows, another run writes a file, or a file cannot be written."""
    warnings: list[str] = []
    found: dict[Path, list[Path]] = {}
    for source in sources:
        folder = source / "traces" if (source / "traces").is_dir() else source.resolve()
        paths = files_under(folder, ".jsonl", warnings.append) if folder.is_dir() else []
        if not paths:
            raise DerbyError(f"{source}: has no traces; name a trace set, or the folder of its traces")
        if os.path.realpath(folder) == os.path.realpath(root / "traces"):
            raise DerbyError(f"{source}: is the set itself; name others, and the set with --root")
        for path in paths:
            inner = path.relative_to(folder)
            if folder == source.resolve() and len(inner.parts) > 3:  # a folder above sets: nobody means all of them
                raise DerbyError(f"{path}: is not at <gpu>/<op_type>/<operator>.jsonl of {folder}; name a trace set")
            found.setdefault(inner, []).append(path)
    files = [_merged(root / "traces" / inner, paths, warnings) for inner, paths in sorted(found.items())]
    return MergeResult(tuple(files), tuple(warnings))


def _merged(target: Path, sources: Iterable[Path], warnings: list[str]) -> MergedFile:
    with replaced_under_lock(target) as replace:
        own = [*_read(target, None)] if target.is_file() else []
        digests = {line.digest for line in own}
        identities = {line.identity for line in own if line.identity}
        known, added, conflicts = 0, list[_SourceLine](), list[_SourceLine]()
        for line in sorted((each for path in sources for each in _read(path, warnings)), key=lambda each: each[:2]):
            if line.digest in digests:
                known += 1
                continue
            (conflicts if line.identity in identities else added).append(line)
            digests.add(line.digest)
            if line.identity:
                identities.add(line.identity)
        if added:
            replace(_in_order(own, added))
    aside = target.with_name(target.name + ".conflicts")
    before = set(aside.read_bytes().splitlines()) if aside.is_file() else set()
    fresh = [line for line in conflicts if line.text not in before]
    for line in fresh:
        append_line(aside, line.text.decode())
    return MergedFile(target, len(added), known + len(conflicts) - len(fresh), len(fresh))


def _read(path: Path, warnings: list[str] | None) -> Iterator[_SourceLine]:
    """warnings: gets a line for each source line that is not a row; such lines are left out. In the set's own file
    (None) they stay as they are."""
    decode, broken = msgspec.json.Decoder(Row).decode, list[int]()
    moment = datetime.min
    for number, text, _ in lines_of(path):
        raw = bytes(text)
        if not raw.strip():
            continue
        try:
            row = Measurement.from_row(decode(raw), f"{path}:{number}", is_known=True)
            moment, identity = row.moment.replace(tzinfo=None), _identity(row)
            digest = _digest(msgspec.json.encode(msgspec.json.decode(raw), order="sorted"))
        except (ValueError, RecursionError, DerbyError):
            if warnings is not None:
                broken.append(number)
                continue
            identity, digest = None, _digest(raw)
        yield _SourceLine(moment, digest, identity, raw)
    if broken and warnings is not None:
        more = f", and {counted(len(broken) - 1, 'other line')} of it" if broken[1:] else ""
        warnings.append(f"{path}:{broken[0]}: is no row{more}; left out")


def _identity(row: Measurement) -> Identity | None:
    if row.session is None:
        return None
    return row.session, row.timestamp, row.solution, row.uuid, row.gpu, row.protocol, row.solution_hash


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


def _in_order(own: Sequence[_SourceLine], added: Sequence[_SourceLine]) -> Iterator[bytes]:
    """added: by moment."""
    place, latest = 0, datetime.min
    for line in own:
        latest = max(latest, line.moment)
        while place < len(added) and added[place].moment < latest:
            yield added[place].text
            place += 1
        yield line.text
    for line in added[place:]:
        yield line.text
