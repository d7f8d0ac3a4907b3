"""The kernels for a model as one table: under each operator a line for the shapes that have the same answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from kernelderby.rank.for_model import ModelKernels, ShapeKernel
from kernelderby.report.answer import Answer
from kernelderby.report.frame import frame
from kernelderby.report.model import Column, Report, Row, Table, TableCell, cell_of, left, right
from kernelderby.report.numbers import factor, microseconds
from kernelderby.report.ranking.tables import OUTDATED
from kernelderby.store.counts import counted

_NEAR = 2.0  # away


def model_kernels_answer(found: ModelKernels, warnings: Sequence[str] = ()) -> Answer[ModelKernels]:
    """Frame: shapes, one row for each."""
    return Answer(
        found,
        lambda: {"kernels": found},
        lambda: [_report(found)],
        lambda: (frame("shapes", found.shapes),),
        tuple(warnings),
    )


def _report(found: ModelKernels) -> Report:
    shapes = found.shapes
    operators = {each.operator for each in shapes}
    columns = (
        *left("operator and sizes", "away", "fastest"),
        *right("us there", "lead"),
        Column("over", "left"),
        Column("there", "left", is_optional=True),
    )
    caption = (
        "There: the nearest measured shape. Away: the product of the ratios of the sizes. Fastest: by times of the "
        "present code. Over: the best library. Lead: its time over that of the fastest."
    )
    if any(each.has_faster_former for each in shapes):
        caption += f" {OUTDATED} former code was faster."
    near = sum(each.away is not None and each.away <= _NEAR for each in shapes)
    return Report(
        f"{found.model} on {counted(found.tensor_parallel, 'GPU')}: {counted(len(shapes), 'shape')} of "
        f"{counted(len(operators), 'operator')}",
        (f"{found.group.gpu} · protocol {found.group.protocol} · {found.time} time",),
        (Table("The kernel for each shape", columns, _rows(shapes), caption, key_columns=3),),
        (
            f"sizes: {'; '.join(_axes(shapes))}",
            f"{near} of {counted(len(shapes), 'shape')} are at most {_NEAR:g} x away from a measured one; the farther, "
            "the less the answer says",
            "`derby rank OPERATOR --shape AXIS=N,...` shows all solutions near a shape, and the command that measures "
            "it; --format csv has the words for every shape",
        ),
    )


def _axes(shapes: Sequence[ShapeKernel]) -> list[str]:
    """The names of the sizes, each with its operators."""
    operators = dict[str, dict[str, None]]()
    for each in shapes:
        names = " ".join(part.partition("=")[0] for part in each.label.split(", "))
        operators.setdefault(names, {})[each.operator] = None
    return [f"{names} of {', '.join(of)}" for names, of in operators.items()]


def _rows(shapes: Sequence[ShapeKernel]) -> Iterator[Row]:
    for operator, own in groupby(shapes, key=lambda each: each.operator):
        yield (operator, *[TableCell("")] * 6)
        for _, alike in groupby(own, key=lambda each: (each.workload, each.missing, each.label.split(", ")[1:])):
            yield _row(list(alike))


def _row(alike: Sequence[ShapeKernel]) -> Row:
    """alike: shapes with the same answer, whose labels differ in their first size."""
    sizes = [[part.partition("=")[2] for part in each.label.split(", ")] for each in alike]
    first = "-".join(dict.fromkeys((sizes[0][0], sizes[-1][0])))
    label, one = f" {' '.join((first, *sizes[0][1:]))}", alike[0]
    if one.missing:
        return label, None, TableCell(one.missing, "bad"), *(None,) * 4
    mark = f" {OUTDATED}" if one.has_faster_former else ""
    times = cell_of(one.time_us, microseconds), cell_of(one.ratio, factor), one.library or None
    return label, _away([each.away or 1.0 for each in alike]), one.solution + mark, *times, one.measured_at


def _away(ratios: Sequence[float]) -> str:
    if max(ratios) == 1:
        return "same"
    low, high = min(ratios), max(ratios)
    ends = _times(low, high < 100), _times(high, True)
    return "-".join(dict.fromkeys(ends))


def _times(ratio: float, is_fine: bool) -> str:
    return f"{ratio / 1000:.0f}k" if ratio >= 1000 else f"{ratio:.1f}" if is_fine and ratio < 9.95 else f"{ratio:.0f}"
