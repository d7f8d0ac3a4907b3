"""Caches of compiled code: a folder for each solution and run, into which nobody else writes.

A run begins with a copy of what the first run kept in which the solution passed, and that never changes again. So
compiled code need not be made twice, and a solution that crashed finds nothing of what it had written: it cannot count
how often it was tried, nor choose its best run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Collection
from contextlib import suppress
from itertools import count
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.measure.fence.folders import remove_tree
from kernelderby.store.files import reason

_MOST_BYTES, _MOST_FOLDERS = 4 << 30, 100_000  # of what a run begins with
_LEAST_BYTES = 1 << 20  # of room for it
_OF_A_NAME = 4096  # bytes that the smallest file takes

_lock = threading.Lock()
_claimed: dict[tuple[int, Path, str], tuple[Path, int]] = {}  # process, base, hash -> folder, its lock


def of_run(base: Path, solution_hash: str) -> Path:
    """The folder of a solution in this run of this process. A second run at the same time has another one. DerbyError
    where none can be made."""
    key = os.getpid(), base, solution_hash
    with _lock:
        if key not in _claimed:
            try:
                _claimed[key] = _claim(base / "built" / solution_hash, _kept(base, solution_hash))
            except OSError as error:
                told = f"{base}: what a solution compiles cannot be cached there ({reason(error)})"
                raise DerbyError(f"{told}; set $XDG_CACHE_HOME to a folder that you may write to") from None
        return _claimed[key][0]


def end_run(passed: Collection[str]) -> None:
    """Once the workers have ended. passed: the hashes of solutions that did; what they compiled is kept if nothing is
    yet."""
    for key in [key for key in _claimed if key[0] == os.getpid()]:
        folder, lock = _claimed.pop(key)
        kept = _kept(key[1], key[2])
        if key[2] in passed and not kept.exists() and _can_be_copied(folder):
            with suppress(OSError):  # another run was first
                kept.parent.mkdir(parents=True, exist_ok=True)
                folder.rename(kept)
        os.close(lock)


def _can_be_copied(folder: Path) -> bool:
    """Holes in files and second names of a file take no room until somebody copies them."""
    nbytes, folders = 0, [str(folder)]
    for _ in range(_MOST_FOLDERS):
        if not folders:
            return nbytes <= _MOST_BYTES
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    nbytes += entry.stat(follow_symlinks=False).st_size + _OF_A_NAME
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError:  # nested deeper than a path is long
            return False
        if nbytes > _MOST_BYTES:
            return False
    return False


def _kept(base: Path, solution_hash: str) -> Path:
    return base / "kept" / solution_hash


def _claim(place: Path, kept: Path) -> tuple[Path, int]:
    place.mkdir(parents=True, exist_ok=True)
    for number in count():
        lock = os.open(place / f"{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        folder = place / str(number)
        remove_tree(folder)
        try:
            if kept.is_dir():
                shutil.copytree(kept, folder, symlinks=True)
        except (OSError, RecursionError):  # what cannot be copied is nothing that a compiler made
            remove_tree(kept)
            remove_tree(folder)
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:  # a full disk is no fault of the solution that compiles there
            probe.write(bytes(_LEAST_BYTES))
        return folder, lock
    raise AssertionError
