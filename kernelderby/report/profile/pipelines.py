"""The answer of `derby profile stages`: pipelines one by one (stages.py) and side by side, as data and tidy tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernelderby.profile.stages.walk import BETWEEN, NOT_ITEMISED, Pipeline
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, frame
from kernelderby.report.model import Report, Row, Table, TableCell, left, right
from kernelderby.report.numbers import microseconds, milliseconds
from kernelderby.report.profile.notes import pipeline_data
from kernelderby.report.profile.stages import FLAG, stages_report


def stages_answer(
    pipelines: Sequence[Pipeline], *, side_by_side: bool = False, only_overview: bool = False
) -> Answer[tuple[Pipeline, ...]]:
    """Frames: stages, kernels, outside. side_by_side: put a table that compares the pipelines first."""
    pipelines = tuple(pipelines)
    return Answer(
        pipelines,
        lambda: {"pipelines": [_data(pipeline) for pipeline in pipelines]},
        lambda: [
            *([overview_report(pipelines, _titles(pipelines))] if side_by_side else []),
            *(stages_report(pipeline) for pipeline in pipelines if not only_overview),
        ],
        lambda: _frames(pipelines),
        draw=lambda path: _draw(pipelines, path),
    )


def _solution(pipeline: Pipeline) -> str:
    """The solution's name, or the name of the file with its stages."""
    return pipeline.solution if not pipeline.solution.endswith(".toml") else Path(pipeline.solution).stem


def _titles(pipelines: Sequence[Pipeline]) -> list[str]:
    """Short titles for narrow columns: the axes for files of `derby profile run` ("seq_len901" in
    triton_compact_seq_len901_cd5fd1a5.sqlite), the names for other files."""
    paths = [each.profile for each in pipelines]
    stems = [Path(each.profile).name.partition(".")[0].removeprefix(f"{_solution(each)}_") for each in pipelines]
    for titles in ([re.sub(r"_[0-9a-f]{8}$", "", stem) for stem in stems], stems):
        if len(set(titles)) == len(titles):
            return titles
    return paths


def _draw(pipelines: Sequence[Pipeline], path: Path) -> None:
    from kernelderby.report.plot import stacked_bars

    per_invocation = all(pipeline.invocations for pipeline in pipelines)
    bars: dict[str, dict[str, float]] = {}
    for name, pipeline in zip(_titles(pipelines), pipelines, strict=True):
        scale = 1e3 * (pipeline.invocations or 1) if per_invocation else 1e6
        bars[name] = {row.name: pipeline.time_ns(row) / scale for row in pipeline.stages if row.total_ns}
    gpus = ", ".join(sorted({pipeline.gpu or "GPU not named" for pipeline in pipelines}))
    stacked_bars(
        bars,
        path,
        title=f"{_solution(pipelines[0])}: where the pipeline's kernel time goes ({gpus})",
        as_share=True,
        unit="us an invocation" if per_invocation else "ms in all",
        rest=(BETWEEN, NOT_ITEMISED),
        meanings={row.name: row.title for pipeline in pipelines for row in pipeline.stages},
    )


def _data(pipeline: Pipeline) -> dict[str, Any]:
    """pipeline_data, with shares and times of one invocation added."""
    data = pipeline_data(pipeline)
    del data["samples"]
    for row, stage in zip(data["stages"], pipeline.stages, strict=True):
        row |= {"share": pipeline.share(stage), "us_per_invocation": pipeline.per_invocation_us(stage)}
    return data | {
        "unattributed_ns": pipeline.unattributed_ns,
        "added_ns": pipeline.added_ns,
        "overlaps": pipeline.overlaps,
    }


def _frames(pipelines: Sequence[Pipeline]) -> tuple[Frame, ...]:
    stages, kernels, outside = [], [], []
    for pipeline in pipelines:
        key = {"profile": pipeline.profile, "solution": pipeline.solution}
        for row in _data(pipeline)["stages"]:
            stages.append(key | {"stage": row.pop("name")} | row)
        kernels += [
            key
            | {"stage": stage.name, "kernel": kernel.name, "instances": kernel.instances, "total_ns": kernel.total_ns}
            for stage in pipeline.stages
            for kernel in stage.kernels
        ]
        outside += [key | asdict(row) for row in pipeline.outside]
    return frame("stages", stages), frame("kernels", kernels), frame("outside", outside)


def overview_report(pipelines: Sequence[Pipeline], names: Sequence[str]) -> Report:
    """names: short names of the profiles. Times are totals for a profile without invocations."""
    has_invocations = all(pipeline.invocations for pipeline in pipelines)
    unit = "us an invocation" if has_invocations else "ms in all"
    seen = {row.name for pipeline in pipelines for row in pipeline.stages if row.total_ns}
    titles = {row.name: row.title for pipeline in pipelines for row in pipeline.stages if row.name in seen}
    rows: list[Row] = [
        (stage, title, *(_cell(pipeline, stage, has_invocations) for pipeline in pipelines))
        for stage, title in titles.items()
    ]
    sums = (_time(pipeline, pipeline.cost_ns, has_invocations) for pipeline in pipelines)
    rows.append(("pipeline", "sum of the stages", *sums))
    spans = [None if each.span_ns is None else _time(each, each.span_ns, True) for each in pipelines]
    if has_invocations and any(pipeline.span_ns for pipeline in pipelines):
        rows.append(("", "first start to last end", *spans))
    columns = (*left("stage", "what it does"), *right(*names))
    table = Table(
        f"Stages side by side: {unit} (share of the pipeline)",
        columns,
        rows,
        caption=f"* the largest;{FLAG} its count does not fit the invocations, see the table of that profile",
    )
    notes = tuple(
        f"{name}: kernels overlap; a stage's time is what it adds, overlapped time counts once"
        for name, pipeline in zip(names, pipelines, strict=True)
        if pipeline.overlaps
    )
    gpus = ", ".join(sorted({pipeline.gpu or "GPU not named" for pipeline in pipelines}))
    return Report(title=pipelines[0].solution, facts=(gpus,), tables=(table,), notes=notes)


def _cell(pipeline: Pipeline, stage: str, has_invocations: bool) -> TableCell | None:
    row = next((row for row in pipeline.stages if row.name == stage and row.total_ns), None)
    if row is None:
        return None
    text = f"{_time(pipeline, pipeline.time_ns(row), has_invocations)} ({pipeline.time_ns(row) / pipeline.cost_ns:.1%})"
    is_largest = row is max(pipeline.stages, key=pipeline.time_ns)
    return TableCell(text + (FLAG if row.notes else ""), "best" if is_largest else "")


def _time(pipeline: Pipeline, nanoseconds: float, has_invocations: bool) -> str:
    if has_invocations and pipeline.invocations:
        return microseconds(nanoseconds / pipeline.invocations / 1e3)
    return milliseconds(nanoseconds)
