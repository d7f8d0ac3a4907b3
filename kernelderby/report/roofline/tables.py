"""A Survey as one table with a row for each operator, or as a table for each operator with a row for each shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernelderby.catalog.selection import telling_axes
from kernelderby.hardware import Gpu
from kernelderby.report.model import NOT_KNOWN, Column, Report, Row, Table, TableCell, cell_of, right
from kernelderby.report.numbers import floor_us, intensity, percent
from kernelderby.report.roofline.notes import OUTDATED, facts, notes, weighted
from kernelderby.roofline.operators import TRACES, Operator, Shape, Survey, TimeSource
from kernelderby.store.counts import counted


def operators_report(survey: Survey) -> Report:
    """One row per operator, and S over all operators."""
    has_importance = bool(survey.importance)
    columns = (
        *(Column("operator", "left"), Column("shapes")),
        *(right("importance") if has_importance else ()),
        Column("regime", "left", is_optional=True),
        *(column for group in _groups(survey) for column in _operator_columns(*group)),
    )
    shapes = sum(len(operator.shapes) for operator in survey.operators)
    others = sum(len(operator.others) for operator in survey.operators)
    caption = "C flop / byte above 10 (median), M below, I no arithmetic. " + (
        "S: median over the shapes; shape, flop / byte, T_SOL and time are of the shape that has it."
        if survey.sources
        else "Shape, flop / byte and T_SOL of the middle of the list."
    )
    if others:
        caption += " After a +: shapes of other origins, which count in none of it (--origin)."
    title = "Operators" + (", by their share of the GPU time in production" if has_importance else "")
    table = Table(title, columns, (_operator_row(survey, each) for each in survey.operators), caption)
    return Report(
        f"{counted(len(survey.operators), 'operator')}, {counted(shapes, 'shape')}"
        + (f" + {others} of other origins" if others else ""),
        facts(survey, survey.operators),
        (table,),
        (*weighted(survey), *notes(survey)),
    )


def _groups(survey: Survey) -> Iterator[tuple[TimeSource | None, tuple[Gpu, ...]]]:
    """Groups of columns about the same shape: a source's columns with the floors on its GPU. GPUs without a source of
    times go with the first group."""
    timed = {source.gpu.id for source in survey.sources}
    others = tuple(gpu for gpu in survey.gpus if gpu.id not in timed)
    if not survey.sources:
        yield None, others
    for place, source in enumerate(survey.sources):
        yield source, (*(others if place == 0 else ()), source.gpu)


def _operator_columns(source: TimeSource | None, gpus: Sequence[Gpu]) -> tuple[Column, ...]:
    return (
        Column("shape", "left", is_optional=True),
        Column("flop / byte", is_optional=True),
        *right(*(f"T_SOL {gpu.id}, us" for gpu in gpus)),
        *(_time_columns(source) if source else ()),
        *(right("shapes timed") if source and source.key == TRACES else ()),
    )


def _operator_row(survey: Survey, operator: Operator) -> Row:
    count = f"{len(operator.shapes)}+{len(operator.others)}" if operator.others else len(operator.shapes)
    importance = (cell_of(operator.importance, "{:.1f}%".format),) if survey.importance else ()
    cells = [operator.name, count, *importance, operator.regime]
    for source, gpus in _groups(survey):
        shape = operator.typical(source.key if source else None)
        cells += [_place(operator, shape), _intensity(shape), *(_floor(shape, gpu) for gpu in gpus)]
        cells += _time_cells(shape, source) if source else []
        if source and source.key == TRACES:
            share = operator.shares[source.key]
            whole = share.shapes == share.of_shapes
            cells.append(TableCell(f"{share.shapes}/{share.of_shapes}", "" if whole else "bad"))
    return cells


def _place(operator: Operator, shape: Shape) -> str:
    """The shape's number in a published list, otherwise the axes that distinguish it."""
    if shape.shape_id is not None:
        return f"#{shape.shape_id}"
    return ", ".join(f"{axis}={shape.axes[axis]}" for axis in telling_axes([each.axes for each in operator.shapes]))


def shapes_reports(survey: Survey) -> list[Report]:
    """One table per operator, one row per shape. The notes follow the last table."""
    last = survey.operators[-1:]
    return [
        Report(
            operator.name,
            facts(survey, [operator]),
            (_shapes_table(survey, operator),),
            (*_shares_line(survey, operator), *(notes(survey) if operator in last else ())),
        )
        for operator in survey.operators
    ]


def _counts(shape: Shape) -> dict[str, int]:
    return shape.axes | shape.scalars | shape.facts


def _shapes_table(survey: Survey, operator: Operator) -> Table:
    numbered = operator.shapes[0].shape_id is not None
    counts = list(dict.fromkeys(name for shape in operator.every for name in _counts(shape)))
    several = len({shape.origin for shape in operator.every}) > 1
    columns = [
        *(right("#") if numbered else ()),
        *((Column("origin", "left"),) if several else ()),
        *right(*("weight MB" if name == "weight_bytes" else name.replace("_", " ") for name in counts), "flop / byte"),
    ]
    if len(survey.gpus) == 1:
        columns += [*right("memory floor, us", "compute floor, us"), Column("bound by", "left")]
    else:
        columns += right(*(f"T_SOL {gpu.id}, us" for gpu in survey.gpus))
    for source in survey.sources:
        columns += _time_columns(source)
        columns += [Column("solution", "left")] if source.key == TRACES else []
    others = f", and {len(operator.others)} of other origins, which do not count in S" if operator.others else ""
    regime = f"Regime {operator.regime}, " if operator.regime else ""
    return Table(
        f"{regime}{counted(len(operator.shapes), 'shape')}{others}",
        columns,
        (_shape_row(survey, shape, counts, numbered, several) for shape in operator.every),
        key_columns=1 + numbered + several if counts else 1,
    )


def _shape_row(survey: Survey, shape: Shape, counts: Sequence[str], numbered: bool, with_origin: bool) -> Row:
    own = {name: f"{size / 1e6:.1f}" if name.endswith("_bytes") else str(size) for name, size in _counts(shape).items()}
    cells: list[TableCell | str | float | None] = [
        *(["" if shape.shape_id is None else shape.shape_id] if numbered else []),
        *([shape.origin or ""] if with_origin else []),
        *(own.get(name, "") for name in counts),
        _intensity(shape),
    ]
    if len(survey.gpus) == 1:
        floor = shape.floors[survey.gpus[0].id]
        known = floor and (floor_us(floor.memory_us), floor_us(floor.compute_us), floor.regime)
        cells += known or [NOT_KNOWN] * 3
    else:
        cells += [_floor(shape, gpu, with_regime=True) for gpu in survey.gpus]
    for source in survey.sources:
        timed = shape.times.get(source.key)
        cells += _time_cells(shape, source)
        cells += [timed.solution or "" if timed else None] if source.key == TRACES else []
    return cells


def _shares_line(survey: Survey, operator: Operator) -> Iterator[str]:
    for source in survey.sources:
        share = operator.shares[source.key]
        if share.measured is not None:
            yield (
                f"S of the operator on {source.gpu.id}, the upper median over {share.shapes} of "
                f"{counted(share.of_shapes, 'shape')}: {percent(share.measured)}"
            )


def _time_columns(source: TimeSource) -> tuple[Column, ...]:
    ours = source.key == TRACES
    return (
        *right(f"{'best' if ours else 'T_prod'} {source.gpu.id}, us", f"S {source.gpu.id}"),
        *((Column("S of ceilings", is_optional=True),) if ours and source.gpu.measured else ()),
    )


def _time_cells(shape: Shape, source: TimeSource) -> Row:
    """A shape's time, its S, and the S of ceilings if _time_columns() has it."""
    timed = shape.times.get(source.key)
    has_ceilings = source.key == TRACES and source.gpu.measured
    if timed is None:
        return (None,) * (3 if has_ceilings else 2)
    shares = (timed.share, timed.share_of_ceilings) if has_ceilings else (timed.share,)
    time = floor_us(timed.latency_us) + (OUTDATED if timed.outdated else "")
    return (time, *(cell_of(share, percent) for share in shares))


def _intensity(shape: Shape) -> TableCell | str:
    return NOT_KNOWN if shape.flops_per_byte is None else intensity(shape.flops_per_byte)


def _floor(shape: Shape, gpu: Gpu, with_regime: bool = False) -> TableCell | str:
    floor = shape.floors[gpu.id]
    if floor is None:
        return NOT_KNOWN
    return floor_us(floor.floor_us) + (f" {floor.regime[0].upper()}" if with_regime else "")
