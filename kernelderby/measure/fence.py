"""What a worker's process gets and may do and leave behind: environment, caches, signals, descendants."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import signal
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

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
    """Where what a solution compiled lies: no solution finds that of another, or of its own former sources."""
    folder = base / "built" / solution_hash
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def own_caches(folder: Path) -> dict[str, str]:
    """The environment that keeps a solution's caches in its own folder. FlashInfer's modules that the user compiled
    beforehand are taken from where they are: some need many minutes."""
    built_before = (Path.home() / ".cache/flashinfer").is_dir() or "FLASHINFER_WORKSPACE_BASE" in os.environ
    return {
        name: str(folder / part)
        for name, part in _CACHES.items()
        if not (built_before and name == "FLASHINFER_WORKSPACE_BASE")
    }


_OF_THE_MACHINE = ("kmsg", "mem", "kmem", "port", "nvram", "log", "initctl")


def writable(own: Path, scratch: Path) -> list[Path]:
    """The only places that a solution's worker may write to: its caches, its temporary files, shared memory, devices
    that are no disk and no kernel log, its part of /proc, and FlashInfer's modules where own_caches() leaves them."""
    devices = [
        path
        for path in Path("/dev").iterdir()
        if not path.is_symlink() and not path.is_block_device() and path.name not in _OF_THE_MACHINE
    ]
    flashinfer = Path(os.environ.get("FLASHINFER_WORKSPACE_BASE") or Path.home()) / ".cache/flashinfer"
    return [own, scratch, *devices, Path("/proc/self"), flashinfer]


def memory_limit() -> int:
    """Bytes of the machine's memory that a worker and all that it started may hold."""
    return int(0.8 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


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


@dataclass(frozen=True, slots=True)
class _Calls:
    architecture: int
    refused: dict[str, int]
    signals: dict[str, int]
    of_a_process: dict[str, int]
    of_a_second: dict[str, int]
    socket: int


# A seccomp filter (<linux/seccomp.h>, <linux/filter.h>): no look into other processes, no signals to those that run
# the race, no limits, priorities or processors of anybody else, no network, nothing that only the machine's owner does.
# System calls by machine: the audit architecture; those that are refused (io_uring would go round the filter); those
# that signal or schedule the process that their first argument names; those whose first argument names a process (0:
# itself), and those whose second does; socket().
_CALLS = {
    "x86_64": _Calls(
        0xC000003E,
        {
            **{"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312},
            **{"pidfd_send_signal": 424, "pidfd_getfd": 438, "process_madvise": 440, "process_mrelease": 448},
            **{"io_uring_setup": 425, "bpf": 321, "mount": 165, "umount2": 166, "pivot_root": 155, "setns": 308},
            **{"init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246},
            **{"kexec_file_load": 320, "reboot": 169, "swapon": 167, "swapoff": 168, "settimeofday": 164},
            **{"clock_settime": 227, "clock_adjtime": 305, "adjtimex": 159, "iopl": 172, "ioperm": 173},
        },
        {"kill": 62, "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297}
        | {"sched_setaffinity": 203, "sched_setparam": 142, "sched_setscheduler": 144, "sched_setattr": 314},
        {"prlimit64": 302},
        {"setpriority": 141, "ioprio_set": 251},
        41,
    ),
    "aarch64": _Calls(
        0xC00000B7,
        {
            **{"ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272},
            **{"pidfd_send_signal": 424, "pidfd_getfd": 438, "process_madvise": 440, "process_mrelease": 448},
            **{"io_uring_setup": 425, "bpf": 280, "mount": 40, "umount2": 39, "pivot_root": 41, "setns": 268},
            **{"init_module": 105, "finit_module": 273, "delete_module": 106, "kexec_load": 104},
            **{"kexec_file_load": 294, "reboot": 142, "swapon": 224, "swapoff": 225, "settimeofday": 170},
            **{"clock_settime": 112, "clock_adjtime": 266, "adjtimex": 171},
        },
        {"kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240}
        | {"sched_setaffinity": 122, "sched_setparam": 118, "sched_setscheduler": 119, "sched_setattr": 274},
        {"prlimit64": 261},
        {"setpriority": 140, "ioprio_set": 30},
        198,
    ),
}
_NETWORKS = [2, 10, 17]  # AF_INET, AF_INET6, AF_PACKET
_PR_GET_SECCOMP, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 21, 22, 38, 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24  # in struct seccomp_data, little endian


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def has_seccomp() -> bool:
    try:
        return platform.machine() in _CALLS and ctypes.CDLL(None).prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) == 0
    except (OSError, AttributeError):
        return False


def protect(processes: Collection[int]) -> bool:
    """From now on this process, and all that it starts, can signal none of these processes or their groups, trace
    nobody, change nobody else's limits and priority, and open no connection. False where the kernel cannot."""
    if not has_seccomp():
        return False
    calls = _CALLS[platform.machine()]
    targets = sorted({value & 0xFFFFFFFF for pid in processes for value in (pid, -pid)} | {0xFFFFFFFF})
    program = _filter(calls, {**dict.fromkeys(calls.signals.values(), targets), calls.socket: _NETWORKS})
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return bool(libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(_Program(len(program) // 8, program)), 0, 0) == 0)


def _filter(calls: _Calls, guarded: Mapping[int, Collection[int]]) -> bytes:
    """The instructions: EPERM for refused calls, for guarded ones when the first argument is one of those given, and
    for those of a process when that is not 0."""
    code = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, calls.architecture)]
    code += [(_RETURN, 0, 0, _ALLOW), (_LOAD, 0, 0, _NUMBER)]
    for number in calls.refused.values():
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    for number, targets in guarded.items():
        looked_at = [(_LOAD, 0, 0, _FIRST_ARGUMENT)]
        for target in targets:
            looked_at += [(_EQUAL, 0, 1, target), (_RETURN, 0, 0, _REFUSE)]
        looked_at.append((_RETURN, 0, 0, _ALLOW))
        code += [(_EQUAL, 0, len(looked_at), number), *looked_at]
    for place, numbers in ((_FIRST_ARGUMENT, calls.of_a_process), (_SECOND_ARGUMENT, calls.of_a_second)):
        for number in numbers.values():
            only_itself = [(_LOAD, 0, 0, place), (_EQUAL, 0, 1, 0), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
            code += [(_EQUAL, 0, len(only_itself), number), *only_itself]
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *each) for each in code)
