"""A Survey as a table, one row an operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from kernelderby.catalog.selection import telling_axes
from kernelderby.hardware import Gpu
from kernelderby.report.model import NOTHING, Column, Report, Table, TableCell
from kernelderby.report.roofline.cells import floor_cell, intensity_cell, time_cells, time_columns
from kernelderby.report.roofline.notes import facts, notes, weighted
from kernelderby.roofline.operators import TRACES, Operator, Shape, Source, Survey
from kernelderby.store.counts import counted


def operators_report(survey: Survey) -> Report:
    """One row an operator, and S over all of them."""
    others = any(operator.others for operator in survey.operators)
    has_importance = bool(survey.importance)
    columns = [
        Column("operator", "left"),
        Column("shapes"),
        Column("regime", "left", is_optional=True),
        *chain.from_iterable(_operator_columns(*each) for each in _groups(survey)),
    ]
    if has_importance:
        columns.insert(2, Column("importance"))
    return Report(
        title=_title_of(survey),
        facts=facts(survey, survey.operators),
        tables=(
            Table(
                title="Operators" + (", by their share of the GPU time in production" if has_importance else ""),
                columns=tuple(columns),
                rows=tuple(_operator_row(survey, each) for each in survey.operators),
                caption="C flop / byte above 10 (median), M below, I no arithmetic. "
                + (
                    "S: median over the shapes; shape, flop / byte, T_SOL and time are of the shape that has it."
                    if survey.sources
                    else "Shape, flop / byte and T_SOL of the middle of the list."
                )
                + (" After a +: shapes of other origins, which count in none of it (--origin)." if others else ""),
            ),
        ),
        notes=(*weighted(survey), *notes(survey)),
    )


def _title_of(survey: Survey) -> str:
    shapes = sum(len(operator.shapes) for operator in survey.operators)
    others = sum(len(operator.others) for operator in survey.operators)
    return f"{counted(len(survey.operators), 'operator')}, {counted(shapes, 'shape')}" + (
        f" + {others} of other origins" if others else ""
    )


def _groups(survey: Survey) -> Iterator[tuple[Source | None, tuple[Gpu, ...]]]:
    """Columns that are of one shape: those of a source with the floors on its GPU. GPUs that no source has times of go
    with the first."""
    timed = {source.gpu.id for source in survey.sources}
    others = tuple(gpu for gpu in survey.gpus if gpu.id not in timed)
    if not survey.sources:
        yield None, others
    for place, source in enumerate(survey.sources):
        yield source, (*(others if place == 0 else ()), source.gpu)


def _operator_columns(source: Source | None, gpus: Sequence[Gpu]) -> tuple[Column, ...]:
    return (
        Column("shape", "left", is_optional=True),
        Column("flop / byte", is_optional=True),
        *(Column(f"T_SOL {gpu.id}, us") for gpu in gpus),
        *(time_columns(source) if source else ()),
        *((Column("shapes timed"),) if source and source.key == TRACES else ()),
    )


def _operator_row(survey: Survey, operator: Operator) -> tuple[TableCell, ...]:
    cells = [
        TableCell(operator.name),
        TableCell(f"{len(operator.shapes)}+{len(operator.others)}" if operator.others else str(len(operator.shapes))),
        TableCell(operator.regime),
    ]
    if survey.importance:
        cells.insert(2, NOTHING if operator.importance is None else TableCell(f"{operator.importance:.1f}%"))
    for source, gpus in _groups(survey):
        shape = operator.typical(source.key if source else None)
        cells += [TableCell(_place(operator, shape)), intensity_cell(shape)]
        cells += [floor_cell(shape, gpu) for gpu in gpus]
        cells += time_cells(shape, source) if source else []
        if source and source.key == TRACES:
            share = operator.shares[source.key]
            whole = share.shapes == share.of_shapes
            cells.append(TableCell(f"{share.shapes}/{share.of_shapes}", "" if whole else "bad"))
    return tuple(cells)


def _place(operator: Operator, shape: Shape) -> str:
    """The shape's number in a published list, else the axes that tell it from the others."""
    if shape.shape_id is not None:
        return f"#{shape.shape_id}"
    return ", ".join(f"{axis}={shape.axes[axis]}" for axis in telling_axes([each.axes for each in operator.shapes]))
