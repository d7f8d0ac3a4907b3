"""The fence around a command that runs definitions in its own process: `derby check`, `bench` and `gate` judge there.

Its workers inherit it, and have their own on top. It is put on before a second thread begins: a thread keeps what it
has.
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
    """What the kernel lacks is left out: derby doctor says so. writable: what the command writes. readable: what it
    needs of the user's home. locks: the folder where it makes lock files. scratch: for temporary files. has_tool: it
    starts a profiler or a sanitizer, which needs sockets, powers and files of its own beside the locks. on_gpu: it and
    its workers use one (procfs.py); no fence then where the machine's part of /proc cannot be closed."""
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
    """CUDA makes devices when it is used first on a machine, by itself or by a program with the setuid bit; behind the
    fence neither can. So a process outside of it uses CUDA once."""
    if Path("/proc/driver/nvidia/version").exists():
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([sys.executable, "-I", "-S", "-c", _FIRST_USE], capture_output=True, timeout=60, check=False)


def _homes() -> set[Path]:
    found = {os.path.expanduser("~")}
    with suppress(KeyError):
        found.add(pwd.getpwuid(os.getuid()).pw_dir)
    return {Path(each).resolve() for each in found if os.path.isabs(each)}


def _outside_of_homes() -> Iterator[Path]:
    """Everything but what is hidden in the user's home: keys, tokens, histories and settings of other programs lie
    there. Landlock allows whole folders, so those above a home are taken apart."""
    homes = _homes()
    apart = {folder for home in homes for folder in (home, *home.parents)}
    for folder in apart:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                is_hidden = folder in homes and entry.name.startswith(".")
                if not is_hidden and not entry.is_symlink() and Path(entry.path) not in apart:
                    yield Path(entry.path)


def _libraries() -> Iterator[Path]:
    """Python's own, its packages', compilers' and CUDA's, wherever in the home they lie."""
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
