"""Two profiles of a pipeline, stage by stage, per invocation."""

from __future__ import annotations

from array import array

from kernelderby.profile.compare.caveats import Caveat, Overlapping
from kernelderby.profile.compare.difference import Comparison, RowTimes, difference, lettered, ordered
from kernelderby.profile.stages.walk import TOGETHER, Pipeline


def compare_stages(before: Pipeline, after: Pipeline) -> Comparison:
    """Compares by stage. If a summary merges two stages, the sum of the two is compared."""
    overlapped = [pipeline for pipeline in (before, after) if pipeline.overlaps]
    by_added = bool(overlapped) and before.added_ns is not None and after.added_ns is not None
    left, right = _by_stage(before, by_added), _by_stage(after, by_added)
    for name in [name for name in (*left, *right) if TOGETHER in name]:
        _join(left, name)
        _join(right, name)
    per_invocation = bool(before.invocations and after.invocations)
    divisors = (before.invocations or 1, after.invocations or 1) if per_invocation else (1, 1)
    warnings = lettered(before.warnings, after.warnings)
    warnings += [Overlapping(pipeline.profile, "stage", by_added) for pipeline in overlapped]
    if not per_invocation:
        warnings.append(Caveat.NO_INVOCATIONS)
    changes = ordered(
        difference(name, left.get(name), right.get(name), divisors) for name in dict.fromkeys((*left, *right))
    )
    totals = [sum(row.total_ns for row in rows.values()) / by for rows, by in zip((left, right), divisors, strict=True)]
    return Comparison(
        before.profile,
        after.profile,
        before.gpu,
        after.gpu,
        "stage",
        "invocation" if per_invocation else "profile",
        before.invocations,
        after.invocations,
        totals[0],
        totals[1],
        changes,
        tuple(warnings),
    )


def _by_stage(pipeline: Pipeline, by_added: bool) -> dict[str, RowTimes]:
    return {
        row.name: RowTimes(
            row.title,
            row.instances,
            row.added_ns if by_added and row.added_ns is not None else row.total_ns,
            array("q", pipeline.samples.get(row.name, ((), ()))[by_added]),
        )
        for row in pipeline.stages
        if row.total_ns
    }


def _join(rows: dict[str, RowTimes], merged: str) -> None:
    """Replaces separate parts of a merged name by their sum."""
    parts = [rows.pop(name) for name in merged.split(TOGETHER) if name in rows]
    if parts:
        rows[merged] = RowTimes(
            "; ".join(part.title for part in parts),
            sum(part.instances for part in parts),
            sum(part.total_ns for part in parts),
        )
