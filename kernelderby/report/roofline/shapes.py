"""A Survey as tables of every shape, one an operator."""

from __future__ import annotations

from collections.abc import Sequence

from kernelderby.hardware import Gpu
from kernelderby.report.model import BLANK, NOT_KNOWN, NOTHING, Column, Report, Table, TableCell
from kernelderby.report.numbers import floor_us, percent
from kernelderby.report.roofline.cells import floor_cell, intensity_cell, time_cells, time_columns
from kernelderby.report.roofline.notes import facts, notes
from kernelderby.roofline.operators import TRACES, Operator, Shape, Survey
from kernelderby.store.counts import counted


def shapes_reports(survey: Survey) -> list[Report]:
    """One table an operator, one row a shape; the notes stand under the last."""
    reports = [
        Report(
            operator.name,
            facts(survey, [operator]),
            (_shapes_table(survey, operator),),
            _shares_line(survey, operator),
        )
        for operator in survey.operators
    ]
    if reports:
        last = reports[-1]
        reports[-1] = Report(last.title, last.facts, last.tables, (*last.notes, *notes(survey)))
    return reports


def _counts(shape: Shape) -> dict[str, int]:
    return shape.axes | shape.scalars | shape.facts


def _shapes_table(survey: Survey, operator: Operator) -> Table:
    numbered = operator.shapes[0].shape_id is not None
    counts = list(dict.fromkeys(name for shape in operator.every for name in _counts(shape)))
    one = survey.gpus[0] if len(survey.gpus) == 1 else None
    several = len({shape.origin for shape in operator.every}) > 1
    columns = [
        *((Column("#"),) if numbered else ()),
        *((Column("origin", "left"),) if several else ()),
        *(Column(_title(name)) for name in counts),
        Column("flop / byte"),
    ]
    if one:
        columns += [Column("memory floor, us"), Column("compute floor, us"), Column("bound by", "left")]
    else:
        columns += [Column(f"T_SOL {gpu.id}, us") for gpu in survey.gpus]
    for source in survey.sources:
        columns += time_columns(source)
        if source.key == TRACES:
            columns.append(Column("solution", "left"))
    return Table(
        (f"Regime {operator.regime}, " if operator.regime else "")
        + counted(len(operator.shapes), "shape")
        + (f", and {len(operator.others)} of other origins, which do not count in S" if operator.others else ""),
        tuple(columns),
        tuple(_shape_row(survey, shape, one, counts, numbered, several) for shape in operator.every),
        key_columns=1 + numbered + several if counts else 1,
    )


def _shape_row(
    survey: Survey, shape: Shape, one: Gpu | None, counts: Sequence[str], numbered: bool, with_origin: bool
) -> tuple[TableCell, ...]:
    cells = [BLANK if shape.shape_id is None else TableCell(str(shape.shape_id))] if numbered else []
    cells += [TableCell(shape.origin or "")] if with_origin else []
    own = _counts(shape)
    cells += [TableCell(_count(name, own[name])) if name in own else BLANK for name in counts]
    cells.append(intensity_cell(shape))
    if one:
        floor = shape.floors[one.id]
        texts = (floor_us(floor.memory_us), floor_us(floor.compute_us), floor.regime) if floor else ()
        cells += [TableCell(text) for text in texts] or [NOT_KNOWN] * 3
    else:
        cells += [floor_cell(shape, gpu, with_regime=True) for gpu in survey.gpus]
    for source in survey.sources:
        timed = shape.times.get(source.key)
        cells += time_cells(shape, source)
        if source.key == TRACES:
            cells.append(TableCell(timed.solution or "") if timed else NOTHING)
    return tuple(cells)


def _shares_line(survey: Survey, operator: Operator) -> tuple[str, ...]:
    return tuple(
        f"S of the operator on {source.gpu.id}, the upper median over {share.shapes} of "
        f"{counted(share.of_shapes, 'shape')}: "
        f"{percent(share.measured)}"
        for source in survey.sources
        if (share := operator.shares[source.key]).measured is not None
    )


def _title(field: str) -> str:
    return "weight MB" if field == "weight_bytes" else field.replace("_", " ")


def _count(field: str, value: int) -> str:
    """Bytes as decimal MB, everything else as it is."""
    return f"{value / 1e6:.1f}" if field.endswith("_bytes") else str(value)
