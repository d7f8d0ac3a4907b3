"""The page's Overview, its changes and what failed, as Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernelderby.catalog.selection import SCORED
from kernelderby.page.model.page import PageModel
from kernelderby.page.model.races import ShownInterval, ShownLead, ShownOrder, ShownRace
from kernelderby.page.model.trust import ShownFailure
from kernelderby.report import markdown
from kernelderby.report.model import Column, Report, Row, Table, TableCell, cell_of, left, right
from kernelderby.report.numbers import factor, percent
from kernelderby.store.counts import counted

FAILURES = 40  # lines of the table; a further line counts the rest


def page_markdown(model: PageModel, left_out: Sequence[str] = ()) -> str:
    """One report for each GPU with rows, the changes first. left_out: lines about broken parts of the set."""
    reports = [_changes(model)] if model.changes else []
    reports += [_of_gpu(model, gpu.id, gpu.name) for gpu in model.gpus if gpu.rows]
    if not reports:
        reports = [Report("KernelDerby", ("no recorded rows; measure with derby bench",), ())]
    return markdown.with_left_out("\n".join(map(markdown.render, reports)), left_out)


def _of_gpu(model: PageModel, gpu: str, name: str) -> Report:
    races = [
        (_named(operator.name, model.races[place]), len(model.races[place].shapes), model.races[place])
        for operator in model.operators
        for place in operator.races.get(gpu, ())
        if model.races[place].is_default
    ]
    tables = [_races(races)] if races else []
    failures = [each for each in model.trust.failures if each.gpu == gpu]
    if failures:
        tables.append(_failures(failures))
    days = sorted({moment[:10] for *_, race in races for moment in (race.measured_from, race.measured_to) if moment})
    protocols = sorted({race.protocol for *_, race in races})
    facts = (" · ".join(filter(None, (", ".join(protocols), " to ".join(dict.fromkeys(days[:1] + days[-1:]))))),)
    more = len(failures) - FAILURES
    return Report(name, facts, tuple(tables), (f"{counted(more, 'more row')} failed",) if more > 0 else ())


def _named(operator: str, race: ShownRace) -> str:
    """The definition's name, with the origin of its workloads if scores do not count them."""
    return operator if race.origin in ("", *SCORED) else f"{operator} ({race.origin})"


def _races(races: Iterable[tuple[str, int, ShownRace]]) -> Table:
    return Table(
        "Races",
        (
            *left("operator", "first"),
            *(Column("lead [95 %]"), Column("over", "left")),
            *right("win tie loss", "S", "S fair", "passed"),
            Column("time", "left"),
        ),
        tuple(_race(name, shapes, race, race.orders[race.kind]) for name, shapes, race in races),
        caption="lead: the best library's time on each shape over the best of the first one's author, geomean; "
        "over: the library that is fastest on most shapes, and how many were raced; S: floor over time of "
        "the fastest solution on a shape, the median; S fair: reachable time over time, geomean (docs/scoring.md)",
    )


def _race(name: str, shapes: int, race: ShownRace, order: ShownOrder) -> Row:
    first, lead = order.standings[0], order.lead
    return (
        name,
        TableCell(first.solution, "best"),
        *((_ratio(lead.ratio), _over(lead), f"{lead.wins} {lead.ties} {lead.losses}") if lead else (None,) * 3),
        *(cell_of(share, percent) for share in (order.share, order.fair)),
        TableCell(f"{first.passed}/{shapes}", "" if first.passed == shapes else "bad"),
        f"{order.kind} ({race.protocol})",
    )


def _over(lead: ShownLead) -> str:
    return lead.second if lead.libraries == 1 else f"{lead.second} of {lead.libraries}"


def _failures(failures: Sequence[ShownFailure]) -> Table:
    return Table(
        "Failed, doubtful and caught",
        left("solution", "operator", "workload", "status", "reason"),
        (
            (each.solution, each.definition, each.workload, TableCell(each.status, "bad"), each.message[:160])
            for each in failures[:FAILURES]
        ),
    )


def _changes(model: PageModel) -> Report:
    assert model.changes is not None
    found = model.changes
    rows = tuple(
        (
            *(line.solution, line.definition, _ratio(line.ratio)),
            TableCell(line.ratio.verdict, "bad" if line.ratio.verdict == "slower" else ""),
            f"{line.wins} {line.ties} {line.losses}",
            "the same" if line.same_sources else "changed",
            f"{line.gpu}, {line.kind}",
        )
        for line in sorted(found.lines, key=lambda line: -line.ratio.value)
    )
    columns = (
        *left("solution", "operator"),
        *(Column("now over then [95 %]"), Column("verdict", "left"), Column("win tie loss")),
        *left("sources", "where"),
    )
    table = Table("Changes", columns, rows, caption="time now over time then: below 1 is faster; slowest first")
    notes = (
        [f"{counted(found.unchanged, 'solution has', 'solutions have')} the same rows in both"]
        if found.unchanged
        else []
    )
    notes += [f"only in this run: {each}" for each in found.only_here]
    notes += [f"only in the other run: {each}" for each in found.only_there]
    return Report(f"Against {found.against}", (), (table,) if rows else (), tuple(notes))


def _ratio(ratio: ShownInterval) -> str:
    if ratio.low is None or ratio.high is None:
        return factor(ratio.value, 3)
    return f"{factor(ratio.value, 3)} [{factor(ratio.low, 3)}, {factor(ratio.high, 3)}]"
