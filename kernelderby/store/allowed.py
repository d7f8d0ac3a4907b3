"""Memory and processes that this process may use: in a container, fewer than the machine has (cgroups(7))."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

_OWN, _GROUPS = "/proc/self/cgroup", "/sys/fs/cgroup"


def memory_bytes() -> float:
    """Of the machine, or of the container."""
    whole = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min([whole, *_limits("memory", ("memory.max", "memory.limit_in_bytes"))])


def processes() -> float:
    """And threads, together; infinite outside of a container."""
    return min([float("inf"), *_limits("pids", ("pids.max",))])


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
