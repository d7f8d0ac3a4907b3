"""A Survey as tables: operators, or every shape of an operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from kernelderby.catalog.selection import telling_axes
from kernelderby.hardware import Gpu
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, frame
from kernelderby.report.model import BLANK, NOT_KNOWN, NOTHING, Column, Report, Table, TableCell
from kernelderby.report.numbers import floor_us, intensity, percent
from kernelderby.roofline.operators import PUBLISHED, TRACES, Operator, Shape, Source, Survey
from kernelderby.roofline.recorded import Reached

OUTDATED = "†"


def survey_answer(survey: Survey, by_shape: bool = False) -> Answer[Survey]:
    """Frames: operators and shapes; with by_shape the other way round, and the tables are those of every shape."""
    return Answer(
        survey,
        lambda: survey_data(survey),
        lambda: shapes_reports(survey) if by_shape else [operators_report(survey)],
        lambda: _frames(survey)[::-1] if by_shape else _frames(survey),
        survey.warnings,
        lambda path: draw_shares(survey, path),
    )


def survey_data(survey: Survey) -> dict[str, Any]:
    """Every number, for machines. typical: source -> index of the shape whose S is the operator's."""
    total = sum(survey.importance.values())
    return {
        "gpus": [asdict(gpu) for gpu in survey.gpus],
        "sources": {
            source.key: {"gpu": source.gpu.id}
            | ({"protocol": source.recorded.group.protocol} if source.recorded else {})
            for source in survey.sources
        },
        "operators": {
            operator.name: asdict(operator)
            | {
                "typical": {source.key: _index(operator, source.key) for source in survey.sources},
                "weight": operator.importance / total if operator.importance else None,
            }
            for operator in survey.operators
        },
        "weighted": {key: asdict(share) for key, share in survey.weighted.items()},
    }


def _frames(survey: Survey) -> tuple[Frame, ...]:
    """A GPU without a peak, and a shape without a time, have no value there. shape: source -> the one whose S is the
    operator's; without times the middle one."""
    keys: list[str | None] = [source.key for source in survey.sources] or [None]
    operators = [
        {
            "operator": each.name,
            "importance_percent": each.importance,
            "regime": each.regime,
            "of_shapes": len(each.shapes),
            "other_shapes": len(each.others),
            "shape": {source or "middle": _typical(each, source) for source in keys},
            "share": _known(each.shares),
        }
        for each in survey.operators
    ]
    shapes = [{"operator": each.name} | _shape_data(shape) for each in survey.operators for shape in each.every]
    return frame("operators", operators), frame("shapes", shapes)


def _index(operator: Operator, source: str) -> int:
    return next(place for place, shape in enumerate(operator.shapes) if shape is operator.typical(source))


def _typical(operator: Operator, source: str | None) -> dict[str, Any]:
    data = _shape_data(operator.typical(source))
    return {name: data[name] for name in ("uuid", "shape_id", "flops_per_byte", "floors", "times")}


def _shape_data(shape: Shape) -> dict[str, Any]:
    return asdict(shape) | {"floors": _known(shape.floors), "times": _known(shape.times)}


def _known(records: Mapping[str, Any]) -> dict[str, Any]:
    return {name: asdict(record) for name, record in records.items() if record is not None}


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
        facts=_facts(survey, survey.operators),
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
        notes=(*_weighted(survey), *_notes(survey)),
    )


def _title_of(survey: Survey) -> str:
    shapes = sum(len(operator.shapes) for operator in survey.operators)
    others = sum(len(operator.others) for operator in survey.operators)
    return f"{len(survey.operators)} operators, {shapes} shapes" + (f" + {others} of other origins" if others else "")


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
        *(_time_columns(source) if source else ()),
        *((Column("shapes timed"),) if source and source.key == TRACES else ()),
    )


def _time_columns(source: Source) -> tuple[Column, ...]:
    ours = source.key == TRACES
    return (
        Column(f"{'best' if ours else 'T_prod'} {source.gpu.id}, us"),
        Column(f"S {source.gpu.id}"),
        *((Column("S of ceilings", is_optional=True),) if ours and source.gpu.measured else ()),
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
        cells += [TableCell(_place(operator, shape)), _intensity(shape)]
        cells += [_floor(shape, gpu) for gpu in gpus]
        cells += _time_cells(shape, source) if source else []
        if source and source.key == TRACES:
            share = operator.shares[source.key]
            whole = share.shapes == share.of_shapes
            cells.append(TableCell(f"{share.shapes}/{share.of_shapes}", "" if whole else "bad"))
    return tuple(cells)


def _time_cells(shape: Shape, source: Source) -> list[TableCell]:
    """A shape's time, its S, and where _time_columns() has it the S of ceilings."""
    timed = shape.times.get(source.key)
    cells = [_time(timed), _share(timed.share if timed else None)]
    if source.key == TRACES and source.gpu.measured:
        cells.append(_share(timed.share_of_ceilings if timed else None))
    return cells


def _place(operator: Operator, shape: Shape) -> str:
    """The shape's number in a published list, else the axes that tell it from the others."""
    if shape.shape_id is not None:
        return f"#{shape.shape_id}"
    return ", ".join(f"{axis}={shape.axes[axis]}" for axis in telling_axes([each.axes for each in operator.shapes]))


def shapes_reports(survey: Survey) -> list[Report]:
    """One table an operator, one row a shape; the notes stand under the last."""
    reports = [
        Report(
            operator.name,
            _facts(survey, [operator]),
            (_shapes_table(survey, operator),),
            _shares_line(survey, operator),
        )
        for operator in survey.operators
    ]
    if reports:
        last = reports[-1]
        reports[-1] = Report(last.title, last.facts, last.tables, (*last.notes, *_notes(survey)))
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
        columns += _time_columns(source)
        if source.key == TRACES:
            columns.append(Column("solution", "left"))
    return Table(
        (f"Regime {operator.regime}, " if operator.regime else "")
        + f"{len(operator.shapes)} shapes"
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
    cells.append(_intensity(shape))
    if one:
        floor = shape.floors[one.id]
        texts = (floor_us(floor.memory_us), floor_us(floor.compute_us), floor.regime) if floor else ()
        cells += [TableCell(text) for text in texts] or [NOT_KNOWN] * 3
    else:
        cells += [_floor(shape, gpu, with_regime=True) for gpu in survey.gpus]
    for source in survey.sources:
        timed = shape.times.get(source.key)
        cells += _time_cells(shape, source)
        if source.key == TRACES:
            cells.append(TableCell(timed.solution or "") if timed else NOTHING)
    return tuple(cells)


def _shares_line(survey: Survey, operator: Operator) -> tuple[str, ...]:
    return tuple(
        f"S of the operator on {source.gpu.id}, the upper median over {share.shapes} of {share.of_shapes} shapes: "
        f"{percent(share.measured)}"
        for source in survey.sources
        if (share := operator.shares[source.key]).measured is not None
    )


def _facts(survey: Survey, operators: Sequence[Operator]) -> tuple[str, ...]:
    """The peaks of each GPU that count for these operators, with their source, and what was measured on it."""
    dtypes = sorted({dtype for operator in operators for shape in operator.every for dtype in shape.dtypes})
    lines = []
    for gpu in survey.gpus:
        lines.append(
            f"{gpu.names[0]}: {_peaks(gpu.memory_bytes_per_second, gpu.flops_per_second, dtypes)} "
            f"({gpu.source}; {gpu.date})"
        )
        if gpu.measured and any(source.gpu.id == gpu.id for source in survey.sources):
            measured = gpu.measured
            lines.append(
                f"{gpu.names[0]}, measured ceilings: "
                f"{_peaks(measured.memory_bytes_per_second, measured.flops_per_second, dtypes)} "
                f"({measured.source}; {measured.date})"
            )
    for source in survey.sources:
        if source.recorded:
            group = source.recorded.group
            lines.append(
                f"best {source.gpu.id}: per shape the fastest solution that passed, {group.gpu}, protocol "
                f"{group.protocol}, {group.rows} rows"
            )
        else:
            lines.append(f"T_prod {source.gpu.id}: median time of the deployed kernel, as published")
    return tuple(lines)


def _peaks(memory: float, flops: dict[str, float], dtypes: Sequence[str]) -> str:
    known = [f"{dtype} {flops[dtype] / 1e12:g}" for dtype in dtypes if dtype in flops]
    return f"{memory / 1e12:g} TB/s" + (f", {', '.join(known)} TFLOP/s dense" if known else "")


def _weighted(survey: Survey) -> Iterator[str]:
    for key, share in survey.weighted.items():
        gpu = next(source.gpu.id for source in survey.sources if source.key == key)
        what = "deployed kernels, as published" if key == PUBLISHED else "our best"
        if share.measured is None:
            yield f"S weighted by importance on {gpu} ({what}): no operator with an importance has a time"
        elif share.operators == share.of_operators and share.measured == share.everywhere:
            yield (
                f"S weighted by importance on {gpu} ({what}): {share.measured:.1%} over all {share.operators} operators"
            )
        else:
            yield (
                f"S weighted by importance on {gpu} ({what}): {share.measured:.1%} over the {share.operators} of "
                f"{share.of_operators} operators that have a time ({share.weight:.1%} of the importance), "
                f"{share.everywhere:.1%} with 0 for every operator and shape without one"
            )
    if survey.importance:
        yield importance_note(survey.importance)


def _notes(survey: Survey) -> Iterator[str]:
    for gpu in survey.gpus:
        missing = {
            operator.name: dtype
            for operator in survey.operators
            for shape in operator.every
            if shape.floors[gpu.id] is None
            for dtype in shape.dtypes
            if dtype not in gpu.flops_per_second
        }
        for dtype in sorted(set(missing.values())):
            names = ", ".join(name for name, lacked in missing.items() if lacked == dtype)
            yield f"n/a on {gpu.id}: its source gives no peak for {dtype} ({names})"
    unknown = [operator.name for operator in survey.operators if any(e.flops_per_byte is None for e in operator.every)]
    if unknown:
        yield f"S unknown, since nobody counted the work: {_few(unknown)}; `derby pack` counts it from the reference"
    counted = [operator.name for operator in survey.operators if any(shape.counted for shape in operator.every)]
    if counted:
        yield f"work counted from the reference, where nobody wrote count_cost: {_few(counted)}"
    times = [time for operator in survey.operators for shape in operator.every for time in shape.times.values()]
    outdated = sorted({time.solution or "" for time in times if time.outdated})
    if outdated:
        yield f"{OUTDATED} outdated: measured with sources that the solution has no more: {', '.join(outdated)}"
    for source in survey.sources:
        if source.recorded and source.recorded.other_groups:
            others = "; ".join(
                f"{group.gpu} under {group.protocol} ({group.rows} rows)" for group in source.recorded.other_groups
            )
            yield f"also recorded, not used here: {others}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")


def _title(field: str) -> str:
    return "weight MB" if field == "weight_bytes" else field.replace("_", " ")


def _count(field: str, value: int) -> str:
    """Bytes as decimal MB, everything else as it is."""
    return f"{value / 1e6:.1f}" if field.endswith("_bytes") else str(value)


def _intensity(shape: Shape) -> TableCell:
    return NOT_KNOWN if shape.flops_per_byte is None else TableCell(intensity(shape.flops_per_byte))


def _floor(shape: Shape, gpu: Gpu, with_regime: bool = False) -> TableCell:
    floor = shape.floors[gpu.id]
    if floor is None:
        return NOT_KNOWN
    return TableCell(floor_us(floor.floor_us) + (f" {floor.regime[0].upper()}" if with_regime else ""))


def _time(timed: Reached | None) -> TableCell:
    return TableCell(floor_us(timed.latency_us) + (OUTDATED if timed.outdated else "")) if timed else NOTHING


def _share(value: float | None) -> TableCell:
    return NOTHING if value is None else TableCell(percent(value))


def importance_note(importance: Mapping[str, float]) -> str:
    return f"importance as printed adds up to {sum(importance.values()):.1f} %; as a weight each is divided by that sum"


def draw_shares(survey: Survey, path: Path) -> None:
    """S over flop per byte: a dot a shape, a mark an operator."""
    from kernelderby.report.scatter import shares
    from kernelderby.roofline.operators import PUBLISHED

    source = survey.sources[-1]
    dots: list[tuple[str, float, float]] = []
    marks: list[tuple[str, str, float, float, float]] = []
    for operator in survey.operators:
        share = operator.shares[source.key]
        dots += [
            (operator.regime, shape.flops_per_byte, timed.share)
            for shape in operator.shapes
            if shape.flops_per_byte is not None and (timed := shape.times.get(source.key)) and timed.share
        ]
        middle = operator.typical(source.key).flops_per_byte if share.measured else None
        if share.measured and middle is not None:
            marks.append((operator.name, operator.regime, middle, share.measured, operator.importance or 0))
    what = "deployed kernels, as published" if source.key == PUBLISHED else "fastest recorded solution"
    shares(dots, marks, path, title=f"Share of the speed of light on {source.gpu.names[0]}: {what}")
