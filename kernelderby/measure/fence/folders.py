"""Environment, caches, devices and disk space of a worker's process, and the places that it may write."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import site
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path

from kernelderby.store.files import MADE_FROM

# Variables by which libraries find compilers, GPUs and their own files. A worker gets no other variable of the user's
# environment.
_NAMES = {
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM", "LD_LIBRARY_PATH",
    "LD_PRELOAD", "VIRTUAL_ENV", "CC", "CXX", "CPATH", "LIBRARY_PATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH",
    "MAX_JOBS", "XDG_CACHE_HOME", "PYTHONPATH", "PYTHONHOME", "HF_HOME", "CONDA_PREFIX",
}  # fmt: skip
_PREFIXES = (
    "LC_", "CUDA", "NVIDIA_", "NVCC_", "TORCH", "PYTORCH_", "TRITON_", "FLASHINFER_", "FIB_", "TVM_", "OMP_", "MKL_",
    "OPENBLAS_", "SGL_", "SGLANG_", "DG_", "VLLM_", "DERBY_", "KERNELDERBY_", "NINJA_", "CUTE_", "CUTLASS_",
    "TILELANG_", "HELION_",
)  # fmt: skip
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|PRIVATE", re.IGNORECASE)


def allowed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that a worker gets."""
    return {
        name: value
        for name, value in environment.items()
        if (name in _NAMES or name.startswith(_PREFIXES)) and not _SECRET.search(name)
    }


# Variables that name a library's cache -> the folder's name inside the solution's folder.
_CACHES = {
    "XDG_CACHE_HOME": "cache", "TRITON_CACHE_DIR": "triton", "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "TORCHINDUCTOR_CACHE_DIR": "torch_inductor", "TVM_FFI_CACHE_DIR": "tvm_ffi", "DG_JIT_CACHE_DIR": "deep_gemm",
    "CUDA_CACHE_PATH": "cuda", "FLASHINFER_WORKSPACE_BASE": "flashinfer",
}  # fmt: skip
PLACES = frozenset({*_CACHES, "HOME", "TMPDIR"})  # variables that differ between two workers


def own_caches(folder: Path) -> dict[str, str]:
    """An environment with a solution's caches and home in its own folder. The user's packages stay where they are.
    Whatever a former process of the solution has put in the place of its home is replaced."""
    home = folder / "home"
    if home.is_symlink() or not home.is_dir():
        remove_tree(home)
    with contextlib.suppress(FileExistsError):  # of a second solution with this code, at the same time
        home.mkdir(parents=True, exist_ok=True)
    found = {name: str(folder / part) for name, part in _CACHES.items()}
    return {**found, "HOME": str(home), **user_base()}


def caches_of_judge(folder: Path) -> dict[str, str]:
    """The environment with the caches of libraries that compile code for a definition."""
    return {name: str(folder / part) for name, part in _CACHES.items() if name != "XDG_CACHE_HOME"}


def user_base() -> dict[str, str]:
    return {"PYTHONUSERBASE": site.getuserbase()}


# Devices that discard data, give zeros or random numbers, hold shared memory, or are GPUs. All others belong to the
# machine or its users: terminals with a run's output, disks, consoles, watchdogs that restart the machine.
_DEVICES = ("null", "zero", "full", "random", "urandom", "shm")
OF_GPUS = ("nvidia", "nvhost", "nvmap", "dri", "dxg", "gdrdrv", "infiniband")


def writable(own: Path, scratch: Path) -> list[Path]:
    """The only places that a solution's worker may write: its caches, its temporary files, shared memory, GPUs,
    harmless devices, and its part of /proc."""
    devices = [
        path
        for path in Path("/dev").iterdir()
        if not path.is_symlink() and (path.name in _DEVICES or path.name.startswith(OF_GPUS))
    ]
    return [own, scratch, *devices, Path("/proc/self")]


def readable(hidden: Collection[Path] = ()) -> list[Path]:
    """A solution's worker may read files beneath these: everywhere except in `hidden` and in /dev, where it may read
    only what it may write. Reading a terminal would take its input and allow changing its settings, and opening some
    devices has effects. A file that it may open it may also lock. Landlock allows whole folders, so folders above a
    hidden one are replaced by their present entries."""
    apart = {Path("/dev"), *(each.resolve() for each in hidden)}
    above = {parent for each in apart for parent in each.parents}
    found, unlisted = list[Path](), list[Path]()
    for folder in above:
        try:
            with os.scandir(folder) as entries:
                found += [Path(each.path) for each in entries if not each.is_symlink()]
        except OSError:  # as a whole: libraries may lie there
            unlisted.append(folder)
    return [*unlisted, *(each for each in found if each not in above and each not in apart)]


def with_rows(root: Path) -> list[Path]:
    """Places with the rows of a set, and of the set from which it is made, and with the words and times of solutions
    that were tuned. A worker could lock them, and find there what it said in another run."""
    home = root / MADE_FROM
    return [
        place
        for each in ([root, home.resolve()] if home.is_symlink() else [root])
        for place in (each / "traces", each / "reports" / "bench", *each.glob("reports/tune/*.jsonl"))
    ]


def remove_tree(folder: Path) -> None:
    """Removes a tree of any depth, and folders that their maker made unreadable: otherwise a solution would find there
    what it wrote in an earlier run. shutil.rmtree calls itself for each level."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        opened = [] if folder.is_symlink() else [["chmod", "-R", "u+rwx"]]  # it would open what the link leads to
        for words in (*opened, ["rm", "-rf"]):
            subprocess.run([*words, "--", str(folder)], stderr=subprocess.DEVNULL, check=False)


LEAST_ROOM = 1 << 30  # bytes that stay free where workers write, so that rows and rivals have space
OF_A_FILE = 4096  # bytes that the smallest file takes
_SHARED_MEMORY = Path("/dev/shm")


def room(*places: Path) -> dict[Path, int]:
    """Free bytes in the places that a worker may write: on the disks of these folders, and in shared memory. A disk
    that has room for few files more has as little as these take."""
    found = {}
    for place in (*places, _SHARED_MEMORY):
        try:
            found[place], disk = shutil.disk_usage(place).free, os.statvfs(place)
        except OSError:
            continue
        if disk.f_files:  # otherwise it makes as many as have room
            found[place] = min(found[place], disk.f_favail * OF_A_FILE)
    return found


def filled(before: Mapping[Path, int], now: Mapping[Path, int]) -> Path | None:
    """The place that is nearly full and had enough space before."""
    for place, free in now.items():
        if free < LEAST_ROOM and before.get(place, 0) - free > LEAST_ROOM:
            return place
    return None
