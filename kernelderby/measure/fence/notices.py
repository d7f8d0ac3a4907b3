"""Decides at each call who may be signalled: the kernel stops the caller and notifies a process outside the fence,
which looks at the ids and answers (SECCOMP_RET_USER_NOTIF, seccomp_unotify(2), Linux 5.5 and newer).

A filter alone compares numbers, and it cannot know the ids of threads that start later. Landlock restricts signals from
version 6 on, but not processors and priorities.
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
_KILL = {62, 129}  # on x86-64 and aarch64; among the watched calls only this one takes a group, as a negative number


def handed_in(channel: int, descriptor: int) -> bool:
    """Sends a filter's descriptor to the watcher, and waits for its confirmation."""
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
    """The watcher's side: receives a filter's descriptor; -1 for anything else; None if no sender is left."""
    data, found, _, _ = socket.recv_fds(channel, 1, 2, socket.MSG_CMSG_CLOEXEC)
    if len(found) == 2:
        with suppress(OSError), socket.socket(fileno=found[1]) as answered:
            answered.send(b"f")
        return found[0]
    for each in found:
        os.close(each)
    return -1 if data else None


def answer(descriptor: int) -> bool:
    """Answers one question. False if nobody is left to ask."""
    notice = bytearray(_NOTICE.size)
    try:
        fcntl.ioctl(descriptor, _RECEIVE, notice)
    except OSError as error:
        return error.errno in (errno.EINTR, errno.ENOENT)  # the caller was killed before its question was read
    number, caller, _, call, _, _, *arguments = _NOTICE.unpack(notice)
    target = ctypes.c_int(arguments[0] & 0xFFFFFFFF).value
    refused = refusal(caller, target, is_group=target < 0 and call in _KILL)
    told = (-refused, 0) if refused else (0, _CONTINUE)
    with suppress(OSError):  # it was killed meanwhile
        fcntl.ioctl(descriptor, _SEND, _ANSWER.pack(number, 0, *told))
    return True


def refusal(caller: int, target: int, is_group: bool) -> int:
    """0 if both belong to one worker, otherwise the error for the caller. An id that nobody has now is refused too: it
    could be a rival's new process by the time the call goes on."""
    own = marks.of(caller)
    if not own or target == -1:
        return errno.EPERM
    members = _group(-target) if is_group else [target]
    others = [each for each in members if marks.of(each) != own]
    if not members or (others and all(map(marks.is_dead, others))):
        return errno.ESRCH
    return errno.EPERM if others else 0


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
