"""The first steps of a command that judges in its own process, before it reads anything.

It begins again in an environment without the user's secrets, and puts on the fence for definitions, which run there
(fence/enclosed.py). On a CPU it then imports torch once for the judge and its workers, forks the fork server, and goes
on as the judge. Workers can read everything that a process holds when it forks. So it forks before it opens a set or
draws a secret, and does not fork if the command line has a secret.
"""

from __future__ import annotations

import atexit
import os
import re
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from kernelderby.measure.fence import enclosed, folders, watcher
from kernelderby.measure.fence.folders import allowed_environment
from kernelderby.measure.wire import start
from kernelderby.measure.wire.process import worker_environment
from kernelderby.measure.wire.sources import cache_folder
from kernelderby.store.appended import lock_folder
from kernelderby.store.bounds import leave

_OF_THE_COMMAND = re.compile(r"COLUMNS|LINES|NO_COLOR|FORCE_COLOR|PWD|CI|PYTHON[A-Z]+")
_FENCED_ON_GPUS = False  # not tried there yet
_PROGRAMS = ("derby", "kernelderby.__main__", "kernelderby.cli.__main__", "kernelderby.measure.cluster.__main__")
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGALRM)


def begin_judging(
    root: Path,
    writable: Sequence[Path] = (),
    readable: Sequence[Path | str] = (),
    on_gpu: bool = True,
    shares_torch: bool = False,
    has_tool: bool = False,
    before: Callable[[], object] = lambda: None,
) -> None:
    """Without effect unless this process is a command that has just begun; then there is no fence, and workers begin as
    usual. writable, readable: places in the user's home, besides caches and the set. shares_torch: with workers on a
    CPU. has_tool: see enclose(). before: raises if there is nothing to begin; nothing that it reads stays in memory."""
    if not _has_just_begun():
        return
    leave_folder_that_is_gone()
    if on_gpu and not _FENCED_ON_GPUS:
        return
    scratch = _scratch_of_this()
    if scratch is None:
        before()
        _begin_again()
        return
    caches = cache_folder()
    for folder in (caches, *(each for each in writable if each.parent == root and (root / "definitions").is_dir())):
        with suppress(OSError):  # writing there gives the error
            folder.mkdir(parents=True, exist_ok=True)
    given = {Path(each).absolute() for each in readable}
    locks = lock_folder()
    enclosed.enclose(
        [*writable, caches],
        [root, caches, *writable, *given, *(each.resolve() for each in given)],
        *(locks.parent if has_tool else locks, scratch, has_tool, on_gpu),
    )
    if shares_torch and not any(each.startswith("--secret") for each in sys.argv[1:]):
        _import_torch_for_all()


def leave_folder_that_is_gone() -> None:
    """Leaves a removed working directory, in which oneMKL would end a process that loads torch."""
    try:
        os.getcwd()
    except FileNotFoundError:
        os.chdir("/")


def _begin_again() -> None:
    """Starts the command again, with a folder for temporary files and the judge's caches."""
    own = {name: value for name, value in os.environ.items() if _OF_THE_COMMAND.fullmatch(name)}
    environment = allowed_environment(os.environ) | own | folders.caches_of_judge(cache_folder() / "judge")
    environment["TMPDIR"] = tempfile.mkdtemp(prefix=watcher.OF_JUDGE)
    sys.stdout.flush()
    leave()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _scratch_of_this() -> Path | None:
    """The folder that _begin_again() has made. It is removed at the end."""
    folder = Path(os.environ.get("TMPDIR", "/"))
    if not folder.name.startswith(watcher.OF_JUDGE) or not folder.is_dir():
        return None
    atexit.register(folders.remove_tree, folder)
    return folder


@contextmanager
def _signals_later() -> Iterator[None]:
    """Postpones signals: an exception that a handler raises inside a library's C++ would end the process or get lost.
    The first signal is handled at the end. A second one, a second later, ends the process."""
    before = {number: signal.getsignal(number) for number in _SIGNALS[:3]}
    came: list[tuple[int, float]] = []

    def hear(number: int, frame: object) -> None:
        if came and time.monotonic() > came[0][1] + 1:
            os._exit(128 + number)
        came.append((number, time.monotonic()))

    for number, handler in before.items():
        if callable(handler):
            signal.signal(number, hear)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            os.kill(os.getpid(), came[0][0])


def _import_torch_for_all() -> None:
    given = {name: os.environ.get(name) for name in start.THREADS}
    os.environ.update(dict.fromkeys(start.THREADS, "1"))
    try:
        with _signals_later():
            import torch  # noqa: F401
    except (ImportError, OSError):  # the check gives the error
        return
    finally:
        for name, value in given.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    if len(os.listdir("/proc/self/task")) == 1:  # a fork would keep the locks that other threads hold
        start.fork_here(worker_environment("cpu"), _serve)


def _has_just_begun() -> bool:
    """Whether the program is the command itself, or the process that measures for a cluster's driver."""
    main = sys.modules["__main__"]
    name = getattr(main.__spec__, "name", None) or os.path.basename(getattr(main, "__file__", None) or "")
    own = sys.argv[1:]
    return (
        sys.platform.startswith("linux")
        and name in _PROGRAMS
        and sys.orig_argv[len(sys.orig_argv) - len(own) :] == own
        and "torch" not in sys.modules
    )


def _serve(channel: int, environment: dict[str, str]) -> None:
    """Becomes the process that start.ForkServer starts elsewhere: python -P -m ...worker.fork_server CHANNEL."""
    import gc

    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for each in map(int, os.listdir("/proc/self/fd")):
        if each < 3:
            os.dup2(nothing, each)
        elif each != channel:
            try:
                os.close(each)
            except OSError:  # the folder's own
                continue
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)
    os.environ.clear()
    os.environ.update(environment)
    sys.dont_write_bytecode = True
    if not sys.flags.safe_path:
        del sys.path[0]
    atexit._clear()
    gc.set_threshold(700, 10, 10)
    import torch

    torch.set_num_threads(1)
    sys.argv = ["fork_server", str(channel)]
    runpy.run_module(start.FORK_SERVER, run_name="__main__")
