"""A Survey as an answer: its numbers, its tables, its picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, frame
from kernelderby.report.roofline.tables import operators_report, shapes_reports
from kernelderby.roofline.operators import PUBLISHED, Operator, Shape, Survey


def survey_answer(survey: Survey, by_shape: bool = False) -> Answer[Survey]:
    """Frames: operators and shapes; with by_shape in the other order, and with tables of every shape."""
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
        "gpus": [to_builtins(gpu) for gpu in survey.gpus],
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
    """GPUs without a peak and shapes without a time have no value. shape: source -> the shape whose S is the
    operator's; without times the middle shape."""
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


def draw_shares(survey: Survey, path: Path) -> None:
    """S over flop per byte: a dot for each shape, a mark for each operator."""
    from kernelderby.report.scatter import shares

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
    shares(dots, marks, path, title=f"Share of the hardware's limit on {source.gpu.names[0]}: {what}")
