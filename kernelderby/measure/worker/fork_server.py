"""A process that has imported the slow modules and forks workers on a CPU: python -P -m ...worker.fork_server SOCKET.

It runs nothing of a solution, nor of the set, and knows nothing of the judge but its process id. Each request on its
socket (one packet: JSON, with four descriptors) becomes a process of its own, a child of the judge: what forked it
ends at once, and the judge is the subreaper. Only then does it go on as any worker does, fences included
(serve.serve()). The server ends when the judge closes the socket or dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import socket
import sys
import tempfile
import time
from typing import Any

import numpy

from kernelderby.measure.worker.serve import serve

_PR_SET_DUMPABLE = 4  # <linux/prctl.h>
_DESCRIPTORS = 4  # requests, replies, log, the watcher's channel
_PACKET = 1 << 17
_IMPORTED_IF_THERE = ("triton.language", "kernelderby.measure.worker.interpreter", "safetensors.torch")


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    # Who may read a process by its user alone may not read this one; a worker takes that back.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    # With torch; what does not load ends the server, and the worker says what it was.
    importlib.import_module("kernelderby.measure.worker.commands")
    for name in _IMPORTED_IF_THERE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1:  # a fork would leave the locks that the other threads hold
        os._exit(1)
    gc.collect()
    gc.freeze()
    requests, replies, beginning = _in_a_new_process(channel)
    serve(requests, replies, **beginning)


def _in_a_new_process(channel: socket.socket) -> tuple[int, int, dict[str, Any]]:
    """Answers requests with process ids. Returns in the new processes alone, with what serve() gets there."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, _PACKET, _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if not data:
            os._exit(0)  # tidying torch up takes half a second
        told, tell = os.pipe()
        middle = os.fork()
        if not middle:
            middle = os.getpid()
            if os.fork():
                os._exit(0)
            os.setsid()  # before the judge knows its id: a signal to its group must find one
            os.write(tell, str(os.getpid()).encode())
            for each in (told, tell, channel.detach()):
                os.close(each)
            return _begun(json.loads(data), descriptors, middle)
        for each in (*descriptors, tell):
            os.close(each)
        os.waitpid(middle, 0)  # from here on the worker is the judge's child
        channel.send(os.read(told, 32))
        os.close(told)


def _begun(request: dict[str, Any], descriptors: list[int], middle: int) -> tuple[int, int, dict[str, Any]]:
    """What a process that was not forked has from its start: an environment, its output and numbers that are not its
    siblings'."""
    while os.getppid() == middle:  # or its end would be taken for the judge's
        time.sleep(0.0005)
    requests, replies, log, watcher = descriptors
    for standard in (1, 2):
        os.dup2(log, standard)
    os.close(log)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # TMPDIR is another one
    numpy.random.seed()
    return requests, replies, {**request["beginning"], "channel": watcher}


if __name__ == "__main__":
    main()
