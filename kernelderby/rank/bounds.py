"""The limits of one solution on one workload: the parts of its time, the floors, and the possible saving of each
part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kernelderby.catalog import Solution, Workload
from kernelderby.hardware import Gpu
from kernelderby.hardware.occupancy import KernelDemand
from kernelderby.profile.stages.walk import Pipeline, StageRow
from kernelderby.roofline.floors import Floors, fair_floor_us, floors, share_of_floor
from kernelderby.roofline.selection import empty_kernel_us, latency_us
from kernelderby.rows.measurement import Measurement

NEAR = 0.8  # of the reachable time: the rest is not worth another experiment
_TELLING_STAGE = 0.15  # of a pipeline
_SMALL_GRID, _FEW_WARPS = 0.5, 0.3


@dataclass(frozen=True, slots=True)
class TimeParts:
    """One row's time in us. total: the time of the compared kind (graph if there is one, else eager). busy: the part in
    which a kernel ran; gaps: the rest of total. host: the time to enqueue a call. None if the row lacks the value."""

    solution: str
    kind: str
    total: float
    eager: float | None
    busy: float | None
    gaps: float | None
    host: float | None


@dataclass(frozen=True, slots=True)
class Experiment:
    """Something to try. saves_us: the maximum saving, of the total time, or with of_eager of the eager time.

    change: no gaps between kernels, faster kernels, what the rival does, less work on the host, one stage in half the
    time. stage, share: that stage, and its part of the pipeline.
    """

    change: Literal["gaps", "kernels", "rival", "host", "stage"]
    saves_us: float
    of_eager: bool = False
    stage: StageRow | None = None
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Explanation:
    """reachable_us: the floor at the GPU's measured ceilings, at least an empty kernel. unit: the busiest unit by ncu's
    counters, and its percent. rival: the closest faster solution, or the fastest other one. notes: how the workload and
    the parts were chosen, one sentence each."""

    solution: Solution
    workload: Workload
    gpu: Gpu
    floors: Floors | None
    ceilings: Floors | None
    empty_us: float | None
    reachable_us: float | None
    parts: TimeParts | None
    share: float | None
    rival: TimeParts | None
    pipeline: Pipeline | None
    demands: tuple[KernelDemand, ...]
    unit: tuple[str, float] | None
    experiments: tuple[Experiment, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Explanation({self.solution.name!r}, {self.workload!r}, {self.gpu.id})"

    @property
    def limit(self) -> Literal["launch", "compute", "memory"]:
        """What sets the reachable time."""
        if self.empty_us is not None and self.reachable_us == self.empty_us:
            return "launch"
        limits = self.ceilings or self.floors
        return "compute" if limits and limits.regime == "compute" else "memory"

    @property
    def slow_kernels_us(self) -> float | None:
        """How much longer its kernels run than the reachable time. None if the row lacks a part or the floor is
        unknown."""
        if self.parts is None or self.parts.busy is None or self.parts.gaps is None or self.reachable_us is None:
            return None
        return max(0.0, self.parts.busy - self.reachable_us)

    @property
    def bound(self) -> Literal["not measured", "no floor", "near", "unknown", "gaps", "kernels"]:
        """What bounds it; unknown: its row does not show it."""
        if self.parts is None:
            return "not measured"
        if self.reachable_us is None:
            return "no floor"
        if self.reachable_us >= NEAR * self.parts.total:
            return "near"
        if self.slow_kernels_us is None:
            return "unknown"
        return "gaps" if (self.parts.gaps or 0.0) > self.slow_kernels_us else "kernels"

    @property
    def starved(self) -> tuple[KernelDemand, Literal["grid", "warps"]] | None:
        """Its only kernel, if its grid or its resident warps are too few; of several nobody knows the slow one."""
        if len(self.demands) != 1:
            return None
        demand = self.demands[0]
        if (waves := demand.waves) is not None and waves < _SMALL_GRID:
            return demand, "grid"
        held = demand.occupancy
        if held is not None and demand.has_all_shared and held.share < _FEW_WARPS and held.limit != "blocks":
            return demand, "warps"
        return None


def parts_of(row: Measurement, kind: str) -> TimeParts | None:
    """None for a row without a time of that kind."""
    total = latency_us(row, kind)
    if total is None:
        return None
    busy = row.time("busy")
    gaps = max(0.0, total - busy.median_us) if busy else None
    return TimeParts(row.solution, kind, total, latency_us(row), busy.median_us if busy else None, gaps, row.host_us)


def explained(
    solution: Solution,
    workload: Workload,
    gpu: Gpu,
    row: Measurement | None,
    rivals: Sequence[Measurement],
    *,
    pipeline: Pipeline | None = None,
    demands: Sequence[KernelDemand] = (),
    unit: tuple[str, float] | None = None,
    notes: Sequence[str] = (),
) -> Explanation:
    """row: the solution's row that counts. rivals: the other solutions' rows on the same workload."""
    kind = "graph" if row is None or row.time("graph") else "eager"
    parts = parts_of(row, kind) if row else None
    empty = empty_kernel_us(row, kind) if row else (gpu.measured.empty_kernel_us.get(kind) if gpu.measured else None)
    in_place = bool(solution.in_place)
    at_peaks = floors(workload.cost, gpu, in_place) if workload.cost else None
    reached = gpu.at_ceilings()
    found = Explanation(
        solution,
        workload,
        gpu,
        at_peaks,
        floors(workload.cost, reached, in_place) if reached and workload.cost else None,
        empty,
        fair_floor_us(gpu, workload.cost, empty, in_place) or (at_peaks.floor_us if at_peaks else None),
        parts,
        share_of_floor(at_peaks.floor_us, parts.total) if at_peaks and parts else None,
        _rival(parts, [each for each in (parts_of(row, kind) for row in rivals) if each]),
        pipeline,
        tuple(demands),
        unit,
        notes=tuple(notes),
    )
    return replace(found, experiments=tuple(sorted(_experiments(found), key=lambda each: -each.saves_us)))


def _rival(own: TimeParts | None, others: Sequence[TimeParts]) -> TimeParts | None:
    faster = [each for each in others if own is None or each.total < own.total]
    if own is not None and faster:
        return max(faster, key=lambda each: each.total)
    return min(others, key=lambda each: each.total, default=None)


def _experiments(found: Explanation) -> list[Experiment]:
    parts, experiments = found.parts, []
    if parts is None:
        return []
    if parts.gaps:
        experiments.append(Experiment("gaps", parts.gaps))
    if parts.busy is not None and found.reachable_us is not None and parts.busy > found.reachable_us:
        experiments.append(Experiment("kernels", parts.busy - found.reachable_us))
    if found.rival is not None and found.rival.total < parts.total:
        experiments.append(Experiment("rival", parts.total - found.rival.total))
    if parts.kind == "graph" and parts.eager is not None and parts.eager > parts.total:
        experiments.append(Experiment("host", parts.eager - parts.total, True))
    left = parts.total - (found.reachable_us or 0.0)
    if found.pipeline is not None and left > 0 and (cost := found.pipeline.cost_ns):
        for stage in found.pipeline.stages:
            share = found.pipeline.time_ns(stage) / cost
            if share >= _TELLING_STAGE and len(found.pipeline.stages) > 1:
                saved = min(parts.total * share / 2, left)
                experiments.append(Experiment("stage", saved, stage=stage, share=share))
    return experiments
