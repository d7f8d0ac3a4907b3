"""The limits of one solution on one workload: the parts of its time, the floors, and the possible saving of each
part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernelderby.catalog import Solution, Workload
from kernelderby.hardware import Gpu
from kernelderby.hardware.occupancy import KernelDemand
from kernelderby.profile.counters import FULL
from kernelderby.profile.stages.walk import Pipeline
from kernelderby.roofline.floors import Floors, fair_floor_us, floors, share_of_floor
from kernelderby.roofline.selection import empty_kernel_us, latency_us
from kernelderby.rows.measurement import Measurement

NEAR = 0.8  # of the reachable time: the rest is not worth another experiment
_TELLING_STAGE = 0.15  # of a pipeline
_SMALL_GRID, _FEW_WARPS = 0.5, 0.3


@dataclass(frozen=True, slots=True)
class Parts:
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
    """Something to try. saves_us: the maximum saving, of the total time, or with of_eager of the eager time."""

    what: str
    saves_us: float
    of_eager: bool = False


@dataclass(frozen=True, slots=True)
class Explanation:
    """reachable_us: the floor at the GPU's measured ceilings, at least an empty kernel. unit: the busiest unit by ncu's
    counters, and its percent. rival: the closest faster solution, or the fastest other one. verdict: one sentence."""

    solution: Solution
    workload: Workload
    gpu: Gpu
    floors: Floors | None
    ceilings: Floors | None
    empty_us: float | None
    reachable_us: float | None
    parts: Parts | None
    share: float | None
    rival: Parts | None
    pipeline: Pipeline | None
    demands: tuple[KernelDemand, ...]
    unit: tuple[str, float] | None
    verdict: str = ""
    experiments: tuple[Experiment, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Explanation({self.solution.name!r}, {self.workload!r}, {self.gpu.id})"


def parts_of(row: Measurement, kind: str) -> Parts | None:
    """None for a row without a time of that kind."""
    total = latency_us(row, kind)
    if total is None:
        return None
    busy = row.time("busy")
    gaps = max(0.0, total - busy.median_us) if busy else None
    return Parts(row.solution, kind, total, latency_us(row), busy.median_us if busy else None, gaps, row.host_us)


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
    found = replace(found, experiments=tuple(sorted(_experiments(found), key=lambda each: -each.saves_us)))
    return replace(found, verdict=_verdict(found))


def _rival(own: Parts | None, others: Sequence[Parts]) -> Parts | None:
    faster = [each for each in others if own is None or each.total < own.total]
    if own is not None and faster:
        return max(faster, key=lambda each: each.total)
    return min(others, key=lambda each: each.total, default=None)


def _limit(found: Explanation) -> str:
    """What sets the reachable time."""
    if found.empty_us is not None and found.reachable_us == found.empty_us:
        return "a launch"
    limits = found.ceilings or found.floors
    return "arithmetic" if limits and limits.regime == "compute" else "memory traffic"


def _verdict(found: Explanation) -> str:
    parts, reachable = found.parts, found.reachable_us
    if parts is None:
        return "not measured on this GPU: `derby bench` first; what follows is known without a time"
    if reachable is None:
        return "its floor is unknown: the operator's cost is not counted, or the GPU's peaks are not known"
    if reachable >= NEAR * parts.total:
        return f"near its floor: {reachable / parts.total:.0%} of the time is what {_limit(found)} takes at best"
    kernels = None if parts.busy is None else max(0.0, parts.busy - reachable)
    if kernels is None or parts.gaps is None:
        return f"{parts.total - reachable:.3g} us above the minimum of {_limit(found)}; the row does not show the cause"
    if parts.gaps > kernels:
        return f"bound by gaps: for {parts.gaps:.3g} of {parts.total:.3g} us no kernel runs"
    told = f"bound by its kernels: they run {kernels:.3g} us longer than {_limit(found)} takes at best"
    if found.unit is None:
        return told
    name, percent = found.unit
    if percent >= FULL:
        return f"{told}, and keep {name} at {percent:.0f}% of its peak: do less work there"
    return f"{told}, and no unit is full ({name} {percent:.0f}%): latency, so more work in flight"


def _experiments(found: Explanation) -> list[Experiment]:
    parts, experiments = found.parts, []
    if parts is None:
        return []
    if parts.gaps:
        experiments.append(
            Experiment("no gaps between kernels: fuse them, or launch the next one early (PDL)", parts.gaps)
        )
    if parts.busy is not None and found.reachable_us is not None and parts.busy > found.reachable_us:
        experiments.append(Experiment(_faster_kernels(found), parts.busy - found.reachable_us))
    if found.rival is not None and found.rival.total < parts.total:
        how = _difference(parts, found.rival)
        experiments.append(Experiment(f"as {found.rival.solution} does: {how}", parts.total - found.rival.total))
    if parts.kind == "graph" and parts.eager is not None and parts.eager > parts.total:
        experiments.append(
            Experiment("less work on the host, for callers without CUDA graphs", parts.eager - parts.total, True)
        )
    left = parts.total - (found.reachable_us or 0.0)
    if found.pipeline is not None and left > 0 and (cost := found.pipeline.cost_ns):
        for stage in found.pipeline.stages:
            share = found.pipeline.time_ns(stage) / cost
            if share >= _TELLING_STAGE and len(found.pipeline.stages) > 1:
                what = f"stage {stage.name} ({stage.title}, {share:.0%} of the pipeline) in half the time"
                experiments.append(Experiment(what, min(parts.total * share / 2, left)))
    return experiments


def _faster_kernels(found: Explanation) -> str:
    told = f"kernels at the rate that {_limit(found)} reaches elsewhere"
    for demand in found.demands if len(found.demands) == 1 else ():  # of several nobody knows the slow one
        if (waves := demand.waves) is not None and waves < _SMALL_GRID:
            return f"{told}; {demand.kernel} fills {waves:.0%} of the GPU: split it into more blocks"
        held = demand.occupancy
        if held is not None and demand.has_all_shared and held.share < _FEW_WARPS and held.limit != "blocks":
            return f"{told}; {demand.kernel} holds {held.share:.0%} of the warps, limited by {held.limit}"
    return told


def _difference(own: Parts, rival: Parts) -> str:
    if own.busy is None or rival.busy is None or own.gaps is None or rival.gaps is None:
        return "its row does not show where it gains"
    kernels, gaps = own.busy - rival.busy, own.gaps - rival.gaps
    where = "its kernels run" if kernels >= gaps else "its gaps last"
    return f"{where} {max(kernels, gaps):.3g} us less"
