"""The kernels for a model: its shapes by the rules, the nearest measured ones, and the times there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kernelderby.api.nearest import measured, nearest_of
from kernelderby.catalog import Catalog, Workload
from kernelderby.catalog.selection import telling_axes
from kernelderby.deploy.winners import choosing_axes, kind_of
from kernelderby.errors import DerbyError
from kernelderby.rank.for_model import ModelKernels, ShapeKernel
from kernelderby.rank.model import NOT_MEASURED
from kernelderby.report.answer import Answer
from kernelderby.report.for_model import model_kernels_answer
from kernelderby.roofline.recorded import RecordedTimes, recorded
from kernelderby.shapes.model import left_out, read_model
from kernelderby.shapes.rules import ModelShape, shapes_of, token_counts
from kernelderby.shapes.standing import configuration_file


def kernels_for(
    catalog: Catalog,
    config: Path,
    sharing: int,
    tokens: Sequence[str],
    definitions: Sequence[str],
    gpu: str | None,
    protocol: str | None,
    time: str,
) -> Answer[ModelKernels]:
    """See TraceSet.rank_for_model."""
    model = read_model(configuration_file(config), sharing)
    by_operator: dict[str, list[ModelShape]] = {}
    for shape in shapes_of(catalog, model, token_counts(tokens)):
        by_operator.setdefault(shape.definition.name, []).append(shape)
    wanted = [catalog.definition(name).name for name in definitions]
    if absent := [name for name in wanted if name not in by_operator]:
        raise DerbyError(f"{config}: implies no shape of {absent[0]}; `derby shapes {config}` lists its operators")
    chosen = {name: own for name, own in by_operator.items() if name in wanted or not wanted}
    if not chosen:
        raise DerbyError(f"{config}: implies no shape of an operator of the set; `derby list` names them")
    rows = {name: catalog.traces(name) for name in chosen}
    times = recorded([row for own in rows.values() for row in own], catalog.solutions, gpu, protocol, time)
    found = [
        kernel
        for name, own in chosen.items()
        for kernel in _kernels(catalog, name, own, measured(catalog, name, rows[name]), times, time)
    ]
    kernels = ModelKernels(model.name, sharing, times.group, time, tuple(found))
    return model_kernels_answer(kernels, (*catalog.warnings, *left_out(model, config)))


def _kernels(
    catalog: Catalog,
    operator: str,
    shapes: Sequence[ModelShape],
    known: Sequence[Workload],
    times: RecordedTimes,
    time: str,
) -> list[ShapeKernel]:
    axes = choosing_axes(catalog.definition(operator))
    asked = [_workload(shape, axes) for shape in shapes]
    telling = telling_axes([each.axes for each in asked])
    missing = f"no {time} time" if known else NOT_MEASURED

    def words(workload: Workload, names: Sequence[str]) -> str:
        return ",".join(f"{name}={workload.axes[name]}" for name in names)

    def kernel(workload: Workload) -> ShapeKernel:
        bare = ShapeKernel(operator, words(workload, telling).replace(",", ", "), words(workload, axes), missing)
        alike = sorted(known, key=lambda each: (each.uuid != workload.uuid, each.generator != workload.generator))
        for at, octaves in nearest_of(alike, workload.axes):
            if (found := _at(catalog, bare, at.uuid, times)) is not None:
                return replace(
                    found, missing="", away=round(2**octaves, 3), measured_at=words(at, axes), workload=at.uuid
                )
        return bare

    return [kernel(each) for each in asked]


def _workload(shape: ModelShape, axes: Sequence[str]) -> Workload:
    """With the axes that determine a choice alone."""
    line = shape.line(())
    sizes = {name: shape.sizes.axes[name] for name in axes}
    inputs = line["workload"]["inputs"]
    return Workload(shape.definition.name, shape.uuid, sizes, inputs, None, line, generator=shape.sizes.generator)


def _at(catalog: Catalog, bare: ShapeKernel, uuid: str, times: RecordedTimes) -> ShapeKernel | None:
    """None if no solution's present code has a time there."""
    every = [own[uuid] for own in times.times.get(bare.operator, {}).values() if uuid in own]
    every.sort(key=lambda each: (each.latency_us, each.solution or ""))
    present = [(each.latency_us, catalog.solution(each.solution or "")) for each in every if not each.outdated]
    if not present:
        return None
    time_us, fastest = present[0]
    library_us, library = next((each for each in present if kind_of(each[1]) == "library"), (None, None))
    return replace(
        bare,
        solution=fastest.name,
        time_us=time_us,
        library=library.author if library else "",
        library_solution=library.name if library else "",
        library_us=library_us,
        ratio=library_us / time_us if library_us else None,
        has_faster_former=every[0].outdated,
    )
