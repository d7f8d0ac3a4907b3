"""Who may be signalled, asked at each call: the kernel stops the caller and tells a process outside of the fence, which
looks at the ids and answers (SECCOMP_RET_USER_NOTIF, seccomp_unotify(2), Linux 5.5 and newer).

A filter alone compares numbers, and the ids of threads that start later are no numbers that it knows; landlock knows
whom a process may signal from version 6 on, and nothing of processors and priorities.
"""

from __future__ import annotations

import array
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


def listening(run: int) -> socket.socket | None:
    """Where workers of that run hand in their filters. None where there are no such sockets."""
    try:
        found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        found.bind(_address(run))
        found.listen(64)
    except OSError:
        return None
    return found


def handed_in(run: int, descriptor: int) -> bool:
    """The other side: a filter's descriptor reaches the watcher of that run."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            channel.settimeout(10)
            channel.connect(_address(run))
            channel.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])
            return channel.recv(1) == b"f"
    except OSError:
        return False


def received(listener: socket.socket) -> list[int]:
    """Descriptors that one process of our user has handed in."""
    found = array.array("i")
    try:
        channel, _ = listener.accept()
        with channel:
            channel.settimeout(1)
            _, user, _ = struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            _, ancillary, _, _ = channel.recvmsg(1, socket.CMSG_LEN(4), socket.MSG_CMSG_CLOEXEC)
            for _, _, data in ancillary:
                found.frombytes(data)
            if user == os.getuid():
                channel.send(b"f")
                return list(found)
    except OSError:
        pass
    for each in found:
        os.close(each)
    return []


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


def _address(run: int) -> str:
    return f"\0kernelderby-{run >> marks.RUN_BITS}"
