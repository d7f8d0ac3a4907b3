"""Memory and processes that this process may use: in a container, fewer than the machine has (cgroups(7)), and of
processes no more than the kernel has numbers for, or than one user may have."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_OWN, _GROUPS, _KERNEL = "/proc/self/cgroup", "/sys/fs/cgroup", "/proc/sys/kernel"


def memory_bytes() -> float:
    """Of the machine, or of the container."""
    whole = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min([whole, *_limits("memory", ("memory.max", "memory.limit_in_bytes"))])


def free_bytes() -> float:
    """What of it programs can still get: without the kernel's copies of files, which it gives back."""
    found = [float("inf")]
    with suppress(OSError, StopIteration), open("/proc/meminfo") as file:
        found.append(next(float(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:")))
    for folder in _folders("memory"):
        for most, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            with suppress(OSError, ValueError):
                limit, held = (float(Path(folder, name).read_text()) for name in (most, used))
                files = (
                    {"active_file", "inactive_file"}
                    if most == "memory.max"
                    else {"total_active_file", "total_inactive_file"}
                )
                lines = map(str.split, Path(folder, "memory.stat").read_text().splitlines())
                found.append(limit - held + sum(float(number) for name, number in lines if name in files))
    return min(found)


def processes() -> float:
    """And threads, together: of the container, the kernel and the user. Infinite if unknown."""
    found = [float("inf"), *_limits("pids", ("pids.max",))]
    for name in ("pid_max", "threads-max"):
        with suppress(OSError, ValueError), open(f"{_KERNEL}/{name}") as file:
            found.append(float(file.read()))
    of_user = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if of_user >= 0 and os.geteuid() != 0:  # root has no such limit
        found.append(of_user)
    return min(found)


def _limits(controller: str, names: tuple[str, ...]) -> Iterator[float]:
    """Of the groups that this process is in, and of those above them; both versions of cgroups."""
    for folder in _folders(controller):
        for name in names:
            with suppress(OSError, ValueError), open(f"{folder}/{name}") as file:
                yield float(file.read())


def _folders(controller: str) -> Iterator[str]:
    try:
        with open(_OWN) as file:
            lines = file.read().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number != "0" and controller not in controllers.split(","):
            continue
        top = _GROUPS if number == "0" else f"{_GROUPS}/{controller}"
        parts = path.strip("/").split("/") if path.strip("/") else []
        for count in range(len(parts) + 1):
            yield "/".join([top, *parts[:count]])
