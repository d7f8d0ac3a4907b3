"""The number of blocks of a kernel that a multiprocessor of Hopper holds at once, and its limits.

Limits and the granularity of registers: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"
(9.0), and NVIDIA's occupancy calculator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_WARP, _REGISTERS, _REGISTERS_OF_A_WARP, _SYSTEM_SHARED = 32, 65536, 256, 1024
_MOST_WARPS, _MOST_BLOCKS, _SHARED_BYTES = 64, 32, 228 << 10
MULTIPROCESSORS = 132  # multiprocessors of an H100 or H200 SXM


@dataclass(frozen=True, slots=True)
class Occupancy:
    """share: resident warps over the maximum of a multiprocessor. limit: registers | shared memory | threads |
    blocks."""

    blocks: int
    share: float
    limit: str


def occupancy(threads: int, registers: int, shared_bytes: int) -> Occupancy | None:
    """threads: per block. registers: per thread. shared_bytes: per block, static and dynamic. None for a block that
    does not fit."""
    if threads < 1:
        return None
    warps = -(-threads // _WARP)
    of_a_warp = -(-max(registers, 1) * _WARP // _REGISTERS_OF_A_WARP) * _REGISTERS_OF_A_WARP
    limits = {
        "threads": _MOST_WARPS // warps,
        "registers": _REGISTERS // of_a_warp // warps,
        "shared memory": _SHARED_BYTES // (shared_bytes + _SYSTEM_SHARED),
        "blocks": _MOST_BLOCKS,
    }
    limit = min(limits, key=lambda name: limits[name])
    blocks = limits[limit]
    return Occupancy(blocks, blocks * warps / _MOST_WARPS, limit) if blocks else None


@dataclass(frozen=True, slots=True)
class KernelDemand:
    """One launch of a kernel compiled for Hopper, or a kernel of a library (no grid, dynamic shared memory unknown).

    registers: per thread. shared_bytes: per block. threads: per block; for a library's kernel the maximum that it
    allows."""

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
        return occupancy(self.threads, self.registers, self.shared_bytes)

    @property
    def waves(self) -> float | None:
        """Blocks of the grid over the number of blocks that the GPU holds at once."""
        if self.grid is None or self.occupancy is None:
            return None
        return math.prod(self.grid) / (self.occupancy.blocks * MULTIPROCESSORS)
