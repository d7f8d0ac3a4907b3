"""Drops root's powers beyond its own files in a worker, so that it cannot set a GPU's clocks, power or mode (the driver
asks for CAP_SYS_ADMIN), signal other users' processes or raise its limits (<linux/capability.h>)."""

from __future__ import annotations

import ctypes
import os

# Kept: reading and writing files of other users (landlock restricts the places), and locked memory, which drivers pin.
_KEPT = {"CHOWN": 0, "DAC_OVERRIDE": 1, "DAC_READ_SEARCH": 2, "FOWNER": 3, "FSETID": 4, "IPC_LOCK": 14}
_PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 24, 47, 4
_LAST = 63
_VERSION = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("process", ctypes.c_int)]


class _Half(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


def give_up() -> bool:
    """For this process and everything that it starts. Processes of other users than root have nothing to give up. False
    if it fails."""
    if os.geteuid() != 0:
        return True
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        for number in set(range(_LAST + 1)) - set(_KEPT.values()):
            libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # fails for numbers unknown to this kernel
        libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
        header, halves = _Header(_VERSION, 0), (_Half * 2)()
        if libc.capget(ctypes.byref(header), halves):
            return False
        kept = sum(1 << number for number in _KEPT.values())
        for half, mask in zip(halves, (kept, 0), strict=True):
            half.effective &= mask
            half.permitted &= mask
            half.inheritable = 0
        return bool(libc.capset(ctypes.byref(header), halves) == 0)
    except (OSError, AttributeError):
        return False
