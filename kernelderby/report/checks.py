"""Results of `derby check` as tables: one row per case, one column per solution, PASS or FAIL first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from kernelderby.report.answer import Answer
from kernelderby.report.frame import frame
from kernelderby.report.model import Report, Row, Table, TableCell, left, right
from kernelderby.rows.checked import CheckResult
from kernelderby.store.counts import counted

PASSED = "passed"
_FEW = 3  # operators
_NO_GPU = re.compile(r"active drivers|not compiled with CUDA|NVIDIA driver|No CUDA GPUs")  # Triton's, torch's words


def checks_answer(
    device: str,
    results: Sequence[CheckResult],
    skipped: Mapping[str, str],
    broken: Mapping[str, str],
    secret: str,
    fresh: int = 0,
    details: bool | None = None,
    asked: str = "",
) -> Answer[Sequence[CheckResult]]:
    """Frame: cases. skipped: solution -> reason. broken: definition -> why it cannot judge anything. secret: draws the
    inputs and the `fresh` shapes of each definition. details: a table of cases for each operator instead of one line;
    default for at most three operators. asked: the words of the command, if the solutions' names do not give them."""
    if details is None:
        details = len({result.definition for result in results}) <= _FEW
    again = f"--fresh {fresh} --secret {secret}" if fresh else f"--secret {secret}"
    return Answer(
        results,
        lambda: {
            "device": device,
            "secret": secret,
            "results": [result.to_json() for result in results],
            "skipped": skipped,
            "broken": broken,
        },
        lambda: [*_reports(device, results, skipped, broken, again, details, asked)],
        lambda: (frame("cases", ({"device": device} | result.to_json() for result in results)),),
    )


def _reports(
    device: str,
    results: Sequence[CheckResult],
    skipped: Mapping[str, str],
    broken: Mapping[str, str],
    again: str,
    details: bool,
    asked: str,
) -> Iterator[Report]:
    by_definition: dict[str, list[CheckResult]] = {}
    for result in results:
        by_definition.setdefault(result.definition, []).append(result)
    for definition, own in by_definition.items() if details else ():
        yield Report(f"{definition} on {device}", (), (_table(own),))
    lines = () if details or not by_definition else (_overview(device, by_definition),)
    failed = [result for result in results if result.status != PASSED]
    groups: dict[tuple[str, str], list[CheckResult]] = {}
    for result in failed:
        groups.setdefault((result.solution, result.status), []).append(result)
    notes = []
    for (solution, status), cases in groups.items():
        more = f" and {counted(len(cases) - 1, 'more case')}" if len(cases) > 1 else ""
        notes.append(f"FAILED {solution} on {cases[0].case}{more}: {status}: {cases[0].message}")
        notes += [*cases[0].why, *_mend(device, cases[0])]
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
    if not results and not skipped and not broken:
        notes.append(
            "nothing to check: no solution of this operator here; `derby new solution NAME --for OPERATOR` writes one"
        )
    notes += [f"BROKEN definition {name}: {reason}" for name, reason in broken.items()]
    yield Report(
        f"{len(results) - len(failed)} passed, {len(failed)} failed, {counted(len(skipped), 'solution')} skipped",
        (),
        lines,
        tuple(notes),
    )


def _mend(device: str, failed: CheckResult) -> Iterator[str]:
    """What the message alone does not tell."""
    if device == "CPU" and _NO_GPU.search(failed.message):
        yield "its code asks for a GPU, and this check is on a CPU"
    if failed.status == "input_changed":
        yield "an output in the memory of an input: declare it under [in_place] in solution.toml (CONTRIBUTING.md)"


def _overview(device: str, by_definition: Mapping[str, Sequence[CheckResult]]) -> Table:
    """One row an operator."""
    rows: list[Row] = []
    for definition, own in by_definition.items():
        failed = sum(result.status != PASSED for result in own)
        solutions = len({result.solution for result in own})
        rows.append(
            (_verdict(failed), definition, solutions, len(own), TableCell(str(failed), "bad") if failed else None)
        )
    columns = (*left("result", "operator"), *right("solutions", "checks", "failed"))
    return Table(f"Checked on {device}", columns, rows, key_columns=2)


def _verdict(failed: int) -> TableCell:
    return TableCell("FAIL", "bad") if failed else TableCell("PASS")


def _table(results: Sequence[CheckResult]) -> Table:
    cells = {(result.case, result.solution): result for result in results}
    solutions = list(dict.fromkeys(result.solution for result in results))
    rows: list[Row] = []
    for case in dict.fromkeys(result.case for result in results):
        own = [cells.get((case, name)) for name in solutions]
        rows.append((_verdict(any(each and each.status != PASSED for each in own)), case, *map(_cell, own)))
    columns = (*left("result", "case"), *right(*solutions))
    return Table("Share of elements within the tightest tolerance", columns, rows, key_columns=2)


def _cell(result: CheckResult | None) -> TableCell | str | None:
    if result is None:
        return None
    ratio = "" if result.matched_ratio is None else f"{result.matched_ratio:.4f}"
    if result.status == PASSED:
        return ratio or "passed"
    return TableCell(f"{result.status} {ratio}".strip(), "bad")
