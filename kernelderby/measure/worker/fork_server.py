"""A process that has imported the slow modules and forks workers: python -P -m ...worker.fork_server SOCKET.

It runs no code of a solution or of the set, and knows only the judge's process id. Each request on its socket (one
packet: JSON, with four descriptors) becomes a new process. The process that forked it ends at once, so it becomes a
child of the judge, which is the subreaper. Then it continues like any worker, fences included (serve.serve()). The
server ends when the judge closes the socket or dies.
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
    # Other processes of the same user cannot read this process; a worker takes that back.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    # Includes torch. A failing import ends the server, and the worker reports it.
    importlib.import_module("kernelderby.measure.worker.commands")
    for name in _IMPORTED_IF_THERE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # A fork would keep the locks that other threads hold, and cannot use CUDA if this process does.
    if len(os.listdir("/proc/self/task")) > 1 or _has_a_gpu():
        os._exit(1)
    gc.collect()
    gc.freeze()
    requests, replies, beginning = _in_a_new_process(channel)
    serve(requests, replies, **beginning)


def _has_a_gpu() -> bool:
    """Whether an import has initialised CUDA here."""
    with os.scandir("/proc/self/fd") as descriptors:
        places = [os.readlink(each.path) for each in descriptors if os.path.islink(each.path)]
    return any(place.startswith("/dev/nvidia") for place in places)


def _in_a_new_process(channel: socket.socket) -> tuple[int, int, dict[str, Any]]:
    """Answers requests with process ids. Returns only in the new processes, with the arguments of serve()."""
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
            os.setsid()  # before the judge knows its id, so that a signal to its group works
            os.write(tell, str(os.getpid()).encode())
            for each in (told, tell, channel.detach()):
                os.close(each)
            return _begun(json.loads(data), descriptors, middle)
        for each in (*descriptors, tell):
            os.close(each)
        os.waitpid(middle, 0)  # from now on the worker is the judge's child
        channel.send(os.read(told, 32))
        os.close(told)


def _begun(request: dict[str, Any], descriptors: list[int], middle: int) -> tuple[int, int, dict[str, Any]]:
    """Gives a forked process what a started one has: its environment, its output, and random numbers that differ from
    its siblings'."""
    while os.getppid() == middle:  # otherwise its end would be taken for the judge's
        time.sleep(0.0005)
    requests, replies, log, watcher = descriptors
    for standard in (1, 2):
        os.dup2(log, standard)
    os.close(log)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # TMPDIR has changed
    numpy.random.seed()
    return requests, replies, {**request["beginning"], "channel": watcher}


if __name__ == "__main__":
    main()
