"""Cells and columns that both tables have: floors, times, shares."""

from __future__ import annotations

from kernelderby.hardware import Gpu
from kernelderby.report.model import NOT_KNOWN, NOTHING, Column, TableCell
from kernelderby.report.numbers import floor_us, intensity, percent
from kernelderby.roofline.operators import TRACES, Shape, Source
from kernelderby.roofline.recorded import Reached

OUTDATED = "†"


def time_columns(source: Source) -> tuple[Column, ...]:
    ours = source.key == TRACES
    return (
        Column(f"{'best' if ours else 'T_prod'} {source.gpu.id}, us"),
        Column(f"S {source.gpu.id}"),
        *((Column("S of ceilings", is_optional=True),) if ours and source.gpu.measured else ()),
    )


def time_cells(shape: Shape, source: Source) -> list[TableCell]:
    """A shape's time, its S, and where time_columns() has it the S of ceilings."""
    timed = shape.times.get(source.key)
    cells = [_time(timed), _share(timed.share if timed else None)]
    if source.key == TRACES and source.gpu.measured:
        cells.append(_share(timed.share_of_ceilings if timed else None))
    return cells


def intensity_cell(shape: Shape) -> TableCell:
    return NOT_KNOWN if shape.flops_per_byte is None else TableCell(intensity(shape.flops_per_byte))


def floor_cell(shape: Shape, gpu: Gpu, with_regime: bool = False) -> TableCell:
    floor = shape.floors[gpu.id]
    if floor is None:
        return NOT_KNOWN
    return TableCell(floor_us(floor.floor_us) + (f" {floor.regime[0].upper()}" if with_regime else ""))


def _time(timed: Reached | None) -> TableCell:
    return TableCell(floor_us(timed.latency_us) + (OUTDATED if timed.outdated else "")) if timed else NOTHING


def _share(value: float | None) -> TableCell:
    return NOTHING if value is None else TableCell(percent(value))
