"""A Comparison of two profiles as tables: steps side by side, then stages or kernels, the largest change first."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernelderby.profile.compare.difference import ChangeVerdict, Comparison, Difference, StepComparison
from kernelderby.report.answer import Answer
from kernelderby.report.frame import frame
from kernelderby.report.model import Column, Emphasis, Report, Row, Table, TableCell, cell_of, left, right
from kernelderby.report.numbers import milliseconds, us_of_ns
from kernelderby.report.profile.notes import doubt_told, first_warnings, not_comparable, steps_found_by, told_warnings
from kernelderby.report.profile.ranks import profile_names
from kernelderby.store.counts import counted

MOST = 40  # rows; a profile has hundreds of kernels, and the table is sorted


def compare_answer(found: Comparison, most: int = MOST) -> Answer[Comparison]:
    """Frames: changes, all of them; steps, one row per measure and kind. most: maximum rows in text and Markdown."""
    return Answer(
        found,
        lambda: {"comparison": _data(found)},
        lambda: [compare_report(found, most)],
        lambda: (frame("changes", _data(found)["changes"]), frame("steps", _step_rows(_data(found)))),
        draw=lambda path: _draw(found, most, path),
    )


def _draw(found: Comparison, most: int, path: Path) -> None:
    from kernelderby.report.plot import differences

    before, after = profile_names([found.before, found.after])
    is_whole = found.unit == "profile"
    changes = {each.name: each.change_ns / (1e6 if is_whole else 1e3) for each in found.changes[: min(most, 25)]}
    unit = "ms" if is_whole else f"us of one {found.unit}"
    differences(changes, path, unit=unit, title=f"Change from {before} to {after}")


def _step_rows(data: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per kind and measure, with the kind's counts."""
    return [
        {name: value for name, value in each.items() if name != "measures"} | measure
        for each in data["steps"]
        for measure in each["measures"]
    ]


def _data(found: Comparison) -> dict[str, Any]:
    """The data of asdict, with ratios and verdicts added."""
    data = asdict(found) | {
        "warnings": told_warnings(found.warnings),
        "said_first": first_warnings(found.said_first),
        "not_comparable": not_comparable(found.not_comparable),
        "steps_by": [*map(steps_found_by, found.steps_by)],
        "ratio": found.ratio,
    }
    data["changes"] = [_row_data(change) for change in found.changes]
    for row, each in zip(data["steps"], found.steps, strict=True):
        row["measures"] = [_row_data(measure) for measure in each.measures]
    return data


def _row_data(change: Difference) -> dict[str, Any]:
    return asdict(change) | {
        "possible": doubt_told(change.possible),
        "change_ns": change.change_ns,
        "ratio": change.ratio,
        "launch_ratio": change.launch_ratio,
        "verdict": change.verdict,
        "launches": change.launches,
    }


def compare_report(comparison: Comparison, most: int = MOST) -> Report:
    left = len(comparison.changes) - most
    notes = [f"{left} more with smaller changes"] if left > 0 else []
    doubts = [
        f"{change.name}: {doubt_told(change.possible)}" for change in comparison.changes[:most] if change.possible
    ]
    if doubts:
        notes.append(f"possibly renamed, not certain: {'; '.join(doubts)}")
    return Report(
        title=f"A {comparison.before}, B {comparison.after}",
        facts=_facts(comparison),
        tables=(*map(_step_table, comparison.steps), _change_table(comparison, most)),
        notes=(*notes, *told_warnings(comparison.warnings)),
    )


def _step_table(steps: StepComparison) -> Table:
    """One kind of step: mean times, and whether a test separates them."""
    columns = (
        Column("a step, mean", "left"),
        *right("A us", "B us", "B over A"),
        Column("what happened", "left"),
        Column("chance"),
    )
    rows = tuple(
        (
            row.name,
            _time(row.before_ns, True),
            _time(row.after_ns, True),
            None if row.ratio is None else TableCell(f"{row.ratio:.3f}", _emphasis(row)),
            TableCell(_RISEN.get(row.verdict, row.verdict), _emphasis(row)),
            _chance(row.chance),
        )
        for row in steps.measures
    )
    whole = not steps.title and steps.before == steps.after == 1
    title = "The whole profile" if whole else f"Steps: {steps.title or 'found by their period'}"
    caption = (
        f"{counted(steps.before, 'step')} in A, {steps.after} in B; operations a step: {steps.before_operations:g}, "
        f"{steps.after_operations:g}. wall: to the next step's first kernel; exposed: beside it nothing was computed"
    )
    return Table(title, columns, rows, caption)


_RISEN = {ChangeVerdict.SPED_UP: "shorter", ChangeVerdict.SLOWED_DOWN: "longer"}


_EMPHASIS: dict[ChangeVerdict, Emphasis] = {ChangeVerdict.SLOWED_DOWN: "bad", ChangeVerdict.SPED_UP: "best"}


def _emphasis(row: Difference) -> Emphasis:
    return _EMPHASIS.get(row.verdict, "")


def _per_run(comparison: Comparison) -> bool:
    """Whether times are per invocation or step, and so in us."""
    return comparison.unit in ("invocation", "step")


def _change_table(comparison: Comparison, most: int) -> Table:
    short = _per_run(comparison)
    by_launch = comparison.by == "kernel"
    unit = "us" if short else "ms"
    columns = (
        *left(comparison.by, "what happened"),
        *right(f"change {unit}", "% of the change", "launches A", "launches B"),
        *(right("us a launch A", "us a launch B") if by_launch else ()),
        *right("B over A", "chance", f"A {unit}", f"B {unit}"),
    )
    rows = [_line(change, short, by_launch) for change in comparison.changes[:most]]
    rows.append(_total(comparison, short, by_launch))
    kind = f" ({comparison.kind})" if comparison.kind else ""
    what = f"Times of one {comparison.unit}{kind}" if short else "Times of the whole profile"
    of = "a launch" if by_launch else "an invocation"
    caption = (
        f"B over A: what {of} takes, below 1 B is faster; up to 2 % is unchanged; more or fewer launches: for the "
        "length of the profile; chance: how often the times would differ so by chance, corrected for the number of "
        "rows, below 0.01 they do; not tested: fewer than five times. * half of the change or more"
    )
    return Table(what, columns, rows, caption=caption)


def _facts(comparison: Comparison) -> tuple[str, ...]:
    def side(letter: str, gpu: str | None, count: int | None) -> str:
        unit = comparison.unit if comparison.unit != "profile" else "invocation"
        told = f", {count} {unit}{'s' * (count != 1)}" if count else ""
        return f"{letter}: {gpu or 'GPU not named'}{told}"

    why = not_comparable(comparison.not_comparable)
    first = [f"NOT COMPARABLE: {why}"] if why else []
    first += [f"WARNING: {said}" for said in first_warnings(comparison.said_first)]
    by = [
        f"steps of {letter} by {how}"
        for letter, how in zip("AB", map(steps_found_by, comparison.steps_by), strict=True)
        if how
    ]
    before = side("A", comparison.before_gpu, comparison.before_invocations)
    after = side("B", comparison.after_gpu, comparison.after_invocations)
    return (*first, " · ".join((before, after)), *((" · ".join(by),) if by else ()), *_gist(comparison))


def _gist(comparison: Comparison) -> tuple[str, ...]:
    """The summary line: 541.1 became 494.1 ms (-8.7%); unchanged 24, within chance 2, sped up 1."""
    short = _per_run(comparison)
    before, after = (_time(each, short) for each in (comparison.before_ns, comparison.after_ns))
    unit = f"us {'a' if comparison.unit == 'step' else 'an'} {comparison.unit}" if short else "ms"
    ratio = f" ({comparison.ratio - 1:+.1%})" if comparison.ratio is not None and not comparison.not_comparable else ""
    verdicts = Counter(change.verdict for change in comparison.changes)
    said = ", ".join(f"{verdict} {number}" for verdict, number in verdicts.most_common())
    what = "kernel time " if comparison.by == "kernel" else ""
    return (f"{what}{before} became {after} {unit}{ratio}; by {comparison.by}: {said}",) if said else ()


def _line(change: Difference, short: bool, by_launch: bool) -> Row:
    emphasis: Emphasis = ""
    if change.verdict in (ChangeVerdict.SPED_UP, ChangeVerdict.VANISHED) and (change.share_of_change or 0) >= 0.5:
        emphasis = "best"
    if change.verdict in (ChangeVerdict.SLOWED_DOWN, ChangeVerdict.APPEARED):
        emphasis = "bad"
    faster = change.launch_ratio if by_launch else change.ratio
    what = ", ".join(filter(None, (change.verdict, change.launches, "possibly renamed" if change.possible else "")))
    launches = (cell_of(each, us_of_ns) for each in (change.before_launch_ns, change.after_launch_ns))
    return (
        change.name,
        TableCell(what, emphasis),
        _signed(change.change_ns, short),
        None if change.share_of_change is None else f"{100 * change.share_of_change:+.1f}",
        change.before_instances or None,
        change.after_instances or None,
        *(launches if by_launch else ()),
        None if faster is None else TableCell(f"{faster:.3f}", emphasis),
        _chance(change.chance),
        _time(change.before_ns, short),
        _time(change.after_ns, short),
    )


def _total(comparison: Comparison, short: bool, by_launch: bool) -> Row:
    change = comparison.after_ns - comparison.before_ns
    known = comparison.ratio is not None and not by_launch and not comparison.not_comparable
    ratio = f"{comparison.ratio:.3f}" if known else None
    launches = (None,) * (4 if by_launch else 2)
    times = (_time(comparison.before_ns, short), _time(comparison.after_ns, short))
    return ("all", "", _signed(change, short), "100.0" if change else None, *launches, ratio, None, *times)


def _chance(value: float | None) -> str | None:
    return None if value is None else "<0.001" if value < 0.001 else f"{value:.3f}"


def _time(nanoseconds: float | None, short: bool) -> str | None:
    if nanoseconds is None:
        return None
    return us_of_ns(nanoseconds) if short else milliseconds(nanoseconds)


def _signed(nanoseconds: float, short: bool) -> str:
    sign = "+" if nanoseconds > 0 else "-" if nanoseconds < 0 else ""
    return f"{sign}{_time(abs(nanoseconds), short)}"
