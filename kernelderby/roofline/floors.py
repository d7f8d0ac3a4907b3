"""The minimum time of a workload on a GPU: the floors that memory and arithmetic set, from vendor peaks. And S, floor
over time: by shape, by operator, and over operators weighted by importance.

Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009. The work is the
part that no implementation can avoid (measurement.Cost), so a time below the floor is an error of measurement or of
counting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high

from kernelderby.hardware import Gpu
from kernelderby.rows.measurement import Cost
from kernelderby.statistics.means import geometric_mean

COMPUTE_FROM = 10.0  # flop per byte: the operator survey calls operators above it compute-bound, on every GPU


@dataclass(frozen=True, slots=True)
class Floors:
    """memory_us: all bytes at the peak bandwidth. compute_us: the flops of each dtype at its peak, one after another.
    floor_us: the larger of the two. regime: which one is larger, or "indexing" if there is hardly any arithmetic."""

    memory_us: float
    compute_us: float
    floor_us: float
    regime: str  # memory | compute | indexing


def floors(cost: Cost, gpu: Gpu, in_place: bool = False) -> Floors | None:
    """in_place: for a solution that writes into its inputs' memory, and so does not copy unchanged data. None if the
    GPU's file lacks a peak for a dtype of the work: never a guess."""
    if any(count and dtype not in gpu.flops_per_second for dtype, count in cost.flops.items()):
        return None
    moved = cost.bytes_read + cost.bytes_written
    if in_place and cost.bytes_in_place is not None:
        moved = min(moved, cost.bytes_in_place)
    memory_us = moved / gpu.memory_bytes_per_second * 1e6
    compute_us = sum(count / gpu.flops_per_second[dtype] for dtype, count in cost.flops.items() if count) * 1e6
    regime = "indexing" if compute_us == 0 else "compute" if compute_us > memory_us else "memory"
    return Floors(memory_us, compute_us, max(memory_us, compute_us), regime)


def arithmetic_intensity(cost: Cost) -> float:
    """Flops of all dtypes per byte moved; 0 if nothing is moved."""
    moved = cost.bytes_read + cost.bytes_written
    return sum(cost.flops.values()) / moved if moved else 0.0


def operator_regime(intensities: Sequence[float]) -> str:
    """C, M or I of an operator from the flop per byte of its shapes, the same on every GPU.

    I (indexing): no shape has arithmetic. C: the median exceeds COMPUTE_FROM. M: the rest. Empty: nothing is known.
    """
    if not intensities:
        return ""
    if not any(intensities):
        return "I"
    return "C" if median_high(intensities) > COMPUTE_FROM else "M"


def share_of_floor(floor_us: float, latency_us: float) -> float:
    """S = T_SOL / T_measured: 1 is the hardware's limit, 0.5 takes twice as long."""
    return floor_us / latency_us


def share_on(gpu: Gpu | None, cost: Cost | None, latency_us: float, in_place: bool = False) -> float | None:
    """S of a time on a GPU; None if the GPU is unknown or lacks a peak, or the cost was not counted."""
    floor = floors(cost, gpu, in_place) if gpu and cost else None
    return share_of_floor(floor.floor_us, latency_us) if floor else None


def fair_floor_us(
    gpu: Gpu | None, cost: Cost | None, empty_kernel_us: float | None, in_place: bool = False
) -> float | None:
    """T_ref: the time that a kernel can hope to reach. It is the largest of three times: the flops and the necessary
    bytes, both at this GPU's measured ceilings, and an empty kernel under the same protocol. None if one is unknown."""
    if gpu is None or cost is None or empty_kernel_us is None:
        return None
    reached = gpu.at_ceilings()
    if reached is None:
        return None
    limits = floors(cost, reached)
    if limits is None:
        return None
    memory_us = cost.needed(in_place) / reached.memory_bytes_per_second * 1e6
    return max(limits.compute_us, memory_us, empty_kernel_us)


def fair_share(floor_us: float | None, latency_us: float | None) -> float | None:
    """S_fair = min(1, T_ref / T)."""
    return min(1.0, floor_us / latency_us) if floor_us is not None and latency_us else None


@dataclass(frozen=True, slots=True)
class FairShare:
    """S_fair of an operator. measured: the geomean over the shapes that have one, None without any. everywhere:
    measured, multiplied by the share of shapes that have one."""

    measured: float | None
    everywhere: float


def operator_fair_share(shares: Sequence[float | None]) -> FairShare:
    """shares: S_fair of every shape of the operator, None without a time or a T_ref."""
    known = [share for share in shares if share is not None]
    if not known:
        return FairShare(None, 0.0)
    geomean = geometric_mean(known)
    return FairShare(geomean, geomean * len(known) / len(shares))


@dataclass(frozen=True, slots=True)
class OperatorShare:
    """S of an operator: the upper median over its shapes. measured: over the shapes that have an S, None without any.
    everywhere: shapes without one count as 0."""

    measured: float | None
    everywhere: float
    shapes: int  # with an S
    of_shapes: int


def operator_share(shares: Sequence[float | None]) -> OperatorShare:
    """shares: S of every shape of the operator, None without a time."""
    known = [share for share in shares if share is not None]
    if not shares:  # its workloads were left out
        return OperatorShare(None, 0.0, 0, 0)
    return OperatorShare(
        median_high(known) if known else None,
        median_high([share or 0.0 for share in shares]),
        len(known),
        len(shares),
    )


@dataclass(frozen=True, slots=True)
class WeightedShare:
    """S over operators, weighted by importance. measured: over the operators that have an S, divided by their weights
    only; None without any. everywhere: an operator or a shape without an S counts as 0. weight: the measured operators'
    share of the importance."""

    measured: float | None
    everywhere: float
    operators: int  # with an S
    of_operators: int
    weight: float


def weighted_share(
    operators: Mapping[str, OperatorShare | FairShare], importance: Mapping[str, float]
) -> WeightedShare:
    """importance: operator -> any positive number; each is divided by their sum. Operators without an importance do not
    count. Operators that have one and are not in `operators` have no S."""
    total = sum(importance.values())
    known = [
        (importance[name], each.measured, each.everywhere)
        for name in importance
        if (each := operators.get(name)) is not None and each.measured is not None
    ]
    weight = sum(own for own, _, _ in known)
    return WeightedShare(
        measured=sum(own * measured for own, measured, _ in known if measured) / weight if weight else None,
        everywhere=sum(own * everywhere for own, _, everywhere in known) / total if total else 0.0,
        operators=len(known),
        of_operators=len(importance),
        weight=weight / total if total else 0.0,
    )
