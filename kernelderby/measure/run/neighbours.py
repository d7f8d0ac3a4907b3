"""Other runs of this machine that write into the same traces, for example on a second GPU of the kind, and commands
that add rows to them.

Each of them locks the byte of its process id in one file, and so shows that it lives. Processes that a run has started,
such as solutions, do not count as runs. A row that appears while no other run lives was written by none.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import threading
import time
from pathlib import Path

from kernelderby.measure.fence import processes
from kernelderby.store.appended import lock_file, lock_folder

_LOOK_SECONDS = 0.5
_LEAST_SECONDS = 2 * _LOOK_SECONDS  # how long each is there: every other one then sees it
_GRACE_SECONDS = 10  # on a busy machine looks are late
_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux


class Neighbours:
    """seen_at: time.monotonic() when another run was last seen; 0 if none was."""

    def __init__(self, root: Path) -> None:
        name = hashlib.sha256(os.path.realpath(root).encode()).hexdigest()[:16]
        self._path = lock_folder() / f"rows-{name}.lock"
        self._ended = threading.Event()
        self.seen_at = 0.0

    def __enter__(self) -> Neighbours:
        self._descriptor = lock_file(self._path)
        fcntl.fcntl(self._descriptor, fcntl.F_SETLK, struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, os.getpid(), 1, 0))
        self._began = time.monotonic()
        self.look()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        time.sleep(max(0.0, self._began + _LEAST_SECONDS - time.monotonic()))
        self._ended.set()
        self._thread.join()
        os.close(self._descriptor)

    def lived_since(self, moment: float) -> bool:
        """Whether another run may have written a row after this time.monotonic(). A run that ended between two looks
        was seen at the earlier one."""
        self.look()
        return self.seen_at > 0 and self.seen_at >= moment - _GRACE_SECONDS

    def look(self) -> set[int]:
        """Process ids of the other runs."""
        found, start = set(), 0
        while True:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, 0, 0)
            kind, _, at, _, process = struct.unpack(_FLOCK, fcntl.fcntl(self._descriptor, fcntl.F_GETLK, asked))
            if kind == fcntl.F_UNLCK:
                break
            if process > 0:  # a lock without a process belongs to no run
                found.add(process)
            start = at + 1
        found = found.difference(processes.descendants(os.getpid())) if found else found
        if found:
            self.seen_at = time.monotonic()
        return found

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            self.look()
