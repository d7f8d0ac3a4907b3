"""Makes the machine's part of /proc read-only for this process and its children.

CUDA names its threads by writing to /proc/<pid>/task/<tid>/comm, and fails with error 304 if it cannot. Landlock grants
whole folders, and the ids of later processes are unknown. So a fence for several processes on a GPU grants /proc as a
whole; everything there except processes is mounted read-only before, as in containers.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection
from pathlib import Path

ROOT = Path("/proc")
# From runc's default configuration: readonlyPaths, and the writable ones of maskedPaths.
_OF_THE_MACHINE = ("acpi", "asound", "bus", "fs", "irq", "scsi", "sys", "sysrq-trigger")
_CLONE_NEWNS = 0x20000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = 1, 1 << 5, 1 << 12, 1 << 14, 1 << 19


def close_machine() -> bool:
    """Whether all of it is now read-only. Root needs CAP_SYS_ADMIN and must call it in the first thread; other users
    need nothing."""
    try:
        if open_to_us := _writable():
            _mount_read_only(open_to_us)
        return not _writable()
    except (OSError, AttributeError):
        return False


def _writable() -> list[Path]:
    found = [ROOT / name for name in _OF_THE_MACHINE if (ROOT / name).exists()]
    as_root = os.geteuid() == 0  # the folder's permissions do not matter: the files beneath belong to root
    return [
        path for path in found if not os.statvfs(path).f_flag & os.ST_RDONLY and (as_root or os.access(path, os.W_OK))
    ]


def _mount_read_only(places: Collection[Path]) -> None:
    """Mounts in our own mount namespace, which still receives mounts from elsewhere. Mounts beneath these places are
    not included."""
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
