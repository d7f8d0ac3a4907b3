"""Starts a worker's process: forked from a process that has imported torch, or like any program.

Starting Python and importing torch takes two seconds of a core, with CUDA's libraries five; a fork takes a twentieth of
a second. CUDA itself must be initialised in the process that uses it, so the process that forks never touches a GPU.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from io import BufferedReader

from kernelderby.measure.fence import folders, processes, watcher

_PACKAGE = "kernelderby.measure.worker"
FORK_SERVER = f"{_PACKAGE}.fork_server"
THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # of libraries that start threads when they are imported
_IMPORT_SECONDS = 180.0  # torch from a cold disk
_PACKET = 32


@dataclass(frozen=True, slots=True)
class Beginning:
    """The data that a worker has from its start. writable: the only folders that it may write; empty means no fence.
    hidden: folders whose files it may not even read. judge: this process. guarded: processes that it must not signal.
    mark: its mark (marks.mark)."""

    root: str
    device: str
    writable: list[str]
    hidden: list[str]
    judge: int
    guarded: list[int]
    mark: int


class Forked:
    """A child that this process did not start itself, with the parts of subprocess.Popen that the runner uses."""

    def __init__(self, pid: int, output: BufferedReader | None) -> None:
        self.pid, self.stdout = pid, output
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, less than 0 for a signal; None while it runs."""
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # a program that ignores SIGCHLD never notices, as in subprocess
                pid, status = self.pid, 0
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(0.002)
        return code


def spawned(
    beginning: Beginning, environment: Mapping[str, str], requests: int, replies: int, python: str | None = None
) -> Process:
    channels = requests, replies, watcher.channel()
    words = [*map(str, channels), json.dumps(asdict(beginning))]
    return _program(f"{_PACKAGE}.serve", words, environment, channels, subprocess.PIPE, python)


Process = subprocess.Popen[bytes] | Forked
Begun = Callable[[int, dict[str, str]], Process]


def _started_server(channel: int, environment: dict[str, str]) -> Process:
    alone = dict.fromkeys(THREADS, "1")
    return _program(FORK_SERVER, [str(channel)], {**environment, **alone}, (channel,), subprocess.DEVNULL)


def _program(
    module: str,
    words: list[str],
    environment: Mapping[str, str],
    channels: Sequence[int],
    output: int,
    python: str | None = None,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [python or sys.executable, "-P", "-m", module, *words],
        cwd="/",  # files in the run's folder must not count as libraries
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        pass_fds=[each for each in channels if each >= 0],
        start_new_session=True,
    )


class ForkServer:
    """The judge's side of worker/fork_server.py. The server ends with this process in any case."""

    def __init__(self, environment: Mapping[str, str], begun: Begun | None = None) -> None:
        """begun: starts the server from the descriptor of its end of the channel; without it, a separate program is
        started."""
        self.environment = dict(environment)
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(_IMPORT_SECONDS)
        self._process = (begun or _started_server)(other.fileno(), self.environment)
        other.close()
        self.pid = self._process.pid

    def forked(
        self, beginning: Beginning, environment: Mapping[str, str], requests: int, replies: int
    ) -> Forked | None:
        """A new worker; None if the server has ended because torch does not load or nothing can be forked."""
        read_end, write_end = os.pipe()
        request = {"environment": dict(environment), "beginning": asdict(beginning)}
        descriptors = [requests, replies, write_end, watcher.channel()]
        try:
            socket.send_fds(self._channel, [json.dumps(request).encode()], descriptors)
            pid = self._channel.recv(_PACKET)
        except OSError:  # it has ended or is late
            pid = b""
        finally:
            os.close(write_end)
        if not pid:
            os.close(read_end)
            return None
        return Forked(int(pid), os.fdopen(read_end, "rb"))

    def end(self) -> None:
        self._channel.close()
        processes.end(self.pid)
        self._process.wait()


_Kind = tuple[str, bool]  # of a worker: its device, and whether it interprets Triton
_servers: dict[_Kind, ForkServer] = {}  # a run on a GPU asks for workers of both devices
_without: list[dict[str, str]] = []  # environments without a server


def begin(
    beginning: Beginning, environment: Mapping[str, str], requests: int, replies: int, python: str | None = None
) -> Process:
    """Starts a worker's process with these pipes for requests and replies. One thread at a time. python: the
    interpreter of another environment."""
    server = _fork_server(beginning.device, environment) if python is None else None
    if server is not None:
        guarded = replace(beginning, guarded=[*servers(), *beginning.guarded])
        if forked := server.forked(guarded, environment, requests, replies):
            return forked
        _without.append(server.environment)
        _end_server(_kind(beginning.device, environment))
    return spawned(beginning, environment, requests, replies, python)


def servers() -> set[int]:
    """Process ids of children of this process that are fork servers."""
    return {server.pid for server in _servers.values()}


def fork_here(environment: Mapping[str, str], serve: Callable[[int, dict[str, str]], None]) -> None:
    """Forks a child of this process, which has imported torch and read nothing yet, as the server for workers of this
    environment. serve: runs in the child."""

    def begun(channel: int, environment: dict[str, str]) -> Process:
        if pid := os.fork():
            return Forked(pid, None)
        try:
            serve(channel, environment)
        finally:
            os._exit(0)

    _servers[_kind("cpu", environment)] = ForkServer(_alike(environment), begun)


def _alike(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without caches and places of temporary files, which are looked up after the fork."""
    return {name: value for name, value in environment.items() if name not in folders.PLACES}


def _fork_server(device: str, environment: Mapping[str, str]) -> ForkServer | None:
    """The server for workers of this environment. None if there is none: not on Linux, or torch does not load."""
    same, kind = _alike(environment), _kind(device, environment)
    if not sys.platform.startswith("linux") or same in _without:
        return None
    if kind in _servers and _servers[kind].environment != same:
        _end_server(kind)
    if kind not in _servers:
        _servers[kind] = ForkServer(same)
    return _servers[kind]


def _kind(device: str, environment: Mapping[str, str]) -> _Kind:
    return device, "TRITON_INTERPRET" in environment


def _end_server(kind: _Kind) -> None:
    _servers.pop(kind).end()


@atexit.register
def _end_servers() -> None:
    for kind in list(_servers):
        _end_server(kind)
