"""The answer of `derby profile stages`: pipelines one by one and side by side, as data and as tidy tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from kernelderby.profile.stages.walk import Pipeline
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, frame
from kernelderby.report.model import Report
from kernelderby.report.profile.overview import overview_report
from kernelderby.report.profile.stages import stages_report


def stages_answer(
    pipelines: Sequence[Pipeline], titles: Sequence[str] | None = None, *, only_overview: bool = False
) -> Answer[tuple[Pipeline, ...]]:
    """Frames: stages, kernels, outside. titles: of the profiles, short; with them the pipelines stand side by side
    first."""
    pipelines = tuple(pipelines)
    return Answer(
        pipelines,
        lambda: {"pipelines": [_data(pipeline) for pipeline in pipelines]},
        lambda: _reports(pipelines, titles, only_overview),
        lambda: _frames(pipelines),
    )


def _reports(pipelines: Sequence[Pipeline], titles: Sequence[str] | None, only_overview: bool) -> list[Report]:
    reports = [] if only_overview else [stages_report(pipeline) for pipeline in pipelines]
    return reports if titles is None else [overview_report(pipelines, titles), *reports]


def _data(pipeline: Pipeline) -> dict[str, Any]:
    """With what asdict leaves out: shares and times of one invocation."""
    data = asdict(replace(pipeline, samples={}))
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
