"""The possible gain of a profile, by operator and shape: its time, the floor, and the fastest recorded solution."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from kernelderby.capture.capture import Capture, CapturedShape
from kernelderby.catalog import Catalog, Definition, Workload
from kernelderby.catalog.spaces import Sizes
from kernelderby.hardware import Gpu, find_gpu
from kernelderby.roofline.floors import floors
from kernelderby.roofline.recorded import RecordedTime, RecordedTimes, recorded
from kernelderby.rows.measurement import Cost, Measurement

NEAR = 2.0  # each size of a neighbour is within this factor
CostOf = Callable[[Definition, Sizes], Cost | None]


@dataclass(frozen=True, slots=True)
class FastestRecorded:
    """The fastest recorded solution. exact: recorded at this shape. Otherwise it was recorded at the neighbour `axes`,
    and its time is multiplied by the ratio of the two floors. kind: one of measurement.TIME_KINDS."""

    solution: str
    time_us: float
    exact: bool
    axes: dict[str, int]
    kind: str


@dataclass(frozen=True, slots=True)
class Gain:
    """here_us: time of one call, the sum of its kernels. saved_ns: saving over the whole profile, 0 if no recorded
    solution is faster."""

    shape: CapturedShape
    here_us: float
    floor_us: float | None
    best: FastestRecorded | None
    saved_ns: float


@dataclass(frozen=True, slots=True)
class Gains:
    """gpu: the GPU of the floors and rows, None if unknown; gpu_name: as requested or as the profile says. has_rows:
    whether rows of this GPU are recorded. is_of_other_gpu: the profile is of another GPU. gains: largest saving first,
    then largest time."""

    gpu: Gpu | None
    gpu_name: str | None
    total_ns: int
    gains: tuple[Gain, ...]
    has_rows: bool
    is_of_other_gpu: bool

    @property
    def saved_ns(self) -> float:
        return sum(each.saved_ns for each in self.gains)


def gains(
    catalog: Catalog, rows: Sequence[Measurement], found: Capture, cost_of: CostOf, gpu_name: str | None = None
) -> Gains:
    """rows: those of the set. gpu_name: replaces the profile's GPU. cost_of: gives the cost of a shape, None if it
    cannot be counted."""
    name = gpu_name or found.gpu
    gpu = find_gpu(name) if name else None
    times = _recorded(catalog, rows, gpu)
    own = {each: [row for row in rows if row.definition == each] for each in {s.definition.name for s in found.shapes}}
    known = {name: catalog.shapes(name, listed) for name, listed in own.items()}
    result = [_gain(shape, gpu, cost_of, times, known[shape.definition.name]) for shape in found.shapes]
    result.sort(key=lambda each: (-each.saved_ns, -each.shape.time_ns))
    is_other = bool(gpu and found.gpu and find_gpu(found.gpu) != gpu)
    return Gains(gpu, name, found.total_ns, tuple(result), times is not None, is_other)


def _recorded(catalog: Catalog, rows: Sequence[Measurement], gpu: Gpu | None) -> RecordedTimes | None:
    mine = [row for row in rows if gpu is not None and (each := find_gpu(row.gpu)) is not None and each.id == gpu.id]
    return recorded(mine, catalog.solutions) if mine else None


def _gain(
    shape: CapturedShape, gpu: Gpu | None, cost_of: CostOf, times: RecordedTimes | None, known: Sequence[Workload]
) -> Gain:
    here_us = shape.time_ns / 1e3 / shape.calls if shape.calls else 0.0
    cost = cost_of(shape.definition, shape.sizes) if gpu else None
    limit = floors(_in_place(cost), gpu) if gpu and cost else None
    floor_us = limit.floor_us if limit else None
    best = _best(shape, floor_us, gpu, times.times.get(shape.definition.name, {}), known) if times and gpu else None
    saved = max(0.0, here_us - best.time_us) * shape.calls * 1e3 if best else 0.0
    return Gain(shape, here_us, floor_us, best, saved)


def _best(
    shape: CapturedShape,
    floor_us: float | None,
    gpu: Gpu,
    times: Mapping[str, Mapping[str, RecordedTime]],
    known: Sequence[Workload],
) -> FastestRecorded | None:
    near: list[tuple[float, Workload]] = []
    for workload in known:
        distance = _distance(shape, workload)
        if distance is not None and any(workload.uuid in own for own in times.values()):
            near.append((distance, workload))
    for distance, workload in sorted(near, key=lambda each: (each[0], each[1].uuid)):
        fastest = min(
            (own[workload.uuid] for own in times.values() if workload.uuid in own and not own[workload.uuid].outdated),
            key=lambda each: (each.latency_us, each.solution or ""),
            default=None,
        )
        if fastest is None:
            continue
        best = FastestRecorded(
            fastest.solution or "?", fastest.latency_us, distance == 0, dict(workload.axes), fastest.kind
        )
        if best.exact:
            return best
        theirs = floors(_in_place(workload.cost), gpu) if workload.cost else None
        if theirs is not None and floor_us is not None and theirs.floor_us > 0:
            return replace(best, time_us=best.time_us * floor_us / theirs.floor_us)
    return None


def _in_place(cost: Cost) -> Cost:
    """The cost of a solution that writes into its inputs' memory, as a server's operators do where they can."""
    return structs.replace(cost, bytes_read=cost.needed(in_place=True), bytes_written=0)


def _distance(shape: CapturedShape, workload: Workload) -> float | None:
    """The distance of two shapes: the sum of the logarithms of their size ratios, 0 for the same shape. None if they
    are not neighbours: a size differs by more than NEAR, or a value for the generator differs. Floats such as eps do
    not change the time."""
    generator = {name: value for name, value in workload.generator.items() if isinstance(value, str)}
    if generator != {name: value for name, value in shape.sizes.generator.items() if isinstance(value, str)}:
        return None
    ours = shape.sizes.axes | _numbers(shape.sizes.scalars) | _numbers(shape.sizes.generator)
    total = 0.0
    for name, size in (workload.axes | _numbers(workload.scalars) | _numbers(workload.generator)).items():
        mine = ours.get(name, size)
        if mine == size:
            continue
        if not mine or not size or max(mine, size) > NEAR * min(mine, size):
            return None
        total += abs(math.log2(mine / size))
    return total


def _numbers(values: Mapping[str, object]) -> dict[str, int]:
    return {name: value for name, value in values.items() if type(value) is int}
