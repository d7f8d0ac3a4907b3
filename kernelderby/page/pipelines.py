"""Pipelines stage by stage, from a profile or from the tables of `derby profile stages --overview`."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.page.model.recordings import ShownPipeline, ShownStage
from kernelderby.page.text import rounded, words
from kernelderby.profile.stages.walk import BETWEEN, NOT_ITEMISED, Pipeline
from kernelderby.profile.stages.whatif import SPEEDUPS, amdahl, whatif
from kernelderby.report.profile.notes import stage_notes
from kernelderby.store.fields import read_text

_HEAD = ["stage", "what it does"]
_TOTAL, _SPAN = "sum of the stages", "first start to last end"
_CELL = re.compile(r"(\d+(?:\.\d+)?)[*! ]*(?:\((\d+(?:\.\d+)?)%\))?[*! ]*")


def shown_pipeline(pipeline: Pipeline, source: str, title: str) -> ShownPipeline:
    calls = pipeline.invocations or 1
    gains = {each.stage: (*each.speedups, each.gone) for each in whatif(pipeline).stages}
    cost = pipeline.cost_ns
    return ShownPipeline(
        words(pipeline.solution),
        words(title),
        words(pipeline.gpu or "GPU not named"),
        words(source),
        "us an invocation" if pipeline.invocations else "us in all",
        rounded(cost / calls / 1e3),
        rounded(pipeline.span_ns / calls / 1e3) if pipeline.span_ns else None,
        tuple(
            ShownStage(
                words(row.name),
                words(row.title),
                rounded(pipeline.time_ns(row) / calls / 1e3),
                rounded(pipeline.time_ns(row) / cost) if cost else 0.0,
                row.name in (BETWEEN, NOT_ITEMISED),
                tuple(map(rounded, gains.get(row.name, ()))),
                tuple(map(words, stage_notes(row))),
            )
            for row in pipeline.stages
            if row.total_ns
        ),
        tuple(
            (words(row.kind), rounded(row.total_ns / 1e3), rounded(row.total_ns / pipeline.total_ns))
            for row in pipeline.outside
            if row.total_ns
        ),
        SPEEDUPS,
    )


def printed_stages(path: Path, solution: str, source: str) -> list[ShownPipeline]:
    """One pipeline per column of the table, with the printed shares and three digits. DerbyError for another table, or
    a cell that is not a time."""
    lines = read_text(path).splitlines()
    gpu = next((line[2:] for line in lines[1:3] if line.startswith("# ")), "GPU not named")
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line and not line.startswith("#")]
    if not numbered:
        raise DerbyError(f"{path}: holds no table; write it with `derby profile stages --overview`")
    table = [(number, *next(csv.reader([line]))) for number, line in numbered]
    head = [str(cell) for cell in table[0][1:]]
    if head[:2] != _HEAD:
        raise DerbyError(f"{path}:{table[0][0]}: begins with {', '.join(head[:2])}, not {', '.join(_HEAD)}; mend it")
    return [
        _column(path, solution, gpu, source, column, title, table[1:]) for column, title in enumerate(head[2:], start=3)
    ]


def _column(
    path: Path, solution: str, gpu: str, source: str, column: int, title: str, table: Sequence[tuple[object, ...]]
) -> ShownPipeline:
    stages, total, span = [], None, None
    for row in table:
        number, name, what, *_ = row
        cell = _cell(f"{path}:{number}", str(row[column]).strip() if column < len(row) else "-")
        if cell is None:
            continue
        if what == _TOTAL:
            total = cell[0]
        elif what == _SPAN:
            span = cell[0]
        else:
            share = cell[1] or 0.0
            gains = (*(amdahl(share, factor) for factor in SPEEDUPS), amdahl(share, float("inf")))
            stages.append(
                ShownStage(
                    words(str(name)),
                    words(str(what)),
                    cell[0],
                    rounded(share),
                    name in (BETWEEN, NOT_ITEMISED),
                    tuple(map(rounded, gains)) if share < 1 else (),
                )
            )
    if total is None:
        raise DerbyError(f"{path}: column {title}: has no {_TOTAL}; write the table anew")
    return ShownPipeline(
        words(solution),
        words(title),
        words(gpu),
        words(source),
        "us an invocation",
        total,
        span,
        tuple(stages),
        (),
        SPEEDUPS,
    )


def _cell(where: str, text: str) -> tuple[float, float | None] | None:
    """us and share of one cell; None for "-"."""
    if text in ("-", ""):
        return None
    found = _CELL.fullmatch(text)
    if not found:
        raise DerbyError(f"{where}: {text!r} is no time such as 3.18 (1.2%); mend it")
    return float(found[1]), rounded(float(found[2]) / 100) if found[2] else None
