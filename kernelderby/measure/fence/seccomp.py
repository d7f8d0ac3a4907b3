"""A seccomp filter for a worker (<linux/seccomp.h>, <linux/filter.h>; x86-64, aarch64): no look into other processes,
no signals to those that run the race, no limits, priorities, processors or pages of anybody else, no network, nothing
that only the machine's owner does, no permissions or attributes that would close the set to the run.

If the kernel can ask (notices.py), signals and scheduling reach only a worker's own processes and threads.

Tables list system calls by number, for x86-64 first and aarch64 second; None if the call does not exist. Calls of
another architecture (32-bit, x32) have other numbers and would bypass the filter, so all of them are refused.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
from collections.abc import Collection, Iterable
from pathlib import Path

from kernelderby.measure.fence import notices

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # the kernel's name for it, column below
_X32 = 0x40000000

_REFUSED = {
    # Other processes' memory, files and signals. io_uring would bypass the filter.
    **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272)},
    **{"pidfd_send_signal": (424, 424), "pidfd_getfd": (438, 438), "process_madvise": (440, 440)},
    **{"process_mrelease": (448, 448), "io_uring_setup": (425, 425), "perf_event_open": (298, 241)},
    # Calls for the machine's owner only.
    **{"bpf": (321, 280), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "setns": (308, 268)},
    **{"unshare": (272, 97), "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429)},
    **{"fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433)},
    **{"mount_setattr": (442, 442), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262)},
    **{"init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104)},
    **{"kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225)},
    **{"settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171)},
    **{"iopl": (172, None), "ioperm": (173, None), "acct": (163, 89), "quotactl": (179, 60), "syslog": (103, 116)},
    **{"sethostname": (170, 161), "setdomainname": (171, 162), "vhangup": (153, 58)},
    # Objects that outlive the worker, in which it could store its requests: keys, queues, semaphores and memory of
    # System V and POSIX. It could also use or remove those of the user's other programs by number. Messages on sockets
    # carry descriptors, and with them memory that is not counted.
    **{"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "shmget": (29, 194)},
    **{"shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193), "semctl": (66, 191)},
    **{"semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187)},
    **{"mq_open": (240, 180), "mq_unlink": (241, 181), "sendmsg": (46, 211), "sendmmsg": (307, 269)},
    # Memory that no list of a process shows: files that only their maker sees, and whole huge pages of which a pipe
    # holds one small page.
    **{"memfd_secret": (447, 447), "vmsplice": (278, 75)},
}
# Of a worker alone. A timer that sends SIGCONT would wake a process that the run has stopped.
_OF_A_WORKER = {"timer_create": (222, 107)}
# ENOSYS: its flags are in memory, and callers fall back to clone; all programs of the machine share the few events of
# asynchronous files, and what is asked of them goes on while the run has stopped who asked.
_WITHOUT_NUMBER = {"clone3": (435, 435), "io_setup": (206, 0)}
_WITHOUT_ATTRIBUTES = {  # EOPNOTSUPP, as on a disk without attributes: an access list could close a file to the run
    **{"setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463)},
    **{"removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466)},
    "file_setattr": (469, 469),
}
_WITHOUT_EFFECT = {"chown": (92, None), "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54)}
# Of a worker alone: it stays in one group with all that it starts, so one signal reaches all of them. Of a chain of
# processes, each of which starts the next one and ends, no list would ever be complete.
_LEAVING = {"setsid": (112, 157), "setpgid": (109, 154)}
# Name: numbers, and the argument with the mode. The call has no effect unless the owner keeps all permissions, since
# landlock does not cover permissions, nor if others would run the file as its owner. A linker can still make its output
# executable.
_MODES = {"chmod": ((90, None), 1), "fchmod": ((91, 52), 1), "fchmodat": ((268, 53), 2), "fchmodat2": ((452, 452), 2)}
_OF_THE_OWNER, _AS_ITS_OWNER = 0o700, 0o6000
# Calls on the process in the first argument; refused for processes of the run.
_TARGETED = {
    **{"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138)},
    **{"rt_tgsigqueueinfo": (297, 240), "sched_setaffinity": (203, 122), "sched_setparam": (142, 118)},
    **{"sched_setscheduler": (144, 119), "sched_setattr": (314, 274)},
}
# Of those that send a signal: the argument with its number. A worker sends no SIGCONT: sent at the moment at which the
# run stops all of its processes, before the sender itself has stopped, it wakes them all.
_GOING_ON = {"kill": 1, "tkill": 1, "tgkill": 2, "rt_sigqueueinfo": 1, "rt_tgsigqueueinfo": 2}
# Name: numbers, and the argument with a process. Refused unless it is 0, the caller itself, or this process.
_OF_ITSELF = {
    **{"prlimit64": ((302, 261), 0), "move_pages": ((279, 239), 0), "migrate_pages": ((256, 238), 0)},
    **{"setpriority": ((141, 140), 1), "ioprio_set": ((251, 30), 1)},
}
_OF_THE_USER = {"setpriority": 2, "ioprio_set": 3}  # first argument: all that the user runs
# RLIMIT_RTTIME carries the worker's mark, see marks.py; by RLIMIT_CORE no core is written, see serve.py. A new core
# limit has no effect: scripts that set it to 0 want the same.
_RTTIME, _CORE = 15, 4
# Name: numbers, the argument, and its refused values.
_WITH = {
    # Files that signal another process after an event, leases of files and folders, which make others wait, and pipes
    # larger than usual: F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_SETDELEG (Linux 6.19), F_SETPIPE_SZ.
    "fcntl": ((72, 25), 1, [8, 10, 15, 1024, 1040, 1031]),
    "setrlimit": ((160, 164), 0, [_RTTIME, _CORE]),
    # CLOSE_RANGE_UNSHARE: a thread with a table of files of its own, which the list of its process does not show.
    "close_range": ((436, 436), 2, [2, 2 | 4]),
}
# FIOSETOWN and SIOCSPGRP (a file that signals), TIOCSTI; and, by the second byte, all that ask a file system itself: of
# ext4 and others ("f": immutable files, fs-verity), XFS ("X"), Btrfs and F2FS. Most need no file opened to write.
_IOCTL, _SIGNALLING, _OF_FILE_SYSTEMS = (16, 29), [0x8901, 0x8902, 0x5412], (0x66, 0x58, 0x94, 0xF5)

# Families of sockets that a worker may open: AF_NETLINK, with which libraries list the machine's interfaces, and
# AF_UNIX. CUDA's driver first looks for its Multi-Process Service with an AF_UNIX socket, and fails with error 304
# without one. If no service runs, connections are refused, and so are kinds of sockets that send without a connection;
# one socket of a pair of that kind can send to any name too.
_SOCKET, _CONNECT, _SOCKETPAIR = (41, 198), (42, 203), (53, 199)
_AF_NETLINK, _OF_PROGRAMS = 16, 2  # NETLINK_USERSOCK: programs talk to each other
_AF_UNIX, _KIND, _CONNECTED_KINDS = 1, 0xF, (1, 5)  # SOCK_STREAM, SOCK_SEQPACKET
# A socket's buffer keeps its usual size, by which the runner counts it: SO_SNDBUF, SO_SNDBUFFORCE of SOL_SOCKET.
_SETSOCKOPT, _SOL_SOCKET, _SIZES = (54, 208), 1, (7, 32)
_CLONE, _EXIT_SIGNAL = (56, 220), 0xFF
_PRCTL, _PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = (157, 167), 1, 4
_THREAD, _FILES = 0x10000, 0x400  # CLONE_THREAD, and that it shares the table of files
_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET

_PR_GET_SECCOMP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 21, 22, 38, 2
_MESSAGES = ("sendmsg", "sendmmsg")
_SECCOMP, _SET_FILTER, _IS_AVAILABLE, _NEW_LISTENER = {"x86_64": 317, "aarch64": 277}, 1, 2, 1 << 3
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _ASK, _FAIL = 0x7FFF0000, 0x7FC00000, 0x00050000
_REFUSE = _FAIL | errno.EPERM
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # in struct seccomp_data, little endian
_FARTHEST = 255  # instructions that one jump can skip

Instruction = tuple[int, int, int, int]
_REFUSED_HERE: Instruction = (_RETURN, 0, 0, _REFUSE)
_UNKNOWN_HERE: Instruction = (_RETURN, 0, 0, _FAIL | errno.EOPNOTSUPP)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def has_seccomp() -> bool:
    """Whether the kernel has filters. An existing filter, of a container or of this process, is no obstacle: another
    one is added."""
    try:
        return platform.machine() in _ARCHITECTURES and ctypes.CDLL(None).prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0
    except (OSError, AttributeError):
        return False


def can_ask() -> bool:
    """Whether the kernel knows SECCOMP_RET_USER_NOTIF (Linux 5.0; its answer `go on` since 5.5)."""
    if not has_seccomp():
        return False
    number, action = ctypes.c_long(_SECCOMP[platform.machine()]), ctypes.c_uint32(_ASK)
    return bool(ctypes.CDLL(None).syscall(number, _IS_AVAILABLE, 0, ctypes.byref(action)) == 0)


def protect(processes: Collection[int]) -> bool:
    """From now on the tables above restrict this process and everything that it starts. processes: the run's processes,
    which get no signals; neither do our ancestors and their groups. False if the kernel cannot do it."""
    return _protect(processes, of_judge=False)


def _protect(processes: Collection[int], of_judge: bool) -> bool:
    if not has_seccomp():
        return False
    held = {1, *processes, *_ancestors()}
    targets = sorted({value & 0xFFFFFFFF for pid in held for value in (pid, -pid)})
    program = _program(targets, _has_service(), of_judge)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return bool(libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(_Program(len(program) // 8, program)), 0, 0) == 0)


def protect_from_judge(processes: Collection[int]) -> bool:
    """The same for the judge's process, in which definitions run. Unlike a worker it may mark and signal its workers,
    hand descriptors to them, and set permissions of its files."""
    return _protect(processes, of_judge=True)


def watched(channel: int) -> bool:
    """From now on the watcher at the other end decides whom this process, and everything that it starts, may signal or
    move to other processors: see notices.py. Call it before protect(), which closes the way to the watcher. False if
    the kernel cannot ask, or another filter asks already (as in some containers); then only protect()'s tables and
    landlock apply."""
    if not has_seccomp():
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    program = _asking(os.getpid())
    asked = ctypes.byref(_Program(len(program) // 8, program))
    descriptor = libc.syscall(ctypes.c_long(_SECCOMP[platform.machine()]), _SET_FILTER, _NEW_LISTENER, asked)
    if descriptor < 0:
        return False
    try:
        return notices.handed_in(channel, descriptor)
    finally:
        os.close(descriptor)


def _asking(own: int) -> bytes:
    """own: this process, whose threads may signal each other without a question."""
    architecture, column = _ARCHITECTURES[platform.machine()]
    code: list[Instruction] = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _ALLOW)]
    code.append((_LOAD, 0, 0, _NUMBER))
    for name, numbers in _TARGETED.items():
        free = [0, own] if name in ("tgkill", "rt_tgsigqueueinfo") else [0]
        code += _rule(numbers[column], [*_answered_when(0, free, _ALLOW)[:-1], (_RETURN, 0, 0, _ASK)])
    return _packed([*code, (_RETURN, 0, 0, _ALLOW)])


def _has_service() -> bool:
    """Whether CUDA's Multi-Process Service runs, with which processes reach their GPU through sockets."""
    return "CUDA_MPS_PIPE_DIRECTORY" in os.environ or os.path.exists("/tmp/nvidia-mps")


def _ancestors() -> set[int]:
    """The process ids of our ancestors, and of their groups."""
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


def _program(targets: Collection[int], has_service: bool, of_judge: bool) -> bytes:
    architecture, column = _ARCHITECTURES[platform.machine()]
    code: list[Instruction] = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _REFUSE)]
    code.append((_LOAD, 0, 0, _NUMBER))
    if column == 0:
        code += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _REFUSE)]
    for table, answer in (
        (_REFUSED, _REFUSE),
        ({} if of_judge else _OF_A_WORKER, _REFUSE),
        ({} if of_judge else _LEAVING, _FAIL),
        (_WITHOUT_NUMBER, _FAIL | errno.ENOSYS),
        (_WITHOUT_ATTRIBUTES, _FAIL | errno.EOPNOTSUPP),
        (_WITHOUT_EFFECT, _FAIL),
    ):
        for name, numbers in table.items():
            if not ((has_service or of_judge) and name in _MESSAGES):
                code += _rule(numbers[column], [(_RETURN, 0, 0, answer)])
    for name, numbers in _TARGETED.items():
        if name in _GOING_ON and not of_judge:
            wakes = [_argument(_GOING_ON[name]), (_EQUAL, 0, 1, signal.SIGCONT), _REFUSED_HERE]
            code += [(_EQUAL, 0, len(wakes) + 1, numbers[column]), *wakes, (_LOAD, 0, 0, _NUMBER)]
        code += _rule(numbers[column], _answered_when(0, targets, _REFUSE))
    for name, (numbers, argument, values) in _WITH.items():
        if of_judge and name == "setrlimit":
            continue
        code += _rule(numbers[column], _answered_when(argument, values, _REFUSE))
    unknown = [each for kind in _OF_FILE_SYSTEMS for each in ((_EQUAL, 0, 1, kind << 8), _UNKNOWN_HERE)]
    by_kind = [_argument(1), (_AND, 0, 0, 0xFF00), *unknown]
    code += _rule(_IOCTL[column], [*by_kind, *_answered_when(1, _SIGNALLING, _REFUSE)])
    interfaces = [(_EQUAL, 0, 4, _AF_NETLINK), *_answered_when(2, [_OF_PROGRAMS], _REFUSE)]
    of_unix = [(_EQUAL, 0, 1, _AF_UNIX), (_RETURN, 0, 0, _ALLOW)] if has_service else _that_sends_when_connected()
    code += _rule(_SOCKET[column], [_argument(0), *interfaces, *of_unix, _REFUSED_HERE])
    if not has_service:
        code += _rule(_SOCKETPAIR[column], [_argument(0), *of_unix, _REFUSED_HERE])
        code += _rule(_CONNECT[column], [(_RETURN, 0, 0, _FAIL | errno.ECONNREFUSED)])
    if not of_judge:
        sizes = _answered_when(2, _SIZES, _FAIL)
        code += _rule(_SETSOCKOPT[column], [_argument(1), (_EQUAL, 1, 0, _SOL_SOCKET), (_RETURN, 0, 0, _ALLOW), *sizes])
        # A process at its end may still tell a relative so by SIGCONT while the run has stopped both: giving back what
        # it held takes as long as it likes.
        woken = _answered_when(1, [signal.SIGCONT], _REFUSE)
        by_an_end = [(_EQUAL, 0, len(woken), _PR_SET_PDEATHSIG), *woken]
        # Otherwise it hides its open files, and their memory, from the runner.
        hidden = [(_EQUAL, 1, 0, _PR_SET_DUMPABLE), (_RETURN, 0, 0, _ALLOW), *_answered_when(1, [0], _REFUSE)]
        code += _rule(_PRCTL[column], [_argument(0), *by_an_end, *hidden])
    makes_one = [_argument(0), (_ANY_BIT, 0, 1, _NAMESPACES), (_RETURN, 0, 0, _REFUSE)]
    wakes = [(_AND, 0, 0, _EXIT_SIGNAL), (_EQUAL, 0, 1, signal.SIGCONT), (_RETURN, 0, 0, _REFUSE)]
    own_files = [_argument(0), (_AND, 0, 0, _THREAD | _FILES), (_EQUAL, 0, 1, _THREAD), (_RETURN, 0, 0, _REFUSE)]
    code += _rule(_CLONE[column], [*makes_one, *own_files, _argument(0), *wakes, (_RETURN, 0, 0, _ALLOW)])
    for name, (numbers, argument) in _OF_ITSELF.items():
        if of_judge and name == "prlimit64":  # its workers mark themselves, under this filter too
            code += _rule(numbers[column], [*_answered_when(argument, [0], _ALLOW)[:-1], _REFUSED_HERE])
            continue
        itself = _answered_when(argument, [0, os.getpid()], _ALLOW)[:-1]
        code += _rule(numbers[column], [*_of_itself(name), *itself, _REFUSED_HERE])
    for name, (numbers, argument) in _MODES.items():
        least = 0o600 if of_judge and name == "fchmod" else _OF_THE_OWNER
        as_owner = [_argument(argument), (_ANY_BIT, 0, 1, _AS_ITS_OWNER), (_RETURN, 0, 0, _FAIL)]
        all_of_it = [(_AND, 0, 0, least), (_EQUAL, 0, 1, least)]
        code += _rule(numbers[column], [*as_owner, *all_of_it, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _FAIL)])
    return _packed([*code, (_RETURN, 0, 0, _ALLOW)])


def _that_sends_when_connected() -> list[Instruction]:
    """Allows the call if the socket is AF_UNIX and sends nothing before it is connected."""
    stream, packets = _CONNECTED_KINDS
    kinds = [(_EQUAL, 1, 0, stream), (_EQUAL, 0, 1, packets), (_RETURN, 0, 0, _ALLOW)]
    return [(_EQUAL, 0, 2 + len(kinds), _AF_UNIX), _argument(1), (_AND, 0, 0, _KIND), *kinds]


def _of_itself(name: str) -> list[Instruction]:
    """Calls that are refused even for target 0: priorities of all processes of a user, limits for mark and cores."""
    if name in _OF_THE_USER:
        return _answered_when(0, [_OF_THE_USER[name]], _REFUSE)[:-1]
    if name == "prlimit64":  # a new limit, in whichever half of its address a bit is set
        looks = [(_EQUAL, 0, 1, 0), (_RETURN, 0, 0, _ALLOW)]
        halves = [_argument(2), (_EQUAL, 0, 3, 0), (_LOAD, 0, 0, _ARGUMENTS + 8 * 2 + 4), *looks]
        code = []
        for limit, answered in ((_RTTIME, _REFUSED_HERE), (_CORE, (_RETURN, 0, 0, _FAIL))):
            code += [_argument(1), (_EQUAL, 0, len(halves) + 1, limit), *halves, answered]
        return code
    return []


def _packed(code: Iterable[Instruction]) -> bytes:
    return b"".join(struct.pack("<HBBI", *each) for each in code)


def _rule(number: int | None, looked_at: list[Instruction]) -> list[Instruction]:
    """The instructions for one system call; they end with an answer."""
    if number is None:
        return []
    if len(looked_at) > _FARTHEST:
        raise ValueError(f"{len(looked_at)} instructions for one system call; a jump passes {_FARTHEST}")
    return [(_EQUAL, 0, len(looked_at), number), *looked_at]


def _answered_when(argument: int, values: Iterable[int], answer: int) -> list[Instruction]:
    """The answer if the argument is one of the values; otherwise the call is allowed."""
    code = [_argument(argument)]
    for value in values:
        code += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, answer)]
    return [*code, (_RETURN, 0, 0, _ALLOW)]


def _argument(place: int) -> Instruction:
    """The lower half of the argument, which the kernel takes as an int."""
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * place)
