"""How a worker's process comes to be: started like any program, or on a CPU forked from one that has torch already.

Starting Python and importing torch takes two seconds of a core, a fork a twentieth of one. No process is forked on a
GPU's machine for a GPU: what CUDA's libraries hold is made in the process that uses them.
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
_IMPORT_SECONDS = 180.0  # torch from a cold disk
_PACKET = 32


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a worker knows from its start. writable: the only folders that it may write to; without any, no fence.
    judge: this process. guarded: processes that it must not signal. mark: its own (marks.mark)."""

    root: str
    device: str
    writable: list[str]
    judge: int
    guarded: list[int]
    mark: int


class Forked:
    """A child that this process did not start itself, with what the runner uses of subprocess.Popen."""

    def __init__(self, pid: int, output: BufferedReader | None) -> None:
        self.pid, self.stdout = pid, output
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, less than 0 for a signal; None while it runs."""
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # a program that ignores SIGCHLD never hears of it, as in subprocess
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
    return _program(FORK_SERVER, [str(channel)], environment, (channel,), subprocess.DEVNULL)


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
        cwd="/",  # what lies where the run was started is no library
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        pass_fds=[each for each in channels if each >= 0],
        start_new_session=True,
    )


class ForkServer:
    """The judge's side of worker/fork_server.py. It ends with this process, however that ends."""

    def __init__(self, environment: Mapping[str, str], begun: Begun | None = None) -> None:
        """begun: starts it from the descriptor of its end of the channel; a program of its own without."""
        self.environment = dict(environment)
        self._channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(_IMPORT_SECONDS)
        self._process = (begun or _started_server)(other.fileno(), self.environment)
        other.close()
        self.pid = self._process.pid

    def forked(
        self, beginning: Beginning, environment: Mapping[str, str], requests: int, replies: int
    ) -> Forked | None:
        """None where the server has ended: torch does not load, or nothing can be forked."""
        read_end, write_end = os.pipe()
        request = {"environment": dict(environment), "beginning": asdict(beginning)}
        descriptors = [requests, replies, write_end, watcher.channel()]
        try:
            socket.send_fds(self._channel, [json.dumps(request).encode()], descriptors)
            pid = self._channel.recv(_PACKET)
        except OSError:  # it has ended, or does not answer in time
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


_server: ForkServer | None = None
_without: list[dict[str, str]] = []  # environments in which none runs


def begin(
    beginning: Beginning, environment: Mapping[str, str], requests: int, replies: int, python: str | None = None
) -> Process:
    """A worker's process, whose pipes of requests and replies these are. One thread at a time. python: the interpreter
    of another environment."""
    server = _fork_server(environment) if beginning.device == "cpu" and python is None else None
    if server is not None:
        guarded = replace(beginning, guarded=[server.pid, *beginning.guarded])
        if forked := server.forked(guarded, environment, requests, replies):
            return forked
        _without.append(server.environment)
        _end_server()
    return spawned(beginning, environment, requests, replies, python)


def servers() -> set[int]:
    """Process ids of children of this process that are no workers."""
    return {_server.pid} if _server is not None else set()


def fork_here(environment: Mapping[str, str], serve: Callable[[int, dict[str, str]], None]) -> None:
    """Makes a child of this very process, which has imported torch and read nothing yet, the server of the workers of
    this environment. serve: what the child becomes."""
    global _server

    def begun(channel: int, environment: dict[str, str]) -> Process:
        if pid := os.fork():
            return Forked(pid, None)
        try:
            serve(channel, environment)
        finally:
            os._exit(0)

    _server = ForkServer(_alike(environment), begun)


def _alike(environment: Mapping[str, str]) -> dict[str, str]:
    """Without caches and places of temporary files, which are looked up after the fork."""
    return {name: value for name, value in environment.items() if name not in folders.PLACES}


def _fork_server(environment: Mapping[str, str]) -> ForkServer | None:
    """The one for workers of this environment. None where there is none: not on Linux, or torch does not load."""
    global _server
    same = _alike(environment)
    if not sys.platform.startswith("linux") or same in _without:
        return None
    if _server is not None and _server.environment != same:
        _end_server()
    if _server is None:
        _server = ForkServer(same)
    return _server


@atexit.register
def _end_server() -> None:
    global _server
    if _server is not None:
        _server.end()
    _server = None
