"""Operators, their shapes and the floors of every GPU; the GPUs themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from kernelderby.catalog import Catalog, Definition, Solution, Workload
from kernelderby.catalog.groups import RowGroup
from kernelderby.catalog.selection import shortest_labels
from kernelderby.hardware import Gpu, gpu_id, gpus
from kernelderby.page.model.operators import ShownGpu, ShownOperator, ShownShape, ShownSolution
from kernelderby.page.text import rounded, words
from kernelderby.roofline.floors import arithmetic_intensity, floors, operator_regime
from kernelderby.roofline.listing import dtypes_of
from kernelderby.rows.measurement import Cost


def shown_gpus(groups: Sequence[RowGroup]) -> tuple[ShownGpu, ...]:
    """GPUs with rows first, most rows first; then GPUs with a file of peaks, by id."""
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for group in groups:
        names.setdefault(gpu_id(group.gpu), group.gpu)
        counts[gpu_id(group.gpu)] += group.rows
    recorded = sorted(counts, key=lambda each: (-counts[each], each))
    known = gpus()
    return tuple(
        _shown_gpu(each, names.get(each) or known[each].names[0], counts[each], known.get(each))
        for each in (*recorded, *(each for each in known if each not in counts))
    )


def _shown_gpu(identity: str, name: str, rows: int, gpu: Gpu | None) -> ShownGpu:
    if gpu is None:
        return ShownGpu(identity, words(name), rows)
    reached = gpu.measured
    return ShownGpu(
        identity,
        words(name),
        rows,
        gpu.memory_bytes_per_second,
        gpu.flops_per_second,
        reached.memory_bytes_per_second if reached else None,
        reached.flops_per_second if reached else {},
        words(gpu.source),
        gpu.date,
    )


def ordered_workloads(workloads: Sequence[Workload]) -> list[Workload]:
    """Sorted by shape_id, or by axes without one: the order of every table of the page."""
    return sorted(
        workloads, key=lambda each: (-1 if each.shape_id is None else each.shape_id, *each.axes.values(), each.uuid)
    )


def shown_operator(
    catalog: Catalog,
    definition: Definition,
    workloads: Sequence[Workload],
    importance: float | None,
    shown: Sequence[ShownGpu],
    races: dict[str, tuple[int, ...]],
) -> ShownOperator:
    """workloads: in_order."""
    known = [gpus().get(each.id) for each in shown]
    labels = shortest_labels(workloads)
    in_place = any(each.in_place for each in catalog.solutions.values() if each.definition == definition.name)
    counted = [arithmetic_intensity(each.cost) for each in workloads if each.cost is not None]
    return ShownOperator(
        words(definition.name),
        words(definition.op_type),
        words(definition.description),
        dtypes_of(catalog, definition),
        importance,
        operator_regime(counted) if counted else "",
        tuple(_shape(each, words(labels[each.uuid] or "the only shape"), known, in_place) for each in workloads),
        races,
    )


def _shape(workload: Workload, label: str, known: Sequence[Gpu | None], in_place: bool) -> ShownShape:
    """in_place: some solution writes into its inputs' memory, so the floor is the one for that."""
    cost = workload.cost
    found = [floors(cost, gpu, in_place) if cost and gpu else None for gpu in known]
    return ShownShape(
        workload.uuid,
        label,
        words(", ".join(f"{name}={size}" for name, size in (workload.axes | workload.scalars).items())),
        workload.shape_id,
        words(workload.origin or ""),
        float(sum(cost.flops.values())) if cost else None,
        float(cost.bytes_read + cost.bytes_written) if cost else None,
        rounded(arithmetic_intensity(cost)) if cost else None,
        tuple((rounded(each.floor_us), each.regime) if each else None for each in found),
        tuple(flops_per_second(cost, each.floor_us) if each else None for each in found),
    )


def flops_per_second(cost: Cost | None, time_us: float) -> float | None:
    """None without a counted cost or without arithmetic."""
    flops = sum(cost.flops.values()) if cost else 0
    return rounded(flops / time_us * 1e6) if flops and time_us else None


def shown_solution(solution: Solution, root: Path) -> ShownSolution:
    place = solution.folder or solution.json_path
    return ShownSolution(
        words(solution.name),
        words(solution.definition),
        words(solution.author),
        words(solution.language),
        words(solution.description),
        requirements_text(solution),
        words(place.relative_to(root).as_posix()) if place.is_relative_to(root) else "",
    )


def requirements_text(solution: Solution) -> str:
    """The solution's requirements on a machine, in words."""
    asked = solution.requires
    parts = [*asked.modules, *asked.executables]
    oldest, newest = asked.minimum_compute_capability, asked.maximum_compute_capability
    if oldest and newest:
        parts.append(f"compute capability {oldest}" + (f" to {newest}" if newest != oldest else ""))
    elif oldest:
        parts.append(f"compute capability {oldest} or newer")
    elif newest:
        parts.append(f"compute capability {newest} or older")
    return words(", ".join(parts))
