"""What-if as a table: the pipeline's speedup for each change of each stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from kernelderby.errors import DerbyError
from kernelderby.profile.stages.whatif import WhatIf, WhatIfs, time_saved
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, frame
from kernelderby.report.model import NOT_KNOWN, Report, Row, Table, TableCell, left, right
from kernelderby.report.numbers import microseconds, milliseconds
from kernelderby.report.profile.notes import pipeline_data, told_warnings
from kernelderby.report.profile.stages import facts


def whatif_answer(found: Sequence[WhatIfs]) -> Answer[tuple[WhatIfs, ...]]:
    """Frame: stages."""
    found = tuple(found)
    return Answer(
        found,
        lambda: {"whatif": [_data(each) for each in found]},
        lambda: [whatif_report(one) for one in found],
        lambda: (_frame(found),),
        draw=lambda path: _draw(found, path),
    )


def _draw(found: Sequence[WhatIfs], path: Path) -> None:
    from kernelderby.report.plot import dots

    if len(found) > 1:
        raise DerbyError("--plot: the what-if picture is of one FILE; give one")
    [only] = found
    rows = {}
    for one in only.stages:
        speedups = {f"{factor:g}x faster": speedup for factor, speedup in zip(only.factors, one.speedups, strict=True)}
        speedups |= {"at its floor": one.at_floor} if one.at_floor is not None else {}
        rows[one.stage] = {name: 100 * time_saved(speedup) for name, speedup in (speedups | {"free": one.gone}).items()}
    title = f"{only.pipeline.solution}, {Path(only.pipeline.profile).name}: what a faster stage saves"
    dots(rows, path, title=title, unit="% of the pipeline's kernel time saved")


def _data(found: WhatIfs) -> dict[str, Any]:
    own = {field.name: getattr(found, field.name) for field in fields(found)}
    return own | {"pipeline": pipeline_data(found.pipeline)}


def _frame(found: Sequence[WhatIfs]) -> Frame:
    rows = []
    for each in found:
        for one in each.stages:
            row = asdict(one)
            speedups = {
                f"speedup_{factor:g}x": speedup
                for factor, speedup in zip(each.factors, row.pop("speedups"), strict=True)
            }
            rows.append({"profile": each.pipeline.profile, "solution": each.pipeline.solution} | row | speedups)
    return frame("stages", rows)


def whatif_report(found: WhatIfs) -> Report:
    pipeline = found.pipeline
    has_floors = any(one.floor_us is not None for one in found.stages)
    titles = (
        *("added ms" if pipeline.overlaps else "total ms", "% of pipeline"),
        *(f"{factor:g}x faster" for factor in found.factors),
        *(("floor us", "% of floor reached", "at its floor") if has_floors else ()),
    )
    columns = (*left("stage", "what it does"), *right(*titles, "free"))
    caption = (
        "1.045 (4.3 %): 1.045 times as fast, 4.3 % of the time saved. Sorted by the gain at the floor, else at "
        "the largest factor"
    )
    if has_floors:
        caption += "; ! more than its floor allows"
    table = Table(
        "Speedup of the pipeline if one stage ran",
        columns,
        (_line(one, place == 0, has_floors) for place, one in enumerate(found.stages)),
        caption=caption,
    )
    return Report(
        title=f"{pipeline.solution}: {pipeline.profile}",
        facts=facts(pipeline),
        tables=(table,),
        notes=(*_notes(found), *told_warnings(pipeline.warnings)),
    )


def _line(one: WhatIf, first: bool, has_floors: bool) -> Row:
    floor: Row = (NOT_KNOWN,) * 3 if has_floors else ()
    if one.floor_us is not None and one.floor_share is not None and one.at_floor is not None:
        reached = TableCell(f"{one.floor_share:.0%}", "bad" if one.floor_share > 1 else "")
        floor = (microseconds(one.floor_us), reached, gain(one.at_floor))
    return (
        TableCell(one.stage, "best" if first else ""),
        one.title,
        milliseconds(one.time_ns),
        f"{100 * one.share:.1f}",
        *(gain(speedup, one.at_floor) for speedup in one.speedups),
        *floor,
        gain(one.gone),
    )


def gain(speedup: float, limit: float | None = None) -> TableCell:
    """limit: the speedup with the stage at its floor; larger speedups are marked."""
    if speedup == float("inf"):
        return TableCell("no bound", "muted")
    is_beyond = limit is not None and speedup > limit
    text = f"{speedup:.3f} ({100 * time_saved(speedup):.1f} %)"
    return TableCell(f"{text} !", "muted") if is_beyond else TableCell(text)


def _notes(found: WhatIfs) -> list[str]:
    notes = []
    if all(one.floor_us is None for one in found.stages):
        notes.append("no floors: give --workload (the roofline of the GEMM stages) or --floor STAGE=US")
    if found.largest is not None:
        notes.append(
            f"with everything but {found.largest} free the pipeline is {found.bound:.3f} times as fast: no "
            "work on the other stages can bring more"
        )
    for one in found.stages:
        if one.floor_share is not None and one.floor_share > 1:
            why = "the floor belongs to another workload or GPU, or its count is wrong"
            notes.append(f"{one.stage}: faster than its floor allows; {why}")
    notes.append("kernel time only: launches, gaps between kernels and work on the host are not in it")
    return notes
