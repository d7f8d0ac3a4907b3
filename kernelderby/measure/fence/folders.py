"""Environment, caches, devices and disk space of a worker's process, and where it may write."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import site
import subprocess
from collections.abc import Mapping
from pathlib import Path

# What libraries read to find compilers, GPUs and their own files. Everything else of the user's environment stays here.
_NAMES = {
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "TERM",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "VIRTUAL_ENV",
    "CC",
    "CXX",
    "CPATH",
    "LIBRARY_PATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "MAX_JOBS",
    "XDG_CACHE_HOME",
    "PYTHONPATH",
    "PYTHONHOME",
    "HF_HOME",
    "CONDA_PREFIX",
}
_PREFIXES = (
    "LC_",
    "CUDA",
    "NVIDIA_",
    "NVCC_",
    "TORCH",
    "PYTORCH_",
    "TRITON_",
    "FLASHINFER_",
    "FIB_",
    "TVM_",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "SGL_",
    "SGLANG_",
    "DG_",
    "VLLM_",
    "DERBY_",
    "KERNELDERBY_",
    "NINJA_",
    "CUTE_",
    "CUTLASS_",
    "TILELANG_",
    "HELION_",
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|PRIVATE", re.IGNORECASE)


def allowed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that a worker gets."""
    return {
        name: value
        for name, value in environment.items()
        if (name in _NAMES or name.startswith(_PREFIXES)) and not _SECRET.search(name)
    }


# What says to a library where it keeps what it compiled, and the folder's name beneath the solution's own.
_CACHES = {
    "XDG_CACHE_HOME": "cache",
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "TORCHINDUCTOR_CACHE_DIR": "torch_inductor",
    "TVM_FFI_CACHE_DIR": "tvm_ffi",
    "DG_JIT_CACHE_DIR": "deep_gemm",
    "CUDA_CACHE_PATH": "cuda",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
}
PLACES = frozenset({*_CACHES, "HOME", "TMPDIR"})  # what differs in the environments of two workers


def own_caches(folder: Path) -> dict[str, str]:
    """The environment that keeps a solution's caches, and its home, in its own folder. The user's packages are found
    where they are."""
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    found = {name: str(folder / part) for name, part in _CACHES.items()}
    return {**found, "HOME": str(home), **user_base()}


def caches_of_judge(folder: Path) -> dict[str, str]:
    """Where libraries keep what they compile for a definition."""
    return {name: str(folder / part) for name, part in _CACHES.items() if name != "XDG_CACHE_HOME"}


def user_base() -> dict[str, str]:
    return {"PYTHONUSERBASE": site.getuserbase()}


# What swallows, gives zeros or random numbers, holds shared memory, or is a GPU. All others belong to the machine or to
# its users: terminals on which somebody reads what a run says, disks, consoles, watchdogs that restart it.
_DEVICES = ("null", "zero", "full", "random", "urandom", "shm")
_OF_GPUS = ("nvidia", "nvhost", "nvmap", "dri", "dxg", "gdrdrv", "infiniband")


def writable(own: Path, scratch: Path) -> list[Path]:
    """The only places that a solution's worker may write to: its caches, its temporary files, shared memory, GPUs and
    devices that are nothing to anybody, and its part of /proc."""
    devices = [
        path
        for path in Path("/dev").iterdir()
        if not path.is_symlink() and (path.name in _DEVICES or path.name.startswith(_OF_GPUS))
    ]
    return [own, scratch, *devices, Path("/proc/self")]


def readable() -> list[Path]:
    """Beneath these a solution's worker may read files: everywhere but in /dev, of which it may read what it may write.
    Whoever reads a terminal takes what is typed there and can change its settings; some devices do something when they
    are opened."""
    return [Path("/", name) for name in os.listdir("/") if name != "dev"]


def remove_tree(folder: Path) -> None:
    """However deep a solution has nested it: shutil.rmtree calls itself for each level."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL, check=False)


LEAST_ROOM = 1 << 30  # bytes that stay free where workers write, so that rows and rivals find a place
_SHARED_MEMORY = Path("/dev/shm")


def room(folder: Path) -> dict[Path, int]:
    """Free bytes where a worker may write: on the disk of this folder, and in shared memory."""
    found = {}
    for place in (folder, _SHARED_MEMORY):
        try:
            found[place] = shutil.disk_usage(place).free
        except OSError:
            continue
    return found


def filled(before: Mapping[Path, int], now: Mapping[Path, int]) -> Path | None:
    """The place of which nearly nothing is left, and that had more by as much."""
    for place, free in now.items():
        if free < LEAST_ROOM and before.get(place, 0) - free > LEAST_ROOM:
            return place
    return None
