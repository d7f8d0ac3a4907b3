"""What torch's allocator wrote of memory into a trace: its [memory] events, each with what is held after it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kernelderby.profile.sources.events import CUDA_MEMORY
from kernelderby.profile.spans import MemoryUse

_MOST = 1 << 60  # bytes


def memory_of(events: Iterable[tuple[int, dict[str, Any]]]) -> list[MemoryUse]:
    """events: (time in ns, arguments). By GPU; those of hosts, and values that are no bytes, do not count."""
    found: dict[int, MemoryUse] = {}
    for time, args in sorted(events, key=lambda each: each[0]):
        device, held, kept = (args.get(name) for name in ("Device Id", "Total Allocated", "Total Reserved"))
        if args.get("Device Type") != CUDA_MEMORY or type(device) is not int or type(held) is not int:
            continue
        if not 0 <= held < _MOST or device < 0:
            continue
        reserved = kept if type(kept) is int and 0 <= kept < _MOST else None
        known = found.get(device)
        if known is None or held > known.peak_bytes:
            peak, at = held, time
        else:
            peak, at = known.peak_bytes, known.peak_at_ns
        most = max(
            (each for each in (reserved, known.reserved_bytes if known else None) if each is not None), default=None
        )
        found[device] = MemoryUse(0, device, peak, at, held, most)
    return [found[device] for device in sorted(found)]
