"""Rows on disk: appended one by one under a lock, repaired after a kill, and shared by the runs of several GPUs."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from kernelderby.catalog import Solution
from kernelderby.errors import DerbyError
from kernelderby.measure.fence import marks, processes
from kernelderby.rows.measurement import Measurement, Status, newest
from kernelderby.store.appended import CLAIMS, append_line, expect_writable, lock_bytes, mend_last_line, move_aside
from kernelderby.store.files import read_bytes

RowKey = tuple[str, str, str, str]  # solution, workload uuid, GPU, protocol

# The machine may cause these (a neighbour's memory, a slow disk), so a later run tries them again. After this number in
# succession for a key they count.
TRIED_AGAIN = frozenset({Status.TIMED_OUT, Status.CRASHED, Status.OUT_OF_MEMORY})
TRIES = 3

_ENDED_SECONDS = 5  # time for a killed process to release its files


def settled_keys(rows: Iterable[Measurement], solutions: Iterable[Solution]) -> set[RowKey]:
    """The keys of these solutions whose newest row of the present code is final, or that were tried often enough. Rows
    without a hash (flashinfer-bench's) settle nothing."""
    return {key for key, tries in tries_of(rows, solutions).items() if tries is None or tries >= TRIES}


def tries_of(rows: Iterable[Measurement], solutions: Iterable[Solution]) -> dict[RowKey, int | None]:
    """For each key with a row of the present code: the number of successive tries in its newest row, None if that row
    is final. In former rows a case for which the judge had no memory was no try."""
    known = {solution.name: solution for solution in solutions}
    found = newest(
        (
            row
            for row in rows
            if row.solution_hash and row.solution in known and known[row.solution].has_code(row.solution_hash)
        ),
        lambda row: (row.solution, row.uuid, row.gpu, row.protocol),
    )
    return {key: _tries(row) if row.status in TRIED_AGAIN else None for key, row in found.items()}


def _tries(row: Measurement) -> int:
    given = row.environment.get("tries", 0 if row.is_unjudged else 1)
    return given if isinstance(given, int) else 1


def make_ready(path: Path, told: Callable[[str], None]) -> None:
    """Call it before any measurement. Moves an incomplete last line aside, with a note. DerbyError if no row could be
    written."""
    expect_writable(path)
    if note := mend_last_line(path):
        told(note)


def append_row(path: Path, row: Measurement) -> str:
    """Writes one row and waits until it is on the disk, whole, or DerbyError. Returns its line."""
    line = line_of(row.to_trace())
    append_line(path, line, partial(_end_holders, path))
    return line


def expect_readable(row: Measurement) -> None:
    """DerbyError if readers would leave the row out: then its solution would be measured again without end."""
    Measurement.from_trace(json.loads(line_of(row.to_trace())))


def line_of(trace: dict[str, Any]) -> str:
    line = json.dumps(trace, ensure_ascii=False, allow_nan=False)
    return line.encode("utf-8", "replace").decode()  # a message may hold half a surrogate pair


def last_line(path: Path) -> int:
    """The number of the last line; 0 without a file."""
    return read_bytes(path).count(b"\n") if path.is_file() else 0


def set_aside_foreign(path: Path, own_bytes: int) -> str | None:
    """Moves everything after the bytes that the run knows to <path>.foreign: rows that no run wrote. Returns one line
    about it, None if there was nothing. A file that became shorter stays as it is."""
    if not path.is_file() or path.stat().st_size <= own_bytes:
        return None
    move_aside(path, own_bytes, path.with_name(path.name + ".foreign"), partial(_end_holders, path))
    return f"{path}: lines that no run wrote were moved to {path.name}.foreign"


def _end_holders(path: Path) -> bool:
    """Ends the processes that this run has started and that have the file open, with their workers, and waits for them:
    who may read a file may lock it, and has others ready that lock it next. Returns whether there were any. Runs on
    other GPUs are not touched."""
    file = path.stat()
    holding = [pid for pid in processes.descendants(os.getpid()) if processes.has_open(pid, file)]
    for number in {marks.of(pid) for pid in holding} - {0, marks.of(os.getpid())}:
        marks.end(number)
    for pid in holding:
        processes.end(pid)
    until = time.monotonic() + _ENDED_SECONDS
    while any(processes.has_open(pid, file) for pid in holding) and time.monotonic() < until:
        time.sleep(0.01)
    return bool(holding)


@contextmanager
def claim(path: Path, uuid: str) -> Iterator[bool]:
    """Claims that workload for this run. False while another run of the machine measures it, on a second GPU of the
    kind, whose rows go into the same file. The claim ends with the process, in any case.

    It is a lock on one byte far behind the end of the file; the workload determines the byte.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise DerbyError(f"{path}: cannot be written ({error.strerror}); mend its permissions") from None
    try:
        place = CLAIMS + int.from_bytes(hashlib.sha256(uuid.encode()).digest()[:5], "big")
        while not (is_ours := lock_bytes(descriptor, place, 1)) and _end_holders(path):
            continue
        yield is_ours
    finally:
        os.close(descriptor)
