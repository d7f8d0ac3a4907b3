"""The fence around a command that runs definitions in its own process: `derby check`, `bench` and `gate` judge there.

Its workers inherit it and add their own. It must be put on before a second thread begins, because a fence does not
reach existing threads.
"""

from __future__ import annotations

import os
import pwd
import shutil
import site
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from kernelderby.measure.fence import folders, landlock, powers, procfs, seccomp, watcher

_FIRST_USE = "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"


def enclose(
    writable: Collection[Path],
    readable: Collection[Path],
    locks: Path,
    scratch: Path,
    has_tool: bool = False,
    on_gpu: bool = False,
) -> None:
    """Fences that the kernel lacks are left out; derby doctor lists them. writable: places that the command writes.
    readable: parts of the user's home that it needs. locks: the folder of its lock files. scratch: for temporary files.
    has_tool: the command starts a profiler or a sanitizer, which needs sockets, powers, and its own files beside the
    locks. on_gpu: the command and its workers use a GPU (procfs.py); then there is no fence if the machine's part of
    /proc cannot be closed."""
    _make_devices()
    if on_gpu and not procfs.close_machine():
        return
    watcher.mark_this()
    if not has_tool:
        powers.give_up()
        seccomp.protect_from_judge(watcher.pids())
    own = [*folders.writable(scratch, scratch), *writable, *([locks] if has_tool else [])]
    needed = [each for each in map(Path.resolve, [*_libraries(), *readable]) if not _holds_a_home(each)]
    landlock.writes_only_beneath(own, [*_outside_of_homes(), *needed], {locks, scratch.parent}, [procfs.ROOT] * on_gpu)


def _make_devices() -> None:
    """At its first use on a machine CUDA creates devices, by itself or by a program with the setuid bit. Neither works
    behind the fence, so a process outside uses CUDA once."""
    if Path("/proc/driver/nvidia/version").exists():
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([sys.executable, "-I", "-S", "-c", _FIRST_USE], capture_output=True, timeout=60, check=False)


def _homes() -> set[Path]:
    found = {os.path.expanduser("~")}
    with suppress(KeyError):
        found.add(pwd.getpwuid(os.getuid()).pw_dir)
    return {Path(each).resolve() for each in found if os.path.isabs(each)}


def _outside_of_homes() -> Iterator[Path]:
    """All places except the hidden ones in the user's home, which hold keys, tokens, histories and settings of other
    programs. Landlock allows whole folders, so folders above a home are replaced by their entries."""
    homes = _homes()
    apart = {folder for home in homes for folder in (home, *home.parents)}
    for folder in apart:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                is_hidden = folder in homes and entry.name.startswith(".")
                if not is_hidden and not entry.is_symlink() and Path(entry.path) not in apart:
                    yield Path(entry.path)


def _libraries() -> Iterator[Path]:
    """The libraries of Python, its packages, compilers and CUDA, wherever they are in the home."""
    base = site.getuserbase()
    places = [sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path]
    places += [f"{base}/{part}" for part in ("bin", "lib", "include")]
    for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"):
        places += os.environ.get(name, "").split(os.pathsep)
    if nvcc := shutil.which("nvcc"):
        places.append(str(Path(nvcc).resolve().parents[1]))
    yield from map(Path, filter(None, places))


def _holds_a_home(folder: Path) -> bool:
    return any(home.is_relative_to(folder) for home in _homes())
