"""How fast a workload could run on a GPU: the floors that memory and arithmetic set, from vendor peaks.

Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009. The work is what
no implementation can avoid (records.Cost), so a time below the floor is an error of measurement or of counting.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelderby.hardware import Gpu
from kernelderby.records import Cost


@dataclass(frozen=True, slots=True)
class Floors:
    """memory_us: all bytes at the peak bandwidth. compute_us: the flops of each dtype at its peak, one after another.
    floor_us: the larger. regime: which one that is, or "indexing" where there is no arithmetic to speak of."""

    memory_us: float
    compute_us: float
    floor_us: float
    regime: str  # memory | compute | indexing


def floors(cost: Cost, gpu: Gpu) -> Floors | None:
    """None when the GPU's file gives no peak for a dtype that the work is counted in: never a guess."""
    if any(count and dtype not in gpu.flops_per_second for dtype, count in cost.flops.items()):
        return None
    memory_us = (cost.bytes_read + cost.bytes_written) / gpu.memory_bytes_per_second * 1e6
    compute_us = sum(count / gpu.flops_per_second[dtype] for dtype, count in cost.flops.items() if count) * 1e6
    regime = "indexing" if compute_us == 0 else "compute" if compute_us > memory_us else "memory"
    return Floors(memory_us, compute_us, max(memory_us, compute_us), regime)


def arithmetic_intensity(cost: Cost) -> float:
    """Flops of all dtypes per byte moved; 0 when nothing is moved."""
    moved = cost.bytes_read + cost.bytes_written
    return sum(cost.flops.values()) / moved if moved else 0.0


def share_of_floor(floor_us: float, latency_us: float) -> float:
    """S = T_SOL / T_measured: 1 is the speed of light, 0.5 takes twice as long."""
    return floor_us / latency_us
