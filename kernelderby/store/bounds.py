"""The bounds of one verb, for any files that it reads: time, memory, bytes, SQLite's steps, names.

    with enforced(bounds, "report"):      # the command: bounds the whole verb
        with reading(path):               # a file: over a bound it is one DerbyError, and the next file is read
            ...
    with answering("rank"):               # a question of the API, in a program that goes on afterwards

No honest set meets the defaults.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from kernelderby.errors import DerbyError
from kernelderby.store import allowed

# Verbs that only read and write files; the last line is of `derby profile`. Verbs that measure, serve or wait have
# no bound of time and memory.
READING = frozenset(
    {"list", "show", "shapes", "rank", "roofline", "report", "pack", "export", "prompt", "merge"}
    | {"verify", "field", "capture", "explain"}
    | {"kernels", "activity", "stages", "layers", "whatif", "compare", "counters", "pace", "timeline"}
)
TRYING = frozenset({"doctor"})  # it starts processes that load libraries, so only its time is bounded
_SECONDS = 600.0
_OF_READING = 0.7  # share of the verb's time; the rest is for showing the result
_GRACE_SECONDS = 5.0  # then another process ends a verb that ignores signals
_AGAIN_SECONDS = 0.1
_PHYSICAL, _MOST_MEMORY = 0.75, 16 << 30  # of the memory that the machine has or the container may use, and bytes
_OF_PACKING = 8 << 30  # bytes: a definition's generate_inputs can take all memory if one axis is too long
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Bounds:
    """time: wall seconds of the verb; file: processor seconds of one file. memory: bytes of the process. If time or
    memory is None, enforced() chooses it for the verb. unpacked: bytes of one file, decompressed. steps: of SQLite's
    machine in one walk of a database. patterns: seconds of searching with the patterns of one file. names: number of
    one kind (GPUs of rows or of a profile, protocols; axes, inputs or constraints of a definition)."""

    time: float | None = None
    file: float = 120.0
    memory: float | None = None
    unpacked: float = 2 << 30
    steps: float = 20e9
    patterns: float = 20.0
    names: float = 300

    @classmethod
    def parse(cls, text: str) -> Bounds:
        """Reads "time=60,memory=4G". ValueError with the defect."""
        found: dict[str, float] = {}
        for word in filter(None, (word.strip() for word in text.split(","))):
            name, _, value = word.partition("=")
            number = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?(?:e\d{1,2})?)([KMG]?)", value.strip())
            if name not in cls.__dataclass_fields__ or number is None or not float(number[1]):
                known = ", ".join(cls.__dataclass_fields__)
                raise ValueError(f"{word:.40} is no bound; write name=number, names {known}; 4G is 4 x 2^30")
            found[name] = float(number[1]) * _UNITS[number[2]]
        return replace(cls(), **found)


class _Met(BaseException):
    """A bound of time is exceeded. It is no Exception, so no handler takes it for a defect of the current file."""

    def __init__(self, entry: _Deadline) -> None:
        self.entry = entry


@dataclass(eq=False, slots=True)
class _Deadline:
    """due: the end of its time, on the clock that measures it."""

    told: str
    due: float


@dataclass(slots=True)
class _Now:
    """The bounds in force. verb: the verb that they are for. option: where they are set. until: time.monotonic() after
    which no further file is read. last: the current file."""

    bounds: Bounds
    verb: str = ""
    option: str = "--bounds"
    until: float | None = None
    last: str = ""
    over: dict[str, str] = field(default_factory=dict)  # file of this verb -> the message about its bound


_now = _Now(Bounds())
_files: list[_Deadline] = []  # of files that are being read, outermost first
_watched: list[tuple[int, int]] = []  # results of _watch()


def bounds() -> Bounds:
    return _now.bounds


def remaining_bounds() -> str:
    """The remaining bounds of this verb for a process that it starts, as Bounds.parse() reads them."""
    found = {name: getattr(_now.bounds, name) for name in Bounds.__dataclass_fields__}
    if _now.until is not None:
        found["time"] = max(0.1, _now.until - time.monotonic())
    return ",".join(f"{name}={value:.9f}" for name, value in found.items() if value is not None)


def bound_text(name: str, most: float) -> str:
    """The end of a message about a bound."""
    unit = next((unit for unit in "GM" if name in ("memory", "unpacked") and most >= _UNITS[unit]), "")
    return f"the bound {name}={most / _UNITS[unit]:.10g}{unit}; remove it, or raise that with {_now.option}"


def expect_few(where: str, what: str, count: int) -> None:
    """DerbyError for more names of a kind than any honest file has."""
    if count > _now.bounds.names:
        raise DerbyError(f"{where}: {what}: {count:,} are more than {bound_text('names', _now.bounds.names)}")


@contextmanager
def reading(path: object) -> Iterator[None]:
    """DerbyError if a file takes more time or memory than the bounds allow. If reading() is nested, the earlier end
    counts."""
    _now.last, limits = str(path), _now.bounds
    if told := _now.over.get(str(path)):
        raise DerbyError(told)
    left, bound = limits.file, bound_text("file", limits.file)
    if _now.until is not None and (rest := _now.until - time.monotonic()) < left:
        left, bound = rest, bound_text("time", limits.time or 0)
        if rest <= 0:
            raise DerbyError(f"{path}: not read: other files took most of {bound}")
    try:
        with _timed(_Deadline(f"{path}: takes longer than {bound}", time.process_time() + left)):
            yield
    except MemoryError:
        bound = (
            bound_text("memory", limits.memory)
            if limits.memory
            else "there is; name fewer files, or end other programs"
        )
        raise _over_bound(f"{path}: needs more memory than {bound}") from None


def now_reading(path: object) -> None:
    """Names the file that is read piece by piece from here on, for the message at the end of the verb."""
    _now.last = str(path)


def _over_bound(told: str) -> DerbyError:
    """The error of the current file, which this verb does not read again."""
    if _now.until is not None:
        _now.over[_now.last] = told
    return DerbyError(told)


@contextmanager
def _timed(entry: _Deadline) -> Iterator[None]:
    """Ends the block by a signal. Only the main thread gets signals, and if another program part uses the signal, there
    is no end."""
    if threading.current_thread() is not threading.main_thread() or not (
        _files or signal.getsignal(signal.SIGPROF) is signal.SIG_DFL
    ):
        yield
        return
    try:
        with _unheard():
            _files.append(entry)
            _arm()
            yield
    except _Met as end:
        if end.entry is not entry:
            raise
        raise _over_bound(entry.told) from None
    finally:
        _files.remove(entry)
        _arm()


def _arm() -> None:
    if not _files:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        return
    signal.signal(signal.SIGPROF, _over)
    left = min(entry.due for entry in _files) - time.process_time()
    signal.setitimer(signal.ITIMER_PROF, max(left, 1e-3), _AGAIN_SECONDS)  # repeated, in case a handler caught it


def _over(_: int, frame: FrameType | None) -> None:
    for entry in _files:
        if time.process_time() >= entry.due and not _is_between(frame):
            raise _Met(entry)


def _is_between(frame: FrameType | None) -> bool:
    """Whether a `with` of this module begins or ends at this moment. An exception from there would miss its handler.
    The signal is repeated."""
    innermost = frame
    while frame is not None:
        if frame.f_code.co_filename in (__file__, *([contextlib.__file__] if frame is innermost else [])):
            return True
        frame = frame.f_back
    return False


@contextmanager
def _unheard() -> Iterator[None]:
    """Silences _Met in a destructor or in an import's callback, from where no exception propagates."""
    before = sys.unraisablehook

    def hook(what: Any) -> None:
        if not isinstance(what.exc_value, _Met):
            before(what)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def answering(verb: str) -> Iterator[None]:
    """A question of the API within the bounds of that verb, or of $DERBY_BOUNDS. Inside a verb, that verb's bounds
    hold. No other process ends this one, and memory that it holds already does not count."""
    if _now.verb:
        yield
        return
    try:
        asked = Bounds.parse(os.environ.get("DERBY_BOUNDS", ""))
    except ValueError as problem:
        raise DerbyError(f"$DERBY_BOUNDS: {problem}") from None
    with enforced(asked, verb, lives_on=True):
        yield


@contextmanager
def enforced(asked: Bounds | None, verb: str, lives_on: bool = False) -> Iterator[None]:
    """A verb of the command within its bounds. DerbyError if the whole verb exceeds them. A verb that does not only
    read has no bound of time and memory, unless the caller sets one. lives_on: see answering()."""
    before = _now.bounds, _now.verb, _now.option, _now.until, _now.last
    limits = asked or Bounds()
    if verb in READING or lives_on:
        usable = min(allowed.memory_bytes() * _PHYSICAL, _OF_PACKING if verb == "pack" else _MOST_MEMORY)
        limits = replace(limits, time=limits.time or _SECONDS, memory=limits.memory or usable)
    elif verb in TRYING:
        limits = replace(limits, time=limits.time or _SECONDS)
    began = time.monotonic()
    _now.bounds, _now.verb = limits, verb
    _now.option = "$DERBY_BOUNDS" if lives_on else "--bounds"
    _now.until = began + limits.time * _OF_READING if limits.time else None
    _now.over.clear()
    entry = _Deadline(f"{verb}: takes longer than {bound_text('time', limits.time or 0)}", began + (limits.time or 0))
    try:
        with _memory(limits.memory, _held() if lives_on else 0), _ended(entry, limits.time, lives_on):
            yield
    except _Met as end:
        if end.entry is not entry:
            raise
        raise DerbyError(entry.told + _of_file()) from None
    except MemoryError:
        if not limits.memory:
            raise
        raise DerbyError(f"{verb}: needs more memory than {bound_text('memory', limits.memory)}{_of_file()}") from None
    finally:
        _now.bounds, _now.verb, _now.option, _now.until, _now.last = before
        _now.over.clear()


def _of_file() -> str:
    return f" (in hand: {_now.last})" if _now.last else ""


@contextmanager
def _ended(entry: _Deadline, seconds: float | None, lives_on: bool) -> Iterator[None]:
    """Sends a signal when the time is over. Some seconds later another process ends this one, because a library's own
    loop ignores signals. If somebody else waits for that signal (a test runner), neither happens."""
    if (
        seconds is None
        or threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL
    ):
        yield
        return

    def over(_: int, frame: FrameType | None) -> None:
        if time.monotonic() >= entry.due and not _is_between(frame):
            raise _Met(entry)

    if not lives_on:
        _watched.append(_watch(seconds + _GRACE_SECONDS, f"derby: {entry.told}\n"))
    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_SECONDS)
    try:
        with _unheard():
            yield
    finally:
        leave()


def leave() -> None:
    """Removes the verb's bound of time, as before this process becomes another program."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while _watched:
        pid, held = _watched.pop()
        os.close(held)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _watch(seconds: float, told: str) -> tuple[int, int]:
    """Starts a process that ends this one after these seconds. It exits when its pipe is closed, for any reason.
    Returns its id, and the end of the pipe to close."""
    ours, held = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child:
        os.close(ours)
        return child, held
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        os.close(held)
        if not select.select([ours], [], [], seconds)[0] and os.getppid() == parent:
            os.write(2, told.encode("utf-8", "replace"))
            os.kill(parent, signal.SIGKILL)
    finally:
        os._exit(0)


@contextmanager
def _memory(most: float | None, held: int) -> Iterator[None]:
    """Bounds the memory of this process and its children. An allocation beyond it is a MemoryError and does not exhaust
    the machine. held: bytes that do not count."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if most and soft == resource.RLIM_INFINITY:
        wanted = int(most) + held if hard == resource.RLIM_INFINITY else min(int(most) + held, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _held() -> int:
    """Bytes of this process that RLIMIT_DATA counts."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmData"))
    except (OSError, StopIteration):
        return 0
