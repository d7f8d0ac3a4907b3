"""Leads as a sentence for each GPU, and as a table of operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from kernelderby.catalog.libraries import UNKNOWN, oldest
from kernelderby.catalog.workloads import FRESH, MODELS, SERVING
from kernelderby.rank.lead import Lead
from kernelderby.rank.leads import Leads, OperatorLead
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, fields_of, frame, picked
from kernelderby.report.model import Column, Report, Row, Table, TableCell, cell_of
from kernelderby.report.numbers import factor
from kernelderby.store.counts import counted

IN_WORDS = {"graph": "in CUDA graphs", "eager": "launched by the host"}
SETS = {
    "": "Published shapes",
    SERVING: "Shapes of servers",
    MODELS: "Shapes of models",
    FRESH: "Fresh shapes",
}


def leads_answer(
    found: Sequence[Leads],
    with_operators: bool,
    warnings: Sequence[str] = (),
    legs: Sequence[str] = (),
    importance: Mapping[str, float] | None = None,
) -> Answer[Any]:
    """Frames: leads, one row per GPU, leg and kind of time; operators. legs: of selection.LEGS; the answer names those
    that were not measured. importance: operator -> percent of the GPU time in production."""
    weights = importance or {}
    found = tuple(found)
    gpus = dict.fromkeys(each.gpu for each in found)
    return Answer(
        found,
        lambda: {"leads": found},
        lambda: [
            leads_report([each for each in found if each.gpu == gpu], with_operators, legs, weights) for gpu in gpus
        ],
        lambda: _frames(found),
        tuple(warnings),
    )


def _frames(found: Sequence[Leads]) -> tuple[Frame, ...]:
    def row(each: Leads, kind: str, lead: Lead, **operator: str) -> dict[str, Any]:
        return picked(each, "gpu", "protocol", "author", "origin") | operator | {"time": kind} | fields_of(lead)

    totals = (row(each, *lead) for each in found for lead in each.total.items())
    operators = (
        row(each, *lead, operator=operator.definition)
        for each in found
        for operator in each.operators
        for lead in operator.kinds.items()
    )
    return frame("leads", totals), frame("operators", operators)


def leads_report(
    found: Sequence[Leads], with_operators: bool, legs: Sequence[str], importance: Mapping[str, float]
) -> Report:
    """found: the leads on one GPU, one for each leg."""
    days = sorted({day[:10] for each in found for day in (each.measured_from, each.measured_to)})
    measured = {each.origin for each in found}
    missing = [f"{SETS[leg]}: not measured yet." for leg in legs if leg not in measured]
    return Report(
        title=f"{found[0].gpu}, {' to '.join(dict.fromkeys((days[0], days[-1])))}",
        facts=(*facts(found), *missing),
        tables=_tables([each for each in found if each.total], importance) if with_operators else (),
        notes=tuple(note for each in found for note in _notes(each)) if with_operators else (),
    )


def facts(found: Sequence[Leads]) -> tuple[str, ...]:
    """A sentence for each leg on one GPU, and the oldest version of each library in their rows."""
    versions: dict[str, set[str]] = {}
    for each in found:
        for who in (who for lead in each.total.values() for who in lead.libraries):
            versions.setdefault(who, set()).add(each.versions[who].partition("+")[0])
    told = [f"{who} {oldest(some)}" for who, some in sorted(versions.items()) if UNKNOWN not in some]
    unknown = [who for who, some in sorted(versions.items()) if UNKNOWN in some]
    if unknown:
        told.append(f"{' and '.join(unknown)} unknown in some rows")
    return (*map(sentence, found), *([f"Oldest versions of the libraries: {', '.join(told)}."] if told else []))


def sentence(found: Leads) -> str:
    """The result on one GPU: how many times as fast as the best library, on how many shapes."""
    outdated, unopposed = (sum(getattr(each, name) for each in found.operators) for name in ("outdated", "unopposed"))
    left_out = [f"{counted(outdated, 'shape')} with times of former code"] if outdated else []
    if unopposed:
        left_out.append(f"{counted(unopposed, 'shape')} without the operator's strongest library")
    if not found.total:
        return f"{SETS[found.origin]}: no shape counts ({', '.join(left_out)})."
    most = max(lead.workloads for lead in found.total.values())
    parts = [
        _told(found, kind, lead)
        if 2 * lead.workloads >= most
        else f"{IN_WORDS[kind].capitalize()}: only {lead.workloads} of {most} shapes have a time of the present code."
        for kind, lead in found.total.items()
    ]
    if left_out:
        parts.append(f"Not counted: {', '.join(left_out)}.")
    return f"{SETS[found.origin]}: {' '.join(parts)}"


def _told(found: Leads, kind: str, lead: Lead) -> str:
    count = sum(kind in each.kinds for each in found.operators)
    over = counted(count, "operator") if count > 1 else counted(lead.workloads, "shape")
    libraries = counted(len(lead.libraries), "library", "libraries") if len(lead.libraries) > 1 else "one library"
    return (
        f"{found.author} {IN_WORDS[kind]} is {factor(lead.ratio.value)} times as fast as the best of "
        f"{libraries} (geometric mean of {over}): {_counts(lead)}."
    )


def _counts(lead: Lead) -> str:
    """Wins, ties and losses, by the 95 % interval of each workload."""
    parts = [f"faster on {lead.wins} of {counted(lead.workloads, 'shape')}"]
    if lead.ties:
        parts.append(counted(lead.ties, "tie"))
    if lead.losses:
        parts.append(f"slower on {lead.losses}")
    if lead.unpaired:
        parts.append(f"{lead.unpaired} of the {lead.workloads} not measured in turn")
    return ", ".join(parts)


_COLUMNS: tuple[tuple[str, Literal["left", "right"], bool], ...] = (
    ("geomean", "right", False),
    ("range", "right", True),
    ("win tie loss", "right", False),
    ("best library", "left", False),
)


def _tables(found: Sequence[Leads], importance: Mapping[str, float]) -> tuple[Table, ...]:
    """One for each leg; the first one explains the columns."""
    return tuple(_table(each, importance, each is found[0]) for each in found)


def _table(found: Leads, importance: Mapping[str, float], is_explained: bool) -> Table:
    """The most important operator first, including operators with times of former code only."""
    kinds = list(found.total)
    columns = (
        Column("operator", "left"),
        Column("importance", is_optional=True),
        Column("shapes"),
        *(
            Column(f"{kind} {title}" if len(kinds) > 1 else title, align, is_optional or place > 0)
            for place, kind in enumerate(kinds)
            for title, align, is_optional in _COLUMNS
        ),
    )
    operators = sorted(found.operators, key=lambda each: (-importance.get(each.definition, 0.0), each.definition))
    what = f", {' and '.join(IN_WORDS[kind] for kind in kinds)}"
    return Table(
        f"{SETS[found.origin]}: the best library's time over the best of {found.author}{what}",
        columns,
        (_row(each, kinds, importance.get(each.definition)) for each in operators),
        caption=f"{_COLUMNS_EXPLAINED} Protocol {found.protocol}." if is_explained else "",
    )


_COLUMNS_EXPLAINED = (
    "Above 1: faster than every library. Shapes: those that both have, of all. Geomean and range: over these shapes. "
    "Win, tie, loss: by the 95 % interval of each shape. Best library: the one that is fastest on most shapes, and how "
    "many were raced. Importance: share of GPU time in production."
)


def _row(operator: OperatorLead, kinds: Sequence[str], importance: float | None) -> Row:
    shapes = max((lead.workloads for lead in operator.kinds.values()), default=0)
    cells = (cell for kind in kinds for cell in _cells(operator.kinds.get(kind)))
    return (operator.definition, cell_of(importance, "{:.1f} %".format), f"{shapes}/{operator.of_shapes}", *cells)


def _cells(lead: Lead | None) -> Row:
    if lead is None:
        return (None,) * len(_COLUMNS)
    return (
        TableCell(factor(lead.ratio.value), "bad" if lead.ratio.value < 1 else ""),
        TableCell(f"{factor(lead.least)} to {factor(lead.most)}", "bad" if lead.least < 1 else ""),
        TableCell(f"{lead.wins} {lead.ties} {lead.losses}", "bad" if lead.losses else ""),
        second_library(lead),
    )


def second_library(lead: Lead) -> str:
    """The library that is best on most workloads, and the number of libraries in the race."""
    first = next(iter(lead.libraries))
    return first if len(lead.libraries) == 1 else f"{first} of {len(lead.libraries)}"


def _notes(found: Leads) -> Iterator[str]:
    of = SETS[found.origin]
    if found.alone:
        yield f"{of}, no library has a time: {', '.join(found.alone)}"
    outdated = [f"{each.definition} ({each.outdated})" for each in found.operators if each.outdated]
    if outdated:
        yield f"{of} to be measured again, since a time is of former code: {', '.join(outdated)}"
    unopposed = [f"{each.definition} ({each.unopposed})" for each in found.operators if each.unopposed]
    if unopposed:
        yield (
            f"{of} on which the library that is best on most of the operator's shapes was not measured: "
            f"{', '.join(unopposed)}"
        )
    failed = [f"{who} at {each.definition} ({count})" for each in found.operators for who, count in each.failed.items()]
    if failed:
        yield f"{of} on which a library failed: {', '.join(failed)}"
