"""Files that grow by whole rows, and locks against other processes.

A row is appended under a lock on the file itself, and removed again if it was not written completely.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.store.files import UNCHANGED, reason, refusing, remove_unfinished, temporary, write_all

LOCK_FOLDER = Path("/tmp/kernelderby-locks")  # fixed: with $TMPDIR two shells would use two folders
CLAIMS = 1 << 48  # no content lies beyond this byte: locks there are claims, see measure/run/rows.py
_LOCK_SECONDS = 60  # a row takes milliseconds; a process that holds a traces file longer hangs
_PROBE_BYTES = 1 << 20  # more than a row takes
_MAKE_ROOM = "make room or mend its permissions"


Freed = Callable[[], object]  # called as long as somebody else holds a file


def append_line(path: Path, line: str, freed: Freed = lambda: None) -> str | None:
    """Appends one line and waits until it is on the disk. DerbyError if it was not written completely; then the file is
    unchanged.

    If a killed writer cut the last line short, that line is moved aside first (see mend_last_line), and the return
    value says so.
    """
    data = line.encode() + b"\n"
    with _locked(path, create=True, freed=freed) as descriptor:
        note = _mend(descriptor, path)
        size = os.fstat(descriptor).st_size
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        except BaseException as error:
            with suppress(OSError):
                os.ftruncate(descriptor, size)
            if isinstance(error, OSError):
                raise DerbyError(
                    f"{path}: a row could not be appended ({reason(error)}); the rows before it are "
                    "whole; make room and run again"
                ) from None
            raise
    return note


def mend_last_line(path: Path) -> str | None:
    """Moves a last line that a kill cut short to <path>.damaged, so that the next row starts a new line. Rows that
    another writer appends meanwhile are safe, because both hold the file's lock. Returns one line about the mend, None
    if there was nothing to mend."""
    if not path.is_file():
        return None
    with _locked(path, create=False) as descriptor:
        return _mend(descriptor, path)


@contextmanager
def replaced_under_lock(path: Path) -> Iterator[Callable[[Iterable[bytes]], None]]:
    """Gives replace(lines), which replaces the whole file. No process appends meanwhile. DerbyError while a run
    measures into it (see CLAIMS)."""
    with _locked(path, create=True) as descriptor:
        if not lock_bytes(descriptor, CLAIMS, 1 << 41):
            raise DerbyError(f"{path}: a run measures into it; wait for its end")
        was_empty = not os.fstat(descriptor).st_size

        def replace(lines: Iterable[bytes]) -> None:
            with refusing(f"{path}: cannot be written", UNCHANGED):
                with temporary(path) as (unfinished, new), open(new, "wb", closefd=False) as file:
                    for line in lines:
                        file.write(line)
                        file.write(b"\n")
                    file.flush()
                    os.fsync(new)
                    os.fchmod(new, stat.S_IMODE(os.fstat(descriptor).st_mode))
                    os.replace(unfinished, path)

        try:
            yield replace
        finally:
            if was_empty and not path.stat().st_size:
                path.unlink()


def move_aside(path: Path, start: int, aside: Path, freed: Freed = lambda: None) -> None:
    """Moves the content from byte `start` on to the end of another file."""
    with _locked(path, create=False, freed=freed) as descriptor, refusing(f"{path}: cannot be cut", _MAKE_ROOM):
        _move(descriptor, start, aside)


def _move(descriptor: int, start: int, aside: Path, end: bytes = b"") -> None:
    size = os.fstat(descriptor).st_size
    with aside.open("ab") as file:  # first, so that nothing is lost if this too is cut short
        write_all(file.fileno(), os.pread(descriptor, size - start, start) + end)
        os.fsync(file.fileno())
    os.ftruncate(descriptor, start)
    os.fsync(descriptor)


def _mend(descriptor: int, path: Path) -> str | None:
    """mend_last_line() for a locked file."""
    with refusing(f"{path}: its last line is cut short and cannot be mended", _MAKE_ROOM):
        last, start = _last_line(descriptor)
        if not last:
            return None
        try:
            json.loads(last)
        except (ValueError, RecursionError):
            damaged = path.with_name(path.name + ".damaged")
            _move(descriptor, start, damaged, end=b"\n")
            return (
                f"{path}: the last line was cut short; it was moved to {damaged.name} and its workload is measured "
                "again"
            )
        write_all(descriptor, b"\n")  # the row is whole, only its newline is missing
    return None


def _last_line(descriptor: int) -> tuple[bytes, int]:
    """The text after the last newline, and its first byte."""
    size, piece, found = os.fstat(descriptor).st_size, 1 << 16, b""
    while size > len(found):
        start = max(0, size - len(found) - piece)
        found = os.pread(descriptor, size - len(found) - start, start) + found
        if b"\n" in found:
            break
    last = found.rpartition(b"\n")[2]
    return last, size - len(last)


@contextmanager
def _locked(path: Path, create: bool, freed: Freed = lambda: None) -> Iterator[int]:
    """A descriptor of the file, locked against other writers. Other writers replace the file only under this lock."""
    while True:
        with _opened_and_locked(path, create, freed) as descriptor:
            if os.fstat(descriptor).st_nlink:  # otherwise another process has replaced it meanwhile
                yield descriptor
                return


@contextmanager
def _opened_and_locked(path: Path, create: bool, freed: Freed) -> Iterator[int]:
    flags = os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | (os.O_CREAT if create else 0)
    with refusing(f"{path}: cannot be written", "mend its permissions, or give another --root"):
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, flags, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DerbyError(f"{path}: cannot be written (it is no regular file); remove it")
        _wait_for(descriptor, path, freed)
        yield descriptor
    finally:
        os.close(descriptor)


def _wait_for(descriptor: int, path: Path, freed: Freed) -> None:
    until = time.monotonic() + _LOCK_SECONDS
    while not lock_bytes(descriptor, 0, CLAIMS):
        freed()
        if time.monotonic() > until:
            raise DerbyError(f"{path}: another process has held it for {_LOCK_SECONDS} s; end that one")
        time.sleep(0.005)


def lock_bytes(descriptor: int, start: int, length: int) -> bool:
    """Locks a range of an open file against other writers, until the descriptor is closed. False while another writer
    holds a part of it. The lock belongs to the open file, not to the process, so closing another descriptor of the file
    does not end it."""
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)  # struct flock of 64-bit Linux
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise DerbyError(f"the traces cannot be locked ({reason(error)}); keep the set on a disk with locks") from None
    return True


def expect_writable(path: Path) -> None:
    """DerbyError if rows cannot be appended: a read-only or full disk, no permission, no regular file. Called before
    measuring, so that no measured work is lost."""
    with refusing(f"{path}: no rows can be written there", _MAKE_ROOM):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            with _locked(path, create=False):
                pass
        remove_unfinished(path)
        with temporary(path) as (_, descriptor):
            write_all(descriptor, bytes(_PROBE_BYTES))
            os.fsync(descriptor)


@contextmanager
def exclusive_lock(name: str, held: str) -> Iterator[None]:
    """A lock that one process of the machine holds at a time, for any user and any $TMPDIR. It ends with the process.
    name: part of a file name. held: the text of the DerbyError if another process holds it."""
    path = lock_folder() / f"{name}.lock"
    descriptor = lock_file(path)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise DerbyError(f"{path}: is no regular file, so it cannot be a lock; remove it")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DerbyError(held) from None
        yield
    finally:
        os.close(descriptor)


def lock_folder() -> Path:
    """The folder in which every user of the machine makes locks, as in /tmp. A command makes it before its fence is up:
    behind the fence it may read only older files of /tmp, if a home lies there."""
    with suppress(FileExistsError):
        LOCK_FOLDER.mkdir()
    if LOCK_FOLDER.is_symlink() or not LOCK_FOLDER.is_dir():
        raise DerbyError(f"{LOCK_FOLDER}: is no folder, so no lock can be made there; remove it")
    now = LOCK_FOLDER.stat()
    if now.st_uid == os.geteuid() and stat.S_IMODE(now.st_mode) != 0o1777:
        LOCK_FOLDER.chmod(0o1777)  # whatever the umask, and where a process was killed before this
    return LOCK_FOLDER


def lock_file(path: Path) -> int:
    """Opens the file for reading, and makes it if it is missing. Reading is enough for a lock, and another user's file
    allows no more. Nothing is written into it, and symlinks are not followed."""
    with refusing(f"{path}: cannot be opened as a lock", f"remove it, or mend the permissions of {path.parent}"):
        with suppress(FileExistsError):
            made = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o644)  # nothing goes in
            try:
                os.fchmod(made, 0o644)  # whatever the umask: the others have to open it
            finally:
                os.close(made)
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
