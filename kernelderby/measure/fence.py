"""What a worker's process gets and may leave behind: its environment, its caches, its descendants."""

from __future__ import annotations

import ctypes
import os
import re
import signal
from collections.abc import Collection, Mapping
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>

# What libraries read to find compilers, GPUs and their own files. Everything else of the user's environment stays here.
_NAMES = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM", "LD_LIBRARY_PATH",
          "LD_PRELOAD", "VIRTUAL_ENV", "CC", "CXX", "CPATH", "LIBRARY_PATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH",
          "MAX_JOBS", "XDG_CACHE_HOME", "PYTHONPATH", "PYTHONHOME", "HF_HOME"}
_PREFIXES = ("LC_", "CUDA", "NVIDIA_", "NVCC_", "TORCH", "PYTORCH_", "TRITON_", "FLASHINFER_", "FIB_", "TVM_", "OMP_",
             "MKL_", "OPENBLAS_", "SGL_", "SGLANG_", "DG_", "VLLM_", "DERBY_", "KERNELDERBY_", "NINJA_")
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|PRIVATE", re.IGNORECASE)


def allowed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that a worker gets."""
    return {name: value for name, value in environment.items()
            if (name in _NAMES or name.startswith(_PREFIXES)) and not _SECRET.search(name)}


def own_caches(base: Path, solution_hash: str) -> dict[str, str]:
    """Where a solution's compiled kernels lie: no solution finds those of another, or of its own former sources."""
    folder = base / "built" / solution_hash
    folder.mkdir(parents=True, exist_ok=True)
    return {"TRITON_CACHE_DIR": str(folder / "triton"), "TORCH_EXTENSIONS_DIR": str(folder / "torch_extensions")}


def adopt_orphans() -> bool:
    """From now on the descendants of our children become ours when their parents end. False where the kernel cannot."""
    try:
        return ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
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
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass
    return ended


def end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def children(pid: int) -> list[int]:
    """Of all its threads."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in path.read_text().split()]
        except (OSError, ValueError):
            continue
    return found


def descendants(pid: int) -> list[int]:
    """The deepest first."""
    found: list[int] = []
    for child in children(pid):
        found += [*descendants(child), child]
    return found


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None
