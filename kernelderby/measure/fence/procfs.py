"""The machine's part of /proc: read-only from now on for this process and its children.

CUDA names its threads by writing to /proc/<pid>/task/<tid>/comm, and ends with error 304 where it cannot. Landlock
grants whole folders, and nobody knows the ids of processes that will come. So a fence behind which several processes
use a GPU grants /proc as a whole, and what lies there beside processes is mounted read-only first, as containers do.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection
from pathlib import Path

ROOT = Path("/proc")
# As in runc's default configuration: readonlyPaths, and of maskedPaths what can be written to.
_OF_THE_MACHINE = ("acpi", "asound", "bus", "fs", "irq", "scsi", "sys", "sysrq-trigger")
_CLONE_NEWNS = 0x20000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = 1, 1 << 5, 1 << 12, 1 << 14, 1 << 19


def close_machine() -> bool:
    """Whether none of it can be written to. Of root it needs CAP_SYS_ADMIN and a first thread; other users need
    nothing."""
    try:
        if open_to_us := _writable():
            _mount_read_only(open_to_us)
        return not _writable()
    except (OSError, AttributeError):
        return False


def _writable() -> list[Path]:
    found = [ROOT / name for name in _OF_THE_MACHINE if (ROOT / name).exists()]
    as_root = os.geteuid() == 0  # whatever a folder's permissions are: files beneath it are root's
    return [
        path for path in found if not os.statvfs(path).f_flag & os.ST_RDONLY and (as_root or os.access(path, os.W_OK))
    ]


def _mount_read_only(places: Collection[Path]) -> None:
    """In a mount namespace of our own, which still hears of what is mounted elsewhere. Without what is mounted beneath
    these places."""
    libc = ctypes.CDLL(None, use_errno=True)

    def done(result: int) -> None:
        if result:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def mount(source: bytes | None, target: bytes, flags: int) -> None:
        done(libc.mount(source, target, None, ctypes.c_ulong(flags), None))

    done(libc.unshare(_CLONE_NEWNS))
    mount(None, b"/", _MS_REC | _MS_SLAVE)
    for place in map(os.fsencode, places):
        mount(place, place, _MS_BIND)
        mount(None, place, _MS_REMOUNT | _MS_BIND | _MS_RDONLY)
