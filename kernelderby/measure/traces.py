"""Rows on disk: appended and synced one by one, and mended after a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from kernelderby.trace import Measurement, Status

Key = tuple[str, str, str, str]  # solution hash, workload uuid, GPU, protocol

# These may be the machine's doing (a neighbour's memory, a slow disk), so a later run tries them again.
TRIED_AGAIN = frozenset({Status.TIMED_OUT, Status.CRASHED, Status.OUT_OF_MEMORY})


def settled_keys(rows: Iterable[Measurement]) -> set[Key]:
    """The keys whose newest row stands. Rows without a hash (flashinfer-bench's own) settle nothing."""
    newest: dict[Key, Status] = {}
    for row in rows:
        if row.solution_hash:
            newest[(row.solution_hash, row.uuid, row.gpu, row.protocol)] = row.status
    return {key for key, status in newest.items() if status not in TRIED_AGAIN}


def append_row(path: Path, row: Measurement) -> None:
    """Writes one row in one call and waits until it is on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(row.to_trace(), ensure_ascii=False) + "\n").encode()
    with path.open("ab", buffering=0) as file:
        file.write(line)
        os.fsync(file.fileno())


def repair(path: Path) -> str | None:
    """Mends a file whose last line a kill cut short, so that the next row starts a line of its own.

    The cut piece is kept in <path>.damaged. Returns what was done in one line, None where nothing was.
    """
    if not path.is_file():
        return None
    data = path.read_bytes()
    kept, newline, last = data.rpartition(b"\n")
    if not last:
        return None
    try:
        json.loads(last)
    except ValueError:
        damaged = path.with_name(path.name + ".damaged")
        with damaged.open("ab") as file:  # first, so that nothing is lost if this too is cut short
            file.write(last + b"\n")
            file.flush()
            os.fsync(file.fileno())
        with path.open("rb+") as file:
            file.truncate(len(kept) + len(newline))
        return f"{path}: the last line was cut short; it was moved to {damaged.name} and its workload is measured again"
    with path.open("ab") as file:  # the row is whole, only its newline is missing
        file.write(b"\n")
    return None
