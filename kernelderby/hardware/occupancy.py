"""How many blocks of a kernel a multiprocessor holds at once, and what limits them.

Limits by compute capability and the granularity of registers: CUDA C++ Programming Guide, "Technical Specifications per
Compute Capability", and NVIDIA's occupancy calculator. A capability that is not listed has no answer, never a guess.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_WARP, _REGISTERS, _REGISTERS_OF_A_WARP, _SYSTEM_SHARED = 32, 65536, 256, 1024

HOPPER, MULTIPROCESSORS = "9.0", 132  # of an H100 or H200 SXM


@dataclass(frozen=True, slots=True)
class _Multiprocessor:
    warps: int
    blocks: int
    shared_bytes: int


_KNOWN = {
    "8.0": _Multiprocessor(64, 32, 164 << 10),
    "8.6": _Multiprocessor(48, 16, 100 << 10),
    "8.9": _Multiprocessor(48, 24, 100 << 10),
    "9.0": _Multiprocessor(64, 32, 228 << 10),
    "10.0": _Multiprocessor(64, 32, 228 << 10),
    "12.0": _Multiprocessor(48, 24, 100 << 10),
}


@dataclass(frozen=True, slots=True)
class Occupancy:
    """share: resident warps over the most that a multiprocessor holds. limit: registers | shared memory | threads |
    blocks."""

    blocks: int
    share: float
    limit: str


def occupancy(capability: str, threads: int, registers: int, shared_bytes: int) -> Occupancy | None:
    """threads: of a block. registers: of a thread. shared_bytes: of a block, static and dynamic. None for an unknown
    capability, and for a block that fits none of them."""
    known = _KNOWN.get(capability)
    if known is None or threads < 1:
        return None
    warps = -(-threads // _WARP)
    of_a_warp = -(-max(registers, 1) * _WARP // _REGISTERS_OF_A_WARP) * _REGISTERS_OF_A_WARP
    limits = {
        "threads": known.warps // warps,
        "registers": _REGISTERS // of_a_warp // warps,
        "shared memory": known.shared_bytes // (shared_bytes + _SYSTEM_SHARED),
        "blocks": known.blocks,
    }
    limit = min(limits, key=lambda name: limits[name])
    blocks = limits[limit]
    return Occupancy(blocks, blocks * warps / known.warps, limit) if blocks else None


@dataclass(frozen=True, slots=True)
class KernelDemand:
    """One launch of a kernel compiled for Hopper, or a kernel of a library (no grid, dynamic shared memory unknown).

    registers: of a thread. shared_bytes: of a block. threads: of a block, of a library the most that it allows."""

    kernel: str
    registers: int
    shared_bytes: int
    has_all_shared: bool
    threads: int | None = None
    grid: tuple[int, int, int] | None = None

    @property
    def occupancy(self) -> Occupancy | None:
        if self.threads is None:
            return None
        return occupancy(HOPPER, self.threads, self.registers, self.shared_bytes)

    @property
    def waves(self) -> float | None:
        """Blocks of the grid over those that the GPU holds at once."""
        if self.grid is None or self.occupancy is None:
            return None
        return math.prod(self.grid) / (self.occupancy.blocks * MULTIPROCESSORS)
