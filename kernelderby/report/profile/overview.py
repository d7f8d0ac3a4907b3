"""Several Pipelines of one solution side by side: each stage's time of one invocation and its share."""

from __future__ import annotations

from collections.abc import Sequence

from kernelderby.profile.stages.walk import Pipeline, StageRow
from kernelderby.report.model import NOTHING, Column, Report, Table, TableCell
from kernelderby.report.numbers import microseconds, milliseconds

FLAG = " !"


def overview_report(pipelines: Sequence[Pipeline], names: Sequence[str]) -> Report:
    """names: of the profiles, short enough for a column. Times are totals where a profile has no invocations."""
    has_invocations = all(pipeline.invocations for pipeline in pipelines)
    unit = "us an invocation" if has_invocations else "ms in all"
    seen = {row.name for pipeline in pipelines for row in pipeline.stages if row.total_ns}
    titles = {row.name: row.title for pipeline in pipelines for row in pipeline.stages if row.name in seen}
    rows = [
        (TableCell(stage), TableCell(title), *(_cell(pipeline, stage, has_invocations) for pipeline in pipelines))
        for stage, title in titles.items()
    ]
    rows.append(
        (
            TableCell("pipeline"),
            TableCell("sum of the stages"),
            *(TableCell(_time(pipeline, pipeline.cost_ns, has_invocations)) for pipeline in pipelines),
        )
    )
    if has_invocations and any(pipeline.span_ns for pipeline in pipelines):
        rows.append((TableCell(""), TableCell("first start to last end"), *map(_span, pipelines)))
    columns = (Column("stage", "left"), Column("what it does", "left"), *map(Column, names))
    table = Table(
        f"Stages side by side: {unit} (share of the pipeline)",
        columns,
        tuple(rows),
        caption=f"* the largest;{FLAG} its count does not fit the invocations, see the table of that profile",
    )
    notes = tuple(
        f"{name}: kernels overlap; a stage's time is what it adds, overlapped time counts once"
        for name, pipeline in zip(names, pipelines, strict=True)
        if pipeline.overlaps
    )
    gpus = ", ".join(sorted({pipeline.gpu or "GPU not named" for pipeline in pipelines}))
    return Report(title=pipelines[0].solution, facts=(gpus,), tables=(table,), notes=notes)


def _cell(pipeline: Pipeline, stage: str, has_invocations: bool) -> TableCell:
    row = next((row for row in pipeline.stages if row.name == stage and row.total_ns), None)
    if row is None:
        return NOTHING
    text = f"{_time(pipeline, pipeline.time_ns(row), has_invocations)} ({pipeline.time_ns(row) / pipeline.cost_ns:.1%})"
    return TableCell(text + (FLAG if row.notes else ""), "best" if row is _largest(pipeline) else "")


def _largest(pipeline: Pipeline) -> StageRow:
    return max(pipeline.stages, key=pipeline.time_ns)


def _time(pipeline: Pipeline, nanoseconds: float, has_invocations: bool) -> str:
    if has_invocations and pipeline.invocations:
        return microseconds(nanoseconds / pipeline.invocations / 1e3)
    return milliseconds(nanoseconds)


def _span(pipeline: Pipeline) -> TableCell:
    if pipeline.span_ns is None or not pipeline.invocations:
        return NOTHING
    return TableCell(microseconds(pipeline.span_ns / pipeline.invocations / 1e3))
