"""The limits of a solution on a workload: rows, floors, recordings, counters and the compiled kernels in one answer."""

from __future__ import annotations

from typing import Any

from kernelderby.api.arguments import known_gpu
from kernelderby.api.profile_file import open_profile_file, staged
from kernelderby.catalog import Catalog, Definition, Solution, Workload
from kernelderby.catalog.selection import select_workloads, workload_label
from kernelderby.errors import DerbyError
from kernelderby.hardware import find_gpu, gpu_id
from kernelderby.hardware.occupancy import KernelDemand
from kernelderby.profile.counters import bounding_unit, read_counters
from kernelderby.profile.recorded import COUNTED, is_profile, profile_files, solution_of, title_of
from kernelderby.profile.stages.walk import Pipeline
from kernelderby.rank.bounds import Explanation, explained
from kernelderby.report.answer import Answer
from kernelderby.report.explanation import explanation_answer
from kernelderby.roofline import selection
from kernelderby.roofline.floors import fair_floor_us
from kernelderby.rows.measurement import Measurement


def explain(
    catalog: Catalog, name: str, workload: str | None, gpu: str | None, *, compiles: bool
) -> Answer[Explanation]:
    solution = catalog.solution(name)
    definition = catalog.definition(solution.definition)
    rows, gpu_name = _rows(catalog, definition, gpu)
    notes = list[str]()
    if gpu is None and find_gpu(gpu_name) is None:
        notes.append(f"limits of a {gpu_name} are not known, so these are an H200's; --gpu names another GPU")
        rows, gpu_name = {}, "h200"
    known = known_gpu(gpu_name)
    chosen = _workload(catalog, solution, workload, rows, known)
    if workload is None:
        notes.append("the workload with the most time to save; --workload chooses another one")
    pipeline, unit = _recorded(catalog, solution, chosen, notes)
    demands: tuple[KernelDemand, ...] = ()
    if compiles:
        demands = _compiled(catalog, solution, chosen, gpu_name, notes)
    own = rows.pop((name, chosen.uuid), None)
    found = explained(
        *(solution, chosen, known, own),
        [row for (_, uuid), row in rows.items() if uuid == chosen.uuid],
        pipeline=pipeline,
        demands=demands,
        unit=unit,
        notes=notes,
    )
    return explanation_answer(found, tuple(catalog.warnings))


def _rows(catalog: Catalog, definition: Definition, gpu: str | None) -> tuple[dict[tuple[str, str], Measurement], str]:
    """(solution, uuid) -> the row that counts, and the GPU's name. Empty without rows on that GPU."""
    groups = selection.group_rows(catalog.traces(definition.name))
    if not groups or (gpu is not None and gpu_id(gpu) not in {key.gpu for key in groups}):
        return {}, gpu or "h200"
    key = selection.choose_group(groups, gpu, None)
    chosen = selection.newest_rows(groups[key], catalog.solutions)
    return {place: each.measurement for place, each in chosen.items()}, groups[key][0].gpu


def _workload(
    catalog: Catalog, solution: Solution, word: str | None, rows: dict[tuple[str, str], Measurement], gpu: Any
) -> Workload:
    """The workload that the word names. DerbyError if it names several or none."""
    workloads = catalog.workloads(solution.definition)
    if not workloads:
        raise DerbyError(f"{solution.definition}: has no workloads; add one to workloads/")
    if word is not None:
        found = select_workloads(workloads, [word])
        if len(found) > 1:
            several = ", ".join(workload_label(each) for each in found[:3])
            more = f" and {len(found) - 3} more" if found[3:] else ""
            raise DerbyError(f"--workload: {word!r} names {several}{more}; give one's uuid")
        return found[0]

    def wasted(workload: Workload) -> float:
        row = rows.get((solution.name, workload.uuid))
        if row is None:
            return -1.0
        kind = "graph" if row.time("graph") else "eager"
        empty = selection.empty_kernel_us(row, kind)
        reachable = fair_floor_us(gpu, workload.cost, empty, bool(solution.in_place))
        return (selection.latency_us(row, kind) or 0.0) - (reachable or 0.0)

    return max(workloads, key=wasted)


def _recorded(
    catalog: Catalog, solution: Solution, workload: Workload, notes: list[str]
) -> tuple[Pipeline | None, tuple[str, float] | None]:
    """The newest recording of this solution on this workload, and the busiest unit in its newest counters."""
    pipeline, unit = None, None
    axes = {f"{name}{size}" for name, size in workload.axes.items()}
    for path in sorted(profile_files(catalog.root, notes.append), key=lambda each: each.stat().st_mtime):
        if not path.name.startswith(solution.name):
            continue
        try:
            if path.name.endswith(COUNTED):
                unit = bounding_unit(read_counters(path).rows) or unit
            elif is_profile(path) and solution_of(catalog, path) == solution.name:
                title = title_of(path, solution.name)
                if axes & set(title.split("_")) or any(each in title for each in (*axes, workload.uuid[:8])):
                    found = staged(open_profile_file(path), solution.name, solution.stages)
                    pipeline = found if found.occurs else pipeline
        except DerbyError as error:
            notes.append(str(error))
    if pipeline is None and solution.stages:
        notes.append(f"no recording of this workload: derby profile run --solutions {solution.name}")
    if unit is None:
        notes.append(f"no counters of this workload: derby profile run --with ncu --solutions {solution.name}")
    return pipeline, unit


def _compiled(
    catalog: Catalog, solution: Solution, workload: Workload, gpu: str, notes: list[str]
) -> tuple[KernelDemand, ...]:
    from kernelderby.measure.certify.resources import demands_of

    try:
        found, told = demands_of(catalog, solution, workload, gpu)
    except (DerbyError, ImportError) as error:
        found, told = (), str(error).partition("\n")[0]
    if told:
        notes.append(f"kernels: {told}" if not found else told)
    return found
