"""A Comparison of two profiles as a table, the largest change first."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from kernelderby.profile.compare import Comparison, Difference
from kernelderby.report.answer import Answer
from kernelderby.report.frame import frame
from kernelderby.report.model import NOTHING, Column, Emphasis, Report, Table, TableCell
from kernelderby.report.numbers import microseconds, milliseconds

MOST = 40  # rows; a profile has hundreds of kernels, and the table is sorted


def compare_answer(found: Comparison, most: int = MOST) -> Answer[Comparison]:
    """Frame: changes, all of them. most: rows of text and Markdown."""
    return Answer(
        found,
        lambda: {"comparison": _data(found)},
        lambda: [compare_report(found, most)],
        lambda: (frame("changes", _data(found)["changes"]),),
    )


def _data(found: Comparison) -> dict[str, Any]:
    """With what asdict leaves out: ratios and verdicts."""
    data = asdict(found) | {"ratio": found.ratio}
    for row, change in zip(data["changes"], found.changes, strict=True):
        row |= {
            "change_ns": change.change_ns,
            "ratio": change.ratio,
            "launch_ratio": change.launch_ratio,
            "verdict": change.verdict,
            "launches": change.launches,
        }
    return data


def compare_report(comparison: Comparison, most: int = MOST) -> Report:
    per_invocation = comparison.unit == "invocation"
    by_launch = comparison.by == "kernel"
    unit = "us" if per_invocation else "ms"
    columns = (
        Column(comparison.by, "left"),
        Column("what happened", "left"),
        Column(f"change {unit}"),
        Column("% of the change"),
        Column("launches A"),
        Column("launches B"),
        *((Column("us a launch A"), Column("us a launch B")) if by_launch else ()),
        Column("B over A"),
        *((Column("chance"),) if by_launch else ()),
        Column(f"A {unit}"),
        Column(f"B {unit}"),
    )
    rows = [_line(change, per_invocation, by_launch) for change in comparison.changes[:most]]
    rows.append(_total(comparison, per_invocation, by_launch))
    what = "Times of one invocation" if per_invocation else "Times of the whole profile"
    of = "a launch" if by_launch else "an invocation"
    caption = (
        f"B over A: what {of} takes, below 1 B is faster; up to 2 % is unchanged; more or fewer launches: for the "
        "length of the profile"
        + ("; chance: how often the launches' times would differ so by chance, below 0.01 they do" if by_launch else "")
        + ". * half of the change or more"
    )
    table = Table(what, columns, tuple(rows), caption=caption)
    left = len(comparison.changes) - most
    notes = [f"{left} more with smaller changes"] if left > 0 else []
    return Report(
        title=f"A {comparison.before}, B {comparison.after}",
        facts=_facts(comparison),
        tables=(table,),
        notes=(*notes, *comparison.warnings),
    )


def _facts(comparison: Comparison) -> tuple[str, ...]:
    def side(letter: str, gpu: str | None, invocations: int | None) -> str:
        count = f", {invocations} invocations" if invocations else ""
        return f"{letter}: {gpu or 'GPU not named'}{count}"

    return (
        " · ".join(
            (
                side("A", comparison.before_gpu, comparison.before_invocations),
                side("B", comparison.after_gpu, comparison.after_invocations),
            )
        ),
        *_gist(comparison),
    )


def _gist(comparison: Comparison) -> tuple[str, ...]:
    """What a reader wants first: 541.1 became 494.1 ms (-8.7%); unchanged 24, within chance 2, sped up 1."""
    per_invocation = comparison.unit == "invocation"
    before, after = (_time(each, per_invocation).text for each in (comparison.before_ns, comparison.after_ns))
    unit = "us an invocation" if per_invocation else "ms"
    ratio = f" ({comparison.ratio - 1:+.1%})" if comparison.ratio is not None else ""
    verdicts = Counter(change.verdict for change in comparison.changes)
    said = ", ".join(f"{verdict} {number}" for verdict, number in verdicts.most_common())
    return (f"{before} became {after} {unit}{ratio}; by {comparison.by}: {said}",) if said else ()


def _line(change: Difference, per_invocation: bool, by_launch: bool) -> tuple[TableCell, ...]:
    emphasis: Emphasis = ""
    if change.verdict in ("sped up", "vanished") and (change.share_of_change or 0) >= 0.5:
        emphasis = "best"
    if change.verdict in ("slowed down", "appeared"):
        emphasis = "bad"
    faster = change.launch_ratio if by_launch else change.ratio
    ratio = TableCell(f"{faster:.3f}", emphasis) if faster is not None else NOTHING
    share = NOTHING if change.share_of_change is None else TableCell(f"{100 * change.share_of_change:+.1f}")
    what = ", ".join(filter(None, (change.verdict, change.launches)))
    return (
        TableCell(change.name),
        TableCell(what, emphasis),
        TableCell(_signed(change.change_ns, per_invocation)),
        share,
        _count(change.before_instances),
        _count(change.after_instances),
        *((_launch(change.before_launch_ns), _launch(change.after_launch_ns)) if by_launch else ()),
        ratio,
        *((_chance(change.chance),) if by_launch else ()),
        _time(change.before_ns, per_invocation),
        _time(change.after_ns, per_invocation),
    )


def _total(comparison: Comparison, per_invocation: bool, by_launch: bool) -> tuple[TableCell, ...]:
    change = comparison.after_ns - comparison.before_ns
    ratio = TableCell(f"{comparison.ratio:.3f}") if comparison.ratio is not None and not by_launch else NOTHING
    return (
        TableCell("all"),
        TableCell(""),
        TableCell(_signed(change, per_invocation)),
        TableCell("100.0") if change else NOTHING,
        NOTHING,
        NOTHING,
        *((NOTHING, NOTHING) if by_launch else ()),
        ratio,
        *((NOTHING,) if by_launch else ()),
        _time(comparison.before_ns, per_invocation),
        _time(comparison.after_ns, per_invocation),
    )


def _launch(nanoseconds: float | None) -> TableCell:
    return NOTHING if nanoseconds is None else TableCell(microseconds(nanoseconds / 1e3))


def _chance(value: float | None) -> TableCell:
    return NOTHING if value is None else TableCell("<0.001" if value < 0.001 else f"{value:.3f}")


def _count(instances: int) -> TableCell:
    return TableCell(str(instances)) if instances else NOTHING


def _time(nanoseconds: float | None, per_invocation: bool) -> TableCell:
    if nanoseconds is None:
        return NOTHING
    return TableCell(microseconds(nanoseconds / 1e3) if per_invocation else milliseconds(nanoseconds))


def _signed(nanoseconds: float, per_invocation: bool) -> str:
    text = microseconds(abs(nanoseconds) / 1e3) if per_invocation else milliseconds(abs(nanoseconds))
    return f"+{text}" if nanoseconds > 0 else f"-{text}" if nanoseconds < 0 else text
