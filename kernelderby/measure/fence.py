"""What a worker's process gets and may do and leave behind: environment, caches, signals, descendants."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.files import reason

_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>

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
PLACES = frozenset({*_CACHES, "TMPDIR"})  # what differs in the environments of two workers


def own_folder(base: Path, solution_hash: str) -> Path:
    """Where what a solution compiled lies: no solution finds that of another, or of its own former sources. DerbyError
    where it cannot be made."""
    folder = base / "built" / solution_hash
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        told = f"{folder}: what a solution compiles cannot be cached there ({reason(error)})"
        raise DerbyError(f"{told}; set $XDG_CACHE_HOME to a folder that you may write to") from None
    return folder


def own_caches(folder: Path) -> dict[str, str]:
    """The environment that keeps a solution's caches in its own folder. FlashInfer's modules that the user compiled
    beforehand are taken from where they are: some need many minutes."""
    built_before = (_home() / ".cache/flashinfer").is_dir() or "FLASHINFER_WORKSPACE_BASE" in os.environ
    return {
        name: str(folder / part)
        for name, part in _CACHES.items()
        if not (built_before and name == "FLASHINFER_WORKSPACE_BASE")
    }


# What swallows, gives zeros or random numbers, holds shared memory, or is a GPU. All others belong to the machine or to
# its users: terminals on which somebody reads what a run says, disks, consoles, watchdogs that restart it.
_DEVICES = ("null", "zero", "full", "random", "urandom", "shm")
_OF_GPUS = ("nvidia", "nvhost", "nvmap", "dri", "dxg", "gdrdrv", "infiniband")


def _home() -> Path:
    return Path(os.path.expanduser("~"))  # of a user whom nobody knows it is a name that does not exist


def writable(own: Path, scratch: Path) -> list[Path]:
    """The only places that a solution's worker may write to: its caches, its temporary files, shared memory, GPUs and
    devices that are nothing to anybody, its part of /proc, and FlashInfer's modules where own_caches() leaves them."""
    devices = [
        path
        for path in Path("/dev").iterdir()
        if not path.is_symlink() and (path.name in _DEVICES or path.name.startswith(_OF_GPUS))
    ]
    flashinfer = Path(os.environ.get("FLASHINFER_WORKSPACE_BASE") or _home()) / ".cache/flashinfer"
    return [own, scratch, *devices, Path("/proc/self"), flashinfer]


def remove_tree(folder: Path) -> None:
    """However deep a solution has nested it: shutil.rmtree calls itself for each level."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL, check=False)


def memory_limit() -> int:
    """Bytes of the machine's memory that a worker and all that it started may hold."""
    return int(0.8 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


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


def held(pids: Collection[int]) -> int:
    """Bytes of memory that these processes hold; what they share counts for each."""
    pages = 0
    for pid in pids:
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")


def adopt_orphans() -> bool:
    """From now on the descendants of our children become ours when their parents end. False where the kernel cannot."""
    try:
        return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def end_orphans(known: Collection[int]) -> list[int]:
    """Kills, with all that they started, the children of this process that came from a worker: they stand in another
    session than we do. known: those that are to live. Gives the process ids."""
    ended = []
    for _ in range(8):  # who is killed hands its own children on
        orphans = [pid for pid in children(os.getpid()) if pid not in known and _session(pid) != os.getsid(0)]
        if not orphans:
            break
        for pid in orphans:
            for each in (*descendants(pid), pid):
                end(each)
                ended.append(each)
        for pid in orphans:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
    return ended


def end(pid: int) -> None:
    signalled(pid, signal.SIGKILL)


def signalled(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def has_open(pid: int, file: os.stat_result) -> bool:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:  # it has ended
        return False
    for each in descriptors:
        try:
            found = os.stat(f"/proc/{pid}/fd/{each}")
        except OSError:
            continue
        if (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino):
            return True
    return False


def children(pid: int) -> list[int]:
    """Of all its threads. Plain calls: it is asked of a hundred threads a process, before every turn."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # it has ended
        return found
    for thread in threads:
        try:
            descriptor = os.open(f"/proc/{pid}/task/{thread}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            while data := os.read(descriptor, 1 << 16):
                found += [int(child) for child in data.split()]
        except OSError:
            continue
        finally:
            os.close(descriptor)
    return found


def descendants(pid: int) -> list[int]:
    """The deepest first. However deep: a process may start one that starts one."""
    found, generation = [], children(pid)
    while generation:
        found += generation
        generation = [each for parent in generation for each in children(parent)]
    return found[::-1]


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None
