"""Landlock: from now on this process, and everything that it starts, may write only beneath a few folders, may signal
nobody else, and on request may read only some places.

Linux 5.13 and newer, x86-64 and aarch64 alike (<linux/landlock.h>, landlock(7))."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_VERSION = 1  # flag of create_ruleset: asks for the kernel's version of the interface
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38
_O_PATH = getattr(os, "O_PATH", 0)

# LANDLOCK_ACCESS_FS_*: write to files, remove files and folders, make each kind of entry
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_NEW_AND_EMPTY = 1 << 4 | 1 << 8  # remove empty folders, make files without opening them to write
_CHANGE_ENTRIES = sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE = 1 << 13, 1 << 14  # since versions 2 and 3
_OF_A_FILE = _WRITE_FILE | _TRUNCATE | _READ_FILE
_SCOPE_SIGNAL = 1 << 1  # since version 6


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def version() -> int:
    """The version of the kernel's interface; 0 without landlock."""
    try:
        return max(0, _call(_CREATE_RULESET, None, 0, _VERSION))
    except (OSError, AttributeError):
        return 0


def writes_only_beneath(
    folders: Collection[Path],
    readable: Collection[Path] | None = None,
    empty: Collection[Path] = (),
    existing: Collection[Path] = (),
) -> bool:
    """False if the kernel cannot do it; the process is then as free as before. Missing folders are left out. readable:
    further folders whose files may be read; None means all. Names of files stay visible. empty: folders in which empty
    files may be made (locks). existing: folders whose existing files may be written."""
    has = version()
    if not has:
        return False
    rights = _WRITE_FILE | _CHANGE_ENTRIES | (_REFER if has >= 2 else 0) | (_TRUNCATE if has >= 3 else 0)
    reads = 0 if readable is None else _READ_FILE
    asked = _Ruleset(rights | reads, 0, _SCOPE_SIGNAL if has >= 6 else 0)
    size = 24 if has >= 6 else 8  # an older kernel knows fewer fields
    ruleset = _call(_CREATE_RULESET, ctypes.byref(asked), size, 0)
    try:
        for granted, places in (
            *((rights | reads, folders), (reads, readable or ())),
            *((_NEW_AND_EMPTY, empty), (rights & _OF_A_FILE | reads, existing)),
        ):
            for place in places:
                _allow(ruleset, place, granted)
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            return False
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return True


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        parent = os.open(path, _O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        allowed = rights if path.is_dir() else rights & _OF_A_FILE
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(_Beneath(allowed, parent)), 0)
    finally:
        os.close(parent)


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "landlock: " + os.strerror(ctypes.get_errno()))
    return int(result)
