"""Caches of compiled code: a folder for each solution and run, into which only that solution writes.

A run begins with a copy of the folder from the latest run in which the solution passed, so compiled code need not be
made twice. A solution that crashed finds nothing of what it had written: it cannot count its tries, nor crash until it
has its best run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Collection
from contextlib import suppress
from itertools import count
from pathlib import Path

from kernelderby.measure.fence.folders import OF_A_FILE, remove_tree
from kernelderby.store.files import refusing

_MOST_BYTES, _MOST_ENTRIES = 4 << 30, 20_000  # of the copy with which a run begins
_FOR_OTHERS = 0o6002  # a program that runs as the user whoever starts it; what everybody may write
_LEAST_BYTES = 1 << 20  # of free disk space for it

_lock = threading.Lock()
_claimed: dict[tuple[int, Path, str], tuple[Path, int]] = {}  # process, base, hash -> folder, its lock


def of_run(base: Path, solution_hash: str) -> Path:
    """The folder of a solution in this run of this process. A simultaneous second run has another one. DerbyError if
    none can be made."""
    key = os.getpid(), base, solution_hash
    with _lock:
        if key not in _claimed:
            told = f"{base}: what a solution compiles cannot be cached there"
            with refusing(told, "set $XDG_CACHE_HOME to a folder that you may write to"):
                _claimed[key] = _claim(base / "built" / solution_hash, _kept(base, solution_hash))
        return _claimed[key][0]


def of_other_runs(base: Path) -> list[Path]:
    """Folders of the user's cache that hold words, caches and rows of other solutions and runs, and of commands that
    tune, build and explain; and the rows of a cluster's copies of sets. A worker may not read them: it would find there
    what it said or wrote in a run that it did not pass, and could lock rows."""
    names = ("built", "kept", "logs", "rows", "tuned", "machine_code", "resources")
    return [*(base / name for name in names), *(each / "traces" for each in base.glob("cluster/*"))]


def forget(base: Path, hashes: Collection[str]) -> None:
    """These solutions begin their next run without anything of an earlier one."""
    for each in hashes:
        remove_tree(_kept(base, each))


def end_run(passed: Collection[str]) -> None:
    """Called after the workers have ended. passed: the hashes of solutions that passed; what they leave replaces what
    they began with."""
    for key in [key for key in _claimed if key[0] == os.getpid()]:
        folder, lock = _claimed.pop(key)
        kept = _kept(key[1], key[2])
        if key[2] in passed and _can_be_copied(folder):
            with suppress(OSError):  # another run ends at the same time
                kept.parent.mkdir(parents=True, exist_ok=True)
                if kept.exists():
                    kept.rename(folder.with_suffix(".former"))
                folder.rename(kept)
            remove_tree(folder.with_suffix(".former"))
        os.close(lock)


def _can_be_copied(folder: Path) -> bool:
    """Whether the folder can be copied, and soon: holes in files and second names of a file take space only in the
    copy. Not if other users could change it or act as this one by it."""
    nbytes, number, folders = 0, 0, [str(folder)]
    while folders:
        try:
            if os.stat(folders[-1]).st_mode & _FOR_OTHERS & ~stat.S_ISGID:
                return False
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    found, number = entry.stat(follow_symlinks=False), number + 1
                    nbytes += found.st_size + OF_A_FILE
                    if nbytes > _MOST_BYTES or number > _MOST_ENTRIES:
                        return False
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif found.st_mode & _FOR_OTHERS and not entry.is_symlink():
                        return False
        except OSError:  # nested deeper than a path is long
            return False
    return True


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
        except (OSError, RecursionError):  # a compiler's files can always be copied
            remove_tree(kept)
            remove_tree(folder)
        folder.mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:  # a full disk is not the solution's fault
            probe.write(bytes(_LEAST_BYTES))
        return folder, lock
    raise AssertionError
