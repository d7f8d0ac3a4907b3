"""Who may be signalled, asked at each call: the kernel stops the caller and tells a process outside of the fence, which
looks at the ids and answers (SECCOMP_RET_USER_NOTIF, seccomp_unotify(2), Linux 5.5 and newer).

A filter alone compares numbers, and the ids of threads that start later are no numbers that it knows; landlock knows
whom a process may signal from version 6 on, and nothing of processors and priorities.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
from contextlib import suppress

from kernelderby.measure.fence import marks

_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_*
_NOTICE = struct.Struct("=QIIiIQ6Q")  # struct seccomp_notif: id, pid, flags, number, architecture, address, arguments
_ANSWER = struct.Struct("=QqiI")
_CONTINUE = 1
_KILL = {62, 129}  # on x86-64 and aarch64, and no other call that is asked for: below 0 stands a group


def handed_in(channel: int, descriptor: int) -> bool:
    """A filter's descriptor reaches the watcher at the other end of the channel, and it has said so."""
    try:
        asked, answered = socket.socketpair()
        with asked, answered, socket.socket(fileno=os.dup(channel)) as watcher:
            asked.settimeout(10)
            socket.send_fds(watcher, [b"f"], [descriptor, answered.fileno()])
            answered.close()
            return asked.recv(1) == b"f"
    except OSError:
        return False


def received(channel: socket.socket) -> int | None:
    """The watcher's end: a filter's descriptor, -1 for something else; None when nobody is left to hand one in."""
    data, found, _, _ = socket.recv_fds(channel, 1, 2, socket.MSG_CMSG_CLOEXEC)
    if len(found) == 2:
        with suppress(OSError), socket.socket(fileno=found[1]) as answered:
            answered.send(b"f")
        return found[0]
    for each in found:
        os.close(each)
    return -1 if data else None


def answer(descriptor: int) -> bool:
    """One question. False when nobody is left to ask."""
    notice = bytearray(_NOTICE.size)
    try:
        fcntl.ioctl(descriptor, _RECEIVE, notice)
    except OSError as error:
        return error.errno in (errno.EINTR, errno.ENOENT)  # the caller was killed before it was heard
    number, caller, _, call, _, _, *arguments = _NOTICE.unpack(notice)
    target = ctypes.c_int(arguments[0] & 0xFFFFFFFF).value
    is_own = _is_own(caller, target, is_group=target < 0 and call in _KILL)
    told = (0, _CONTINUE) if is_own else (-errno.EPERM, 0)
    with suppress(OSError):  # it was killed meanwhile
        fcntl.ioctl(descriptor, _SEND, _ANSWER.pack(number, 0, *told))
    return True


def _is_own(caller: int, target: int, is_group: bool) -> bool:
    """Whether both are of one worker. An id that nobody has is let through: the kernel says so."""
    own = marks.of(caller)
    if not own or target == -1:
        return False
    members = _group(-target) if is_group else [target]
    return all(marks.of(each) == own or marks.is_dead(each) for each in members)


def _group(group: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.getpgid(int(name)) == group:
                    found.append(int(name))
            except OSError:
                continue
    return found
