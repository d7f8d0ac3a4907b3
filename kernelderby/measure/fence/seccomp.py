"""A seccomp filter for a worker (<linux/seccomp.h>, <linux/filter.h>; x86-64, aarch64): no look into other processes,
no signals to those that run the race, no limits, priorities, processors or pages of anybody else, no network, nothing
that only the machine's owner does, no permissions or attributes that would close the set to the run.

Tables name system calls by their numbers, x86-64's first, aarch64's second; None where it has none. Calls of another
architecture (32-bit ones, x32) have other numbers and would go round all of it: they are refused as a whole.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Collection, Iterable
from pathlib import Path

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # the kernel's name for it, column below
_X32 = 0x40000000

_REFUSED = {
    # Other processes' memory, files and signals. io_uring would go round the filter.
    **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272)},
    **{"pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "process_madvise": (440, 440)},
    **{"process_mrelease": (448, 448), "io_uring_setup": (425, 425), "perf_event_open": (298, 241)},
    # What only the machine's owner does.
    **{"bpf": (321, 280), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "setns": (308, 268)},
    **{"unshare": (272, 97), "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429)},
    **{"fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433)},
    **{"mount_setattr": (442, 442), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262)},
    **{"init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104)},
    **{"kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225)},
    **{"settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171)},
    **{"iopl": (172, None), "ioperm": (173, None), "acct": (163, 89), "quotactl": (179, 60), "syslog": (103, 116)},
    **{"sethostname": (170, 161), "setdomainname": (171, 162), "vhangup": (153, 58)},
}
_WITHOUT_ATTRIBUTES = {  # EOPNOTSUPP, as on a disk that has none: an access list could close a file to the run
    **{"setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463)},
    **{"removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466)},
}
_WITHOUT_EFFECT = {"chown": (92, None), "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54)}
# Name: numbers, which argument has the mode. Without effect unless the owner may still do everything: landlock knows
# nothing of permissions. A linker that makes its output executable can.
_MODES = {"chmod": ((90, None), 1), "fchmod": ((91, 52), 1), "fchmodat": ((268, 53), 2), "fchmodat2": ((452, 452), 2)}
_OF_THE_OWNER = 0o700
# To or of the process that the first argument names; refused for those of the run.
_TARGETED = {
    **{"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138)},
    **{"rt_tgsigqueueinfo": (297, 240), "sched_setaffinity": (203, 122), "sched_setparam": (142, 118)},
    **{"sched_setscheduler": (144, 119), "sched_setattr": (314, 274)},
}
# Name: numbers, which argument names a process. Refused unless that is 0, the caller itself.
_OF_ITSELF = {
    **{"prlimit64": ((302, 261), 0), "move_pages": ((279, 239), 0), "migrate_pages": ((256, 238), 0)},
    **{"setpriority": ((141, 140), 1), "ioprio_set": ((251, 30), 1)},
}
# Name: numbers, which argument, and the values that are refused.
_WITH = {
    "socket": ((41, 198), 0, [2, 10, 17]),  # AF_INET, AF_INET6, AF_PACKET
    # A file that signals another process when something happens to it, and leases, which make others wait: F_SETOWN,
    # F_SETSIG, F_SETOWN_EX, F_SETLEASE.
    "fcntl": ((72, 25), 1, [8, 10, 15, 1024]),
    # FIOSETOWN and SIOCSPGRP (the same for sockets), TIOCSTI, FS_IOC_SETFLAGS and FS_IOC_FSSETXATTR (immutable files).
    "ioctl": ((16, 29), 1, [0x8901, 0x8902, 0x5412, 0x40086602, 0x401C5820]),
}

_PR_GET_SECCOMP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 21, 22, 38, 2
_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_REFUSE = _FAIL | errno.EPERM
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # in struct seccomp_data, little endian
_FARTHEST = 255  # instructions that one jump can pass

Instruction = tuple[int, int, int, int]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def has_seccomp() -> bool:
    """Also where a filter holds already, a container's or an earlier one of this process: another comes on top."""
    try:
        return platform.machine() in _ARCHITECTURES and ctypes.CDLL(None).prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0
    except (OSError, AttributeError):
        return False


def protect(processes: Collection[int]) -> bool:
    """From now on this process, and all that it starts, is held to the tables above. processes: those of the run, which
    with our ancestors and their groups get no signals. False where the kernel cannot."""
    if not has_seccomp():
        return False
    held = {1, *processes, *_ancestors()}
    targets = sorted({value & 0xFFFFFFFF for pid in held for value in (pid, -pid)})
    program = _program(targets)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return bool(libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(_Program(len(program) // 8, program)), 0, 0) == 0)


def _ancestors() -> set[int]:
    """Process ids of those that started us, and of their groups."""
    found: set[int] = set()
    pid = "self"
    while True:
        try:
            _, parent, group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            return found
        if pid != "self":
            found.add(int(group))
        if int(parent) <= 1:
            return found
        found.add(int(parent))
        pid = parent


def _program(targets: Collection[int]) -> bytes:
    architecture, column = _ARCHITECTURES[platform.machine()]
    code: list[Instruction] = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _REFUSE)]
    code.append((_LOAD, 0, 0, _NUMBER))
    if column == 0:
        code += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _REFUSE)]
    for table, answer in (
        (_REFUSED, _REFUSE),
        (_WITHOUT_ATTRIBUTES, _FAIL | errno.EOPNOTSUPP),
        (_WITHOUT_EFFECT, _FAIL),
    ):
        for numbers in table.values():
            code += _rule(numbers[column], [(_RETURN, 0, 0, answer)])
    for numbers in _TARGETED.values():
        code += _rule(numbers[column], _refused_when(0, targets))
    for numbers, argument, values in _WITH.values():
        code += _rule(numbers[column], _refused_when(argument, values))
    for numbers, argument in _OF_ITSELF.values():
        unless = [_argument(argument), (_EQUAL, 0, 1, 0), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
        code += _rule(numbers[column], unless)
    for numbers, argument in _MODES.values():
        all_of_it = [_argument(argument), (_AND, 0, 0, _OF_THE_OWNER), (_EQUAL, 0, 1, _OF_THE_OWNER)]
        code += _rule(numbers[column], [*all_of_it, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _FAIL)])
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *each) for each in code)


def _rule(number: int | None, looked_at: list[Instruction]) -> list[Instruction]:
    """What follows for one system call; it ends with an answer."""
    if number is None:
        return []
    if len(looked_at) > _FARTHEST:
        raise ValueError(f"{len(looked_at)} instructions for one system call; a jump passes {_FARTHEST}")
    return [(_EQUAL, 0, len(looked_at), number), *looked_at]


def _refused_when(argument: int, values: Iterable[int]) -> list[Instruction]:
    code = [_argument(argument)]
    for value in values:
        code += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _REFUSE)]
    return [*code, (_RETURN, 0, 0, _ALLOW)]


def _argument(place: int) -> Instruction:
    """Its lower half: what the kernel takes for an int."""
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * place)
