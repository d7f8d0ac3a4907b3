"""The verdict of a gate, one row per workload, for people, pull requests and machines."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from kernelderby.catalog.selection import shortest_labels
from kernelderby.report.answer import Answer
from kernelderby.report.frame import frame
from kernelderby.report.model import Column, Emphasis, Report, Row, Table, TableCell, left, right
from kernelderby.report.numbers import microseconds
from kernelderby.statistics.gate import CANNOT_TELL, NO_REGRESSION, REGRESSION

_SHARES = ("change", "low", "high", "noise", "detectable")
_EXIT = {NO_REGRESSION: 0, REGRESSION: 1, CANNOT_TELL: 2}


def overall_verdict(found: Sequence[Any]) -> str:
    """The verdict over all workloads: a regression if there is one, otherwise "cannot tell" if there is one."""
    verdicts = {each.verdict for each in found}
    return next((each for each in (REGRESSION, CANNOT_TELL) if each in verdicts), NO_REGRESSION)


def exit_code(found: Sequence[Any]) -> int:
    return _EXIT[overall_verdict(found)]


def gate_answer(
    names: tuple[str, str], machine: str, least: float, found: Sequence[Any], notes: Sequence[str] = ()
) -> Answer[Sequence[Any]]:
    """Frame: workloads. names: the base's and the candidate's. least: the smallest slowdown that counts. found:
    measure.run.gate.GatedWorkload records."""
    rows = [_data(each) for each in found]
    return Answer(
        found,
        lambda: {
            **{"base": names[0], "candidate": names[1], "machine": machine, "least_percent": 100 * least},
            **{"verdict": overall_verdict(found), "exit_code": exit_code(found)},
            "workloads": rows,
            "notes": list(notes),
        },
        lambda: [_report(names, machine, least, found, notes)],
        lambda: (frame("workloads", rows),),
    )


def _data(each: Any) -> dict[str, Any]:
    gated = each.gated
    return {
        "uuid": each.workload.uuid,
        "axes": each.workload.axes,
        "verdict": each.verdict,
        "time": each.kind or None,
        "base_us": gated and gated.base_us,
        "candidate_us": gated and gated.candidate_us,
        **{f"{name}_percent": gated and _percent(getattr(gated, name)) for name in _SHARES},
        "starts": gated and gated.starts,
        "failure": each.failure or None,
    }


def _percent(value: float) -> float | None:
    """None if too few starts were allowed to bound it."""
    return 100 * value if isfinite(value) else None


def _report(names: tuple[str, str], machine: str, least: float, found: Sequence[Any], notes: Sequence[str]) -> Report:
    labels = shortest_labels([each.workload for each in found])
    columns = (
        *left("verdict", "workload"),
        *right("base us", "candidate us", "change", "interval"),
        Column("noise of base", is_optional=True),
        Column("finds from"),
    )
    rows: list[Row] = []
    for each in found:
        emphasis: Emphasis = "bad" if each.verdict == REGRESSION else ""
        head = (TableCell(each.verdict, emphasis), labels[each.workload.uuid] or each.workload.uuid[:8])
        if (gated := each.gated) is None:
            rows.append((*head, *[None] * 6))
            continue
        rows.append(
            (
                *head,
                microseconds(gated.base_us),
                microseconds(gated.candidate_us),
                TableCell(f"{100 * gated.change:+.2f}%", emphasis),
                f"{100 * gated.low:+.2f} to {100 * gated.high:+.2f}%" if isfinite(gated.high) else None,
                f"{100 * gated.noise:.2f}%",
                f"+{100 * gated.detectable:.2f}%" if isfinite(gated.detectable) else None,
            )
        )
    kinds = sorted({each.kind for each in found if each.kind})
    caption = (
        f"A slowdown counts from {100 * least:g}% on. Noise of base: the difference of two processes of the base. "
        "Finds from: the smallest slowdown that 95 of 100 runs find. Without one, 1 run in 100 at most raises an alarm."
    )
    failures = [f"{labels[each.workload.uuid]}: {each.failure}" for each in found if each.failure]
    return Report(
        f"derby gate: {overall_verdict(found)}",
        (f"{names[0]} → {names[1]} · {machine}" + (f" · {' and '.join(kinds)} time" if kinds else ""),),
        (Table("Workloads", columns, rows, caption, key_columns=2),),
        (*failures, *notes),
    )
