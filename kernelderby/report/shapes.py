"""Shapes that models imply, as a table for each operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelderby.report.answer import Answer
from kernelderby.report.frame import frame
from kernelderby.report.model import Report, Row, Table, left, right
from kernelderby.shapes.rules import ModelShape
from kernelderby.store.counts import counted


def shapes_answer(title: str, shapes: Sequence[ModelShape], lines: Sequence[dict[str, Any]]) -> Answer[Any]:
    """Frame: shapes. lines: the shapes' lines for a workloads file."""
    return Answer(
        tuple(shapes),
        lambda: {"shapes": list(lines)},
        lambda: [_report(title, shapes)],
        lambda: (frame("shapes", (_row(shape) for shape in shapes)),),
    )


def _row(shape: ModelShape) -> dict[str, Any]:
    return {
        "definition": shape.definition.name,
        "uuid": shape.uuid,
        "model": shape.model.name,
        "tensor_parallel": shape.model.tensor_parallel,
        "layer": shape.layer,
        "sizes": " ".join(f"{name}={size}" for name, size in _told(shape).items()),
    }


def _told(shape: ModelShape) -> dict[str, Any]:
    var = {name: size for name, size in shape.sizes.axes.items() if shape.definition.axes[name] is None}
    whole = {name: value for name, value in shape.sizes.scalars.items() if isinstance(value, int)}
    return var | whole | shape.sizes.generator


def _report(title: str, shapes: Sequence[ModelShape]) -> Report:
    names = list(dict.fromkeys(shape.definition.name for shape in shapes))
    several = len({(shape.model.name, shape.model.tensor_parallel) for shape in shapes}) > 1
    tables = [_table(name, [each for each in shapes if each.definition.name == name], several) for name in names]
    return Report(f"{title}: {counted(len(shapes), 'shape')} of {counted(len(names), 'operator')}", (), tuple(tables))


def _table(name: str, shapes: Sequence[ModelShape], several: bool) -> Table:
    axes = list(_told(shapes[0]))
    columns = (*right(*axes), *left("layer", *(["model / GPUs"] if several else [])))
    rows: list[Row] = []
    for shape in shapes:
        sizes = (str(_told(shape).get(axis, "-")) for axis in axes)
        model = [f"{shape.model.name} / {shape.model.tensor_parallel}"] if several else []
        rows.append((*sizes, shape.layer, *model))
    return Table(name, columns, rows)
