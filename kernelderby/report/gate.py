"""The verdict of a gate: a row a workload, for people, for a pull request and for machines."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, Protocol

from kernelderby.catalog import Workload
from kernelderby.catalog.selection import shortest_labels
from kernelderby.report.answer import Answer
from kernelderby.report.frame import frame
from kernelderby.report.model import NOTHING, Column, Emphasis, Report, Table, TableCell
from kernelderby.report.numbers import microseconds
from kernelderby.statistics.gate import CANNOT_TELL, NO_REGRESSION, REGRESSION, Gated

_EXIT = {NO_REGRESSION: 0, REGRESSION: 1, CANNOT_TELL: 2}


class GatedOne(Protocol):
    """A measure.run.gate.GatedWorkload."""

    @property
    def workload(self) -> Workload: ...

    @property
    def verdict(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def gated(self) -> Gated | None: ...

    @property
    def failure(self) -> str: ...


def overall(found: Sequence[GatedOne]) -> str:
    """One regression is one; else one that nobody can tell is none told."""
    verdicts = {each.verdict for each in found}
    return next((each for each in (REGRESSION, CANNOT_TELL) if each in verdicts), NO_REGRESSION)


def exit_code(found: Sequence[GatedOne]) -> int:
    return _EXIT[overall(found)]


def gate_answer(
    names: tuple[str, str], machine: str, least: float, found: Sequence[GatedOne], notes: Sequence[str] = ()
) -> Answer[Sequence[GatedOne]]:
    """Frame: workloads. names: of the base and the candidate. least: the smallest slowdown that counts."""
    rows = [_data(each) for each in found]
    return Answer(
        found,
        lambda: {
            "base": names[0],
            "candidate": names[1],
            "machine": machine,
            "least_percent": 100 * least,
            "verdict": overall(found),
            "exit_code": exit_code(found),
            "workloads": rows,
            "notes": list(notes),
        },
        lambda: [_report(names, machine, least, found, notes)],
        lambda: (frame("workloads", rows),),
    )


def _data(each: GatedOne) -> dict[str, Any]:
    gated = each.gated
    return {
        "uuid": each.workload.uuid,
        "axes": each.workload.axes,
        "verdict": each.verdict,
        "time": each.kind or None,
        "base_us": gated and gated.base_us,
        "candidate_us": gated and gated.candidate_us,
        "change_percent": gated and _percent(gated.change),
        "low_percent": gated and _percent(gated.low),
        "high_percent": gated and _percent(gated.high),
        "noise_percent": gated and _percent(gated.noise),
        "detectable_percent": gated and _percent(gated.detectable),
        "starts": gated and gated.starts,
        "failure": each.failure or None,
    }


def _percent(value: float) -> float | None:
    """None where too few starts were allowed to bound it."""
    return 100 * value if isfinite(value) else None


def _report(
    names: tuple[str, str], machine: str, least: float, found: Sequence[GatedOne], notes: Sequence[str]
) -> Report:
    labels = shortest_labels([each.workload for each in found])
    columns = (
        Column("verdict", "left"),
        Column("workload", "left"),
        *map(Column, ("base us", "candidate us", "change", "interval", "noise of base", "finds from")),
    )
    rows = []
    for each in found:
        emphasis: Emphasis = "bad" if each.verdict == REGRESSION else ""
        head = (TableCell(each.verdict, emphasis), TableCell(labels[each.workload.uuid] or each.workload.uuid[:8]))
        if (gated := each.gated) is None:
            rows.append((*head, *[NOTHING] * 6))
            continue
        rows.append(
            (
                *head,
                TableCell(microseconds(gated.base_us)),
                TableCell(microseconds(gated.candidate_us)),
                TableCell(f"{100 * gated.change:+.2f}%", emphasis),
                TableCell(f"{100 * gated.low:+.2f} to {100 * gated.high:+.2f}%") if isfinite(gated.high) else NOTHING,
                TableCell(f"{100 * gated.noise:.2f}%"),
                TableCell(f"+{100 * gated.detectable:.2f}%") if isfinite(gated.detectable) else NOTHING,
            )
        )
    kinds = sorted({each.kind for each in found if each.kind})
    caption = (
        f"A slowdown counts from {100 * least:g}% on. Noise of base: how far two processes of it lie apart. "
        "Finds from: the smallest slowdown that 95 of 100 runs find. Without one, 1 run in 100 at most raises an alarm."
    )
    failures = [f"{labels[each.workload.uuid]}: {each.failure}" for each in found if each.failure]
    return Report(
        f"derby gate: {overall(found)}",
        (f"{names[0]} → {names[1]} · {machine}" + (f" · {' and '.join(kinds)} time" if kinds else ""),),
        (Table("Workloads", columns, tuple(rows), caption, key_columns=2),),
        (*failures, *notes),
    )
