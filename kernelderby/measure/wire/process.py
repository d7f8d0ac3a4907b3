"""The runner's side of a worker process: starts it, sends requests, and notices if it hangs or dies."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, ClassVar, cast

import kernelderby
from kernelderby.errors import DerbyError
from kernelderby.measure.fence import caches, folders, processes, watcher
from kernelderby.measure.wire.quoted import quoted
from kernelderby.measure.wire.replies import UNHEARD, Kind, Reply, errors_of, text
from kernelderby.measure.wire.sources import cache_folder
from kernelderby.measure.wire.start import Beginning, begin, servers
from kernelderby.rows.measurement import Status
from kernelderby.store import allowed

_LOG_BYTES = 1 << 14  # the end of a solution's output is enough to show why it failed
_REPLY_BYTES = 16 << 20
_POLL_SECONDS = 0.2
_LATE_SECONDS = 5.0  # for the rest of an answer that has begun
_LOOK_SECONDS = 1.0
_STOP_SECONDS = 0.1
# What a thread has asked the kernel for is done although it is stopped: so long, of processors' time and at most.
_WORK_SECONDS, _REST_SECONDS = 10.0, 60.0
# The same of what it started, in all turns of its rivals.
_HELPERS_SECONDS = 2.0
_MOST_PROCESSES = 1000  # compilers run in parallel, with a few processes each
_MOST_THREADS = 20_000  # a library starts one for each processor, and so do compilers
_MOST_FILES = 50_000
_PROTECTED = 40  # rivals that a worker cannot signal; one jump of its filter limits the number


class WorkerProcess:
    """One worker, in its own session, so that a kill includes its children. A worker dies with the thread that started
    it, so start it from a thread that outlives it."""

    _alive: ClassVar[set[int]] = set()  # process ids of all workers of this process
    _starting: ClassVar[threading.Lock] = threading.Lock()  # a child that is not yet in _alive is no orphan
    _others: ClassVar[set[int]] = set()  # the children from before the first worker, and this process

    def __init__(
        self,
        root: Path,
        device: str,
        trusted: bool = False,
        solution_hash: str | None = None,
        python: str | None = None,
        interprets: bool = True,
    ) -> None:
        """trusted: a fault of the set that it reports ends the run even while it holds a solution (derby tune).
        solution_hash: of the solution that it will hold and whose caches it gets. python: the interpreter of another
        environment, with its own libraries. interprets: on a CPU, Triton is an interpreter, not a compiler."""
        self.device = device
        self._mark = number = watcher.next_mark()
        if not self._others:  # a program that measures keeps the children that it has
            processes.adopt_orphans()
            self._others.update(processes.children(os.getpid()), {os.getpid()})
        # A socket, since requests carry descriptors of memory.
        theirs, ours = socket.socketpair()
        request_end, self._requests = theirs.detach(), ours.detach()
        self._replies, reply_end = os.pipe()
        environment = worker_environment(device, own_package=python is not None, interprets=interprets)
        self._scratch: Path | None = None
        self._places: tuple[Path, ...] = ()
        self._room: dict[Path, int] = {}
        writable, hidden = list[Path](), list[Path]()  # empty: no fence
        if solution_hash is not None:
            own = _kept_for_tuning(solution_hash) if trusted else caches.of_run(cache_folder(), solution_hash)
            self._scratch = watcher.scratch()
            environment |= {**folders.own_caches(own), "TMPDIR": str(self._scratch)}
            writable = folders.writable(own, self._scratch)
            hidden = [*folders.with_rows(Path(root).resolve()), *caches.of_other_runs(cache_folder())]
            self._places = (self._scratch, own)
            self._room = self.room()
        with self._starting:
            beginning = Beginning(
                root=str(Path(root).resolve()),
                device=device,
                writable=[str(each) for each in writable],
                hidden=[str(each) for each in hidden],
                judge=os.getpid(),
                guarded=[os.getpid(), os.getpgrp(), *watcher.pids(), *list(self._alive)[-_PROTECTED:]],
                mark=number,
            )
            self._process = begin(beginning, environment, request_end, reply_end, python)
            self._alive.add(self._process.pid)
        os.close(request_end)
        os.close(reply_end)
        os.set_blocking(self._requests, False)  # a worker that does not read must not block the run
        self._trusted, self._has_solution = trusted, False
        self._unread = b""
        self._log = b""
        assert self._process.stdout is not None
        self._output = cast(BufferedReader, self._process.stdout)
        self._log_reader = threading.Thread(target=self._read_log, daemon=True)
        self._log_reader.start()
        self._deadline = self._timeout = self._looked_at = 0.0
        self._ending, self._worked = "has ended", 0.0
        self._shared_before = processes.shared_memory()
        self._free_before = allowed.free_bytes()

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    def known(cls) -> set[int]:
        """All workers of this process, the living fork server (another process soon gets the id of an ended one), and
        the earlier children."""
        return cls._alive | cls._others | servers() | watcher.pids()

    @classmethod
    def end_all(cls) -> None:
        """Kills all workers of this process at once. Threads that wait for an answer notice this and release the
        rest."""
        for pid in list(cls._alive):
            processes.end(pid)

    def rivals(self) -> list[int]:
        """Process ids of the other workers of this process, as many as a worker's filter can take."""
        return sorted(self._alive - {self.pid})[-_PROTECTED:]

    def stop(self) -> None:
        """Stops it and its group. One of its threads notices first, and tells the others when it gets a processor. A
        thread that waits for its own child never notices."""
        self.tell_to_stop()
        self.wait_until_stopped()

    def tell_to_stop(self) -> None:
        self._signal(signal.SIGSTOP)

    def wait_until_stopped(self) -> None:
        """Ends it if one of its threads works on all the same, within the kernel."""
        until, seen = time.monotonic() + _STOP_SECONDS, os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
        with contextlib.suppress(ChildProcessError):
            while not os.waitid(os.P_PID, self.pid, seen):
                if time.monotonic() > until:
                    return self._expect_rest()
                time.sleep(5e-5)

    def _expect_rest(self) -> None:
        """Waits until the stopped process no longer works within the kernel, and ends it if it does so without end."""
        own = [self.pid]
        until, most = time.monotonic() + _REST_SECONDS, processes.worked(own) + _WORK_SECONDS
        while processes.are_working(own) and time.monotonic() < until:
            if processes.worked(own) > most:
                return self._end_working()
            time.sleep(0.01)

    def has_worked(self, seconds: float) -> None:
        """So long has what it started worked while it was stopped, once more."""
        self._worked += seconds
        if self._worked > _HELPERS_SECONDS:
            self._end_working()

    def _end_working(self) -> None:
        self._ending = "worked on while the run had stopped it, and was ended"
        self.kill()

    def room(self) -> dict[Path, int]:
        """Free bytes where it may write."""
        return folders.room(*self._places) if self._places else {}

    def filled(self) -> Path | None:
        """The place that has filled up beside it, or that it has filled."""
        return folders.filled(self._room, self.room())

    def excuse(self, memory: float, room: dict[Path, int]) -> None:
        """By so much more has the machine's free memory, and the room where it may write, become while it stood still:
        what a rival has filled is not laid to its charge."""
        self._free_before += memory
        self._room = {place: free + room.get(place, 0) for place, free in self._room.items()}

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._requests < 0:  # it has ended, and another may have its id
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _read_log(self) -> None:
        while data := self._output.read1(1 << 16):
            self._log = (self._log + data)[-_LOG_BYTES:]

    def log_tail(self, lines: int = 8) -> str:
        text = self._log.decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def send(self, command: str, timeout: float, descriptors: Sequence[int] = (), /, **arguments: Any) -> None:
        """Sends a request, whose answer is due `timeout` seconds from now. descriptors: go with the request."""
        # As soon as a solution's code runs in it, none of its messages can end the run.
        self._has_solution |= command == "load"
        self._timeout, self._deadline = timeout, time.monotonic() + timeout
        if descriptors and self._requests >= 0:
            requests = socket.socket(fileno=self._requests)
            with contextlib.suppress(OSError):  # dead or not reading: receive() reports it
                socket.send_fds(requests, [b" "], descriptors)
            requests.detach()
        self._write({"command": command, **arguments})

    def _write(self, request: dict[str, Any]) -> None:
        """Writes until everything is sent, or the worker is dead or does not read, which receive() reports."""
        data = (json.dumps(request) + "\n").encode()
        while data and time.monotonic() < self._deadline and self._requests >= 0:
            _, ready, _ = select.select([], [self._requests], [], _POLL_SECONDS)
            try:
                data = data[os.write(self._requests, data) :] if ready else data
            except BlockingIOError:
                continue
            except BrokenPipeError:
                return

    def tell(self, what: dict[str, Any], timeout: float) -> None:
        """Continues the command that send() began; the next answer is due `timeout` seconds from now."""
        self._timeout, self._deadline = timeout, time.monotonic() + timeout
        self._write(what)

    def has_answered(self, seconds: float) -> bool:
        """Whether an answer, or a part of one, comes within this number of seconds."""
        return bool(self._unread) or (self._replies >= 0 and bool(select.select([self._replies], [], [], seconds)[0]))

    def lives(self) -> bool:
        return self._process.poll() is None

    def is_in_time(self) -> bool:
        """Whether it lives, and has not missed its deadline."""
        return self.lives() and time.monotonic() < self._deadline

    def receive(self) -> Reply:
        """The reply to the last send. For a dead or late worker the reply says so (gone), and the worker is killed with
        its children. DerbyError if the trace set itself is at fault."""
        while b"\n" not in self._unread:
            if self._replies < 0:  # it was killed before
                return self._gone(Status.CRASHED, f"the process {self._ending}")
            left = max(0.0, self._deadline - time.monotonic())
            ready, _, _ = select.select([self._replies], [], [], min(left, _POLL_SECONDS))
            if ready:
                data = os.read(self._replies, 1 << 16)
                if not data:
                    return self._ended()
                self._unread += data
                if len(self._unread) > _REPLY_BYTES:
                    return self._gone(Status.CRASHED, f"the process sent more than {_REPLY_BYTES >> 20} MiB at once")
            elif self._process.poll() is not None:
                return self._ended()
            # Not before what came in time and waited for us to look has been read.
            if b"\n" not in self._unread:
                if time.monotonic() > self._deadline + _LATE_SECONDS * bool(ready):
                    return self._gone(Status.TIMED_OUT, f"no answer within {self._timeout:g} s")
                if too_much := self._takes_too_much():
                    return self._gone(*too_much)
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            return self._gone(Status.CRASHED, "the process sent something other than a reply")
        if isinstance(said := content.get("message"), str) and UNHEARD in said:
            self._log_reader.join(_POLL_SECONDS)  # its output may still be on the way
            before = self.log_tail(200).rpartition("Traceback (most")[0].rpartition("CalledProcessError")[2]
            content["message"] = said.replace(UNHEARD, f": {errors_of(before)}", 1)
        reply = Reply(content)
        if reply.fault_of_the_set is not None and (self._trusted or not self._has_solution):
            raise DerbyError(reply.fault_of_the_set)
        return reply

    def _takes_too_much(self) -> tuple[Status, str] | None:
        """Checks its memory and processes once a second while it works. The kernel's own limits would count memory that
        CUDA only reserves."""
        if time.monotonic() < self._looked_at + _LOOK_SECONDS:
            return None
        self._looked_at = time.monotonic()
        if (place := self.filled()) is not None:
            return Status.CRASHED, f"it filled {place}, and was ended"
        if (left := allowed.free_bytes()) < folders.LEAST_ROOM < self._free_before - left:  # whatever list shows it
            return Status.OUT_OF_MEMORY, f"the machine had {left / 2**30:.1f} GiB of memory left, and it was ended"
        orphans = processes.orphans(self._mark, self.known())
        pids = [self._process.pid, *processes.descendants(self._process.pid), *orphans]
        if len(pids) > (most_processes := processes.fitting(_MOST_PROCESSES)):
            return Status.CRASHED, f"the process started more than {most_processes} others, and was ended"
        if processes.threads(pids) > (most_threads := processes.fitting(_MOST_THREADS)):
            return Status.CRASHED, f"the process had more than {most_threads} threads, and was ended"
        if processes.hide_files(pids[1:]):
            return Status.CRASHED, "a process that it started hides its open files, and was ended"
        files, in_files = processes.held_by_files(pids, _MOST_FILES)
        if files > _MOST_FILES:
            return Status.CRASHED, f"the process had more than {_MOST_FILES} files open, and was ended"
        held = processes.held(pids) + in_files + processes.forgotten(pids, self._shared_before)
        if held > (most := processes.memory_limit()):
            text = f"it held {held / 2**30:.1f} GiB of the machine's memory, where {most / 2**30:.1f} are allowed"
            return Status.OUT_OF_MEMORY, text
        return None

    def ask(self, kind: type[Kind], command: str, timeout: float, /, **arguments: Any) -> Kind:
        """Sends a request and returns its answer. Failed if there is no answer of that kind."""
        self.send(command, timeout, **arguments)
        return self.receive().of(kind)

    def _ended(self) -> Reply:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:  # it closed its pipe but is alive
            code = None
        how = "closed its reply pipe" if code is None else _exit_text(code)
        return self._gone(Status.CRASHED, f"the process {how}")

    def _gone(self, status: Status, message: str) -> Reply:
        """Kills it if it is alive."""
        self.kill()
        tail = quoted(text(self.log_tail()))
        return Reply({"ok": False, "status": status, "message": f"{message}\n{tail}".strip()}, gone=True)

    def kill(self) -> None:
        """Ends the worker and everything it started, and gives the pipes back. Safe to call twice."""
        if self._requests < 0:
            return
        started = processes.descendants(self._process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for pid in started:
            processes.end(pid)
        self._process.wait()
        self._alive.discard(self._process.pid)
        with self._starting:
            processes.end_orphans(self.known())  # processes that had left its group or its parent
        self._log_reader.join(timeout=1)
        if not self._log_reader.is_alive():
            self._output.close()
        os.close(self._requests)
        os.close(self._replies)
        self._requests = self._replies = -1
        if self._scratch is not None:
            folders.remove_tree(self._scratch)
            if not self._trusted and self.filled() == self._places[-1]:  # its caches; the rows need room
                folders.remove_tree(self._places[-1])


def worker_environment(device: str = "cuda", own_package: bool = False, interprets: bool = True) -> dict[str, str]:
    """own_package: for an interpreter with other libraries. interprets: see WorkerProcess."""
    environment = {
        **folders.allowed_environment(os.environ),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        **folders.user_base(),  # as in a solution's: one fork server for all
    }
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    package = Path(kernelderby.__file__).resolve().parent.parent
    found = [_package_alone()] if own_package else [package, *(Path(each).resolve() for each in given)]
    environment["PYTHONPATH"] = os.pathsep.join(map(str, found))
    for name in ("TRITON_INTERPRET", "HELION_INTERPRET"):  # read at their import
        environment.pop(name, None)
    if device == "cpu":
        environment.setdefault("OMP_NUM_THREADS", "1")  # the interpreter's operations are too small to share
        if interprets:
            environment["TRITON_INTERPRET"] = "1"
        environment["CUDA_VISIBLE_DEVICES"] = ""  # even with a GPU, nothing may run on it
    else:  # one GPU is measured; timer and judge do not watch the machine's other GPUs
        environment["CUDA_VISIBLE_DEVICES"] = environment.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    return environment


@contextmanager
def interruptible() -> Iterator[None]:
    """A context for waiting for threads that wait for workers. If a signal ends the wait, the workers end, and so do
    the threads."""
    try:
        yield
    except BaseException:
        WorkerProcess.end_all()
        raise


def _kept_for_tuning(solution_hash: str) -> Path:
    """A cache for hundreds of trusted candidates, which is kept from run to run."""
    own = cache_folder() / "tuned" / solution_hash
    own.mkdir(parents=True, exist_ok=True)
    return own


def _package_alone() -> Path:
    """A folder with this package and nothing else, because the libraries of its environment lie beside an installed
    package."""
    package = Path(kernelderby.__file__).resolve().parent
    folder = cache_folder() / "package" / hashlib.sha256(str(package).encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (folder / "kernelderby").symlink_to(package, target_is_directory=True)
    return folder


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
