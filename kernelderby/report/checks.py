"""Results of `derby check` as tables: a row a case, a column a solution, PASS or FAIL first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from kernelderby.report.answer import Answer
from kernelderby.report.frame import frame
from kernelderby.report.model import NOTHING, Column, Report, Table, TableCell
from kernelderby.store.counts import counted

PASSED = "passed"


class Checked(Protocol):
    """One solution on one case: a measure.checks.CheckResult."""

    @property
    def definition(self) -> str: ...

    @property
    def solution(self) -> str: ...

    @property
    def case(self) -> str: ...

    @property
    def status(self) -> str: ...

    @property
    def message(self) -> str: ...

    @property
    def matched_ratio(self) -> float | None: ...

    def to_json(self) -> dict[str, Any]: ...


def checks_answer(
    device: str,
    results: Sequence[Checked],
    skipped: Mapping[str, str],
    broken: Mapping[str, str],
    secret: str,
    fresh: int = 0,
    details: bool = True,
    asked: str = "",
) -> Answer[Sequence[Checked]]:
    """Frame: cases. skipped: solution -> reason. broken: definition -> why nothing can be judged by it. secret: what
    the inputs were drawn from, and `fresh` shapes of each definition. details: a table of cases for each operator, else
    one line an operator. asked: the words of the command where solutions' names do not say them."""
    return Answer(
        results,
        lambda: {
            "device": device,
            "secret": secret,
            "results": [result.to_json() for result in results],
            "skipped": skipped,
            "broken": broken,
        },
        lambda: list(
            _reports(
                device,
                results,
                skipped,
                broken,
                f"--fresh {fresh} --secret {secret}" if fresh else f"--secret {secret}",
                details,
                asked,
            )
        ),
        lambda: (frame("cases", ({"device": device} | result.to_json() for result in results)),),
    )


def _reports(
    device: str,
    results: Sequence[Checked],
    skipped: Mapping[str, str],
    broken: Mapping[str, str],
    again: str,
    details: bool,
    asked: str,
) -> Iterator[Report]:
    by_definition: dict[str, list[Checked]] = {}
    for result in results:
        by_definition.setdefault(result.definition, []).append(result)
    for definition, own in by_definition.items() if details else ():
        yield Report(f"{definition} on {device}", (), (_table(own),))
    lines = () if details or not by_definition else (_overview(device, by_definition),)
    failed = [result for result in results if result.status != PASSED]
    groups: dict[tuple[str, str], list[Checked]] = {}
    for result in failed:
        groups.setdefault((result.solution, result.status), []).append(result)
    notes = []
    for (solution, status), cases in groups.items():
        more = f" and {counted(len(cases) - 1, 'more case')}" if len(cases) > 1 else ""
        notes.append(f"FAILED {solution} on {cases[0].case}{more}: {status}: {cases[0].message}")
        notes += getattr(cases[0], "why", ())
    if failed:
        names = asked or " ".join(dict.fromkeys(each.solution for each in failed))
        notes.append(f"the same inputs again: derby check {names} {again}")
    if details:
        notes += [f"skipped {name}: {reason}" for name, reason in skipped.items()]
    elif skipped:
        needs = Counter(re.split("[:;]", reason)[0] for reason in skipped.values())
        told = ", ".join(f"{reason} ({count})" for reason, count in needs.most_common(3))
        rest = len(skipped) - sum(count for _, count in needs.most_common(3))
        more = f", {counted(rest, 'other')}" if rest else ""
        notes.append(f"skipped: {told}{more}; --details or derby doctor names them")
    notes += [f"BROKEN definition {name}: {reason}" for name, reason in broken.items()]
    yield Report(
        f"{len(results) - len(failed)} passed, {len(failed)} failed, {counted(len(skipped), 'solution')} skipped",
        (),
        lines,
        tuple(notes),
    )


def _overview(device: str, by_definition: Mapping[str, Sequence[Checked]]) -> Table:
    """One row an operator."""
    rows = []
    for definition, own in by_definition.items():
        failed = sum(result.status != PASSED for result in own)
        rows.append(
            (
                TableCell("FAIL", "bad") if failed else TableCell("PASS"),
                TableCell(definition),
                TableCell(str(len({result.solution for result in own}))),
                TableCell(str(len(own))),
                TableCell(str(failed), "bad") if failed else NOTHING,
            )
        )
    columns = (Column("result", "left"), Column("operator", "left"), Column("solutions"), Column("checks"))
    return Table(f"Checked on {device}", (*columns, Column("failed")), tuple(rows), key_columns=2)


def _table(results: Sequence[Checked]) -> Table:
    cells = {(result.case, result.solution): result for result in results}
    solutions = list(dict.fromkeys(result.solution for result in results))
    rows = []
    for case in dict.fromkeys(result.case for result in results):
        has_failed = any(cells[case, name].status != PASSED for name in solutions if (case, name) in cells)
        rows.append(
            (
                TableCell("FAIL", "bad") if has_failed else TableCell("PASS"),
                TableCell(case),
                *(_cell(cells.get((case, name))) for name in solutions),
            )
        )
    return Table(
        "Share of elements within the tightest tolerance",
        (Column("result", "left"), Column("case", "left"), *map(Column, solutions)),
        tuple(rows),
        key_columns=2,
    )


def _cell(result: Checked | None) -> TableCell:
    if result is None:
        return NOTHING
    ratio = "" if result.matched_ratio is None else f"{result.matched_ratio:.4f}"
    if result.status == PASSED:
        return TableCell(ratio or "passed")
    return TableCell(f"{result.status} {ratio}".strip(), "bad")
