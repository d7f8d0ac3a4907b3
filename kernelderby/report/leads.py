"""Leads as a sentence a GPU, and as a table of operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from kernelderby.catalog.libraries import UNKNOWN
from kernelderby.catalog.workloads import FRESH, MODELS
from kernelderby.rank.lead import Lead
from kernelderby.rank.leads import Leads, OperatorLead
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, fields_of, frame
from kernelderby.report.model import NOTHING, Column, Report, Table, TableCell
from kernelderby.report.numbers import factor
from kernelderby.store.counts import counted

IN_WORDS = {"graph": "in CUDA graphs", "eager": "launched by the host"}
SETS = {"": "Published shapes", MODELS: "Shapes of models", FRESH: "Fresh shapes"}


def leads_answer(
    found: Sequence[Leads],
    with_operators: bool,
    warnings: Sequence[str] = (),
    legs: Sequence[str] = (),
    importance: Mapping[str, float] | None = None,
) -> Answer[Any]:
    """Frames: leads, one row a GPU, leg and kind of time; operators. legs: of selection.LEGS; the answer says which of
    them were not measured. importance: percent of the GPU time in production, by operator."""
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
    def key(each: Leads) -> dict[str, Any]:
        return {"gpu": each.gpu, "protocol": each.protocol, "author": each.author, "origin": each.origin}

    return (
        frame(
            "leads",
            (key(each) | {"time": kind} | fields_of(lead) for each in found for kind, lead in each.total.items()),
        ),
        frame(
            "operators",
            (
                key(each) | {"operator": operator.definition, "time": kind} | fields_of(lead)
                for each in found
                for operator in each.operators
                for kind, lead in operator.kinds.items()
            ),
        ),
    )


def leads_report(
    found: Sequence[Leads], with_operators: bool, legs: Sequence[str], importance: Mapping[str, float]
) -> Report:
    """found: of one GPU, a leg each."""
    days = sorted({day[:10] for each in found for day in (each.measured_from, each.measured_to)})
    measured = {each.origin for each in found}
    missing = [f"{SETS[leg]}: not measured yet." for leg in legs if leg not in measured]
    return Report(
        title=f"{found[0].gpu}, {' to '.join(dict.fromkeys((days[0], days[-1])))}",
        facts=(*map(sentence, found), *missing),
        tables=tuple(_table(each, importance) for each in found if each.total) if with_operators else (),
        notes=tuple(note for each in found for note in _notes(each)) if with_operators else (),
    )


def sentence(found: Leads) -> str:
    """The result on one GPU: how many times as fast as the best library, on how many shapes."""
    outdated = sum(each.outdated for each in found.operators)
    shapes = f"{outdated} shape{'s' * (outdated != 1)}"
    if not found.total:
        return f"{SETS[found.origin]}: {found.author} has no time of its present code ({shapes} to be measured again)."
    most = max(lead.workloads for lead in found.total.values())
    parts = [
        _told(found, kind, lead)
        if 2 * lead.workloads >= most
        else f"{IN_WORDS[kind].capitalize()}: only {lead.workloads} of {most} shapes have a time of the present code."
        for kind, lead in found.total.items()
    ]
    if outdated:
        parts.append(f"Not counted: {shapes} with times of former code.")
    return f"{SETS[found.origin]}: {' '.join(parts)}"


def _told(found: Leads, kind: str, lead: Lead) -> str:
    count = sum(kind in each.kinds for each in found.operators)
    over = counted(count, "operator") if count > 1 else counted(lead.workloads, "shape")
    return (
        f"{found.author} {IN_WORDS[kind]} is {factor(lead.ratio.value)} times as fast as the best of "
        f"{_libraries(lead)} (geometric mean of {over}; {_versions(lead, found.versions)}): {_counts(lead)}."
    )


def _libraries(lead: Lead) -> str:
    return counted(len(lead.libraries), "library", "libraries") if len(lead.libraries) > 1 else "one library"


def _versions(lead: Lead, versions: Mapping[str, str]) -> str:
    """The oldest version of each library behind the rows."""
    told = [f"{who} {versions[who].partition('+')[0]}" for who in sorted(lead.libraries) if versions[who] != UNKNOWN]
    unknown = [who for who in sorted(lead.libraries) if versions[who] == UNKNOWN]
    if unknown:
        told.append(f"{' and '.join(unknown)} of unknown version")
    return ", ".join(told)


def _counts(lead: Lead) -> str:
    """By the 95 % interval of each workload."""
    parts = [f"faster on {lead.wins} of {counted(lead.workloads, 'shape')}"]
    if lead.ties:
        parts.append(f"{lead.ties} tie{'s' * (lead.ties != 1)}")
    if lead.losses:
        parts.append(f"slower on {lead.losses}")
    if lead.unpaired:
        parts.append(f"{lead.unpaired} not measured in turn")
    return ", ".join(parts)


_COLUMNS: tuple[tuple[str, Literal["left", "right"], bool], ...] = (
    ("geomean", "right", False),
    ("range", "right", True),
    ("win tie loss", "right", False),
    ("best library", "left", False),
)


def _table(found: Leads, importance: Mapping[str, float]) -> Table:
    """The most important operator first; those whose times are all of former code as well."""
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
        tuple(_row(each, kinds, importance.get(each.definition)) for each in operators),
        caption="Above 1: faster than every library. Shapes: compared, of all. Geomean over the shapes that both have; "
        "range: the least and the most on any shape; win, tie, loss by the 95 % interval of each shape; best "
        "library: on most shapes, of how many. Importance: share of GPU time in production. Protocol "
        f"{found.protocol}.",
    )


def _row(operator: OperatorLead, kinds: Sequence[str], importance: float | None) -> tuple[TableCell, ...]:
    shapes = max((lead.workloads for lead in operator.kinds.values()), default=0)
    cells = [
        TableCell(operator.definition),
        NOTHING if importance is None else TableCell(f"{importance:.1f} %"),
        TableCell(f"{shapes}/{operator.of_shapes}"),
    ]
    for kind in kinds:
        cells += _cells(operator.kinds.get(kind))
    return tuple(cells)


def _cells(lead: Lead | None) -> list[TableCell]:
    if lead is None:
        return [NOTHING] * len(_COLUMNS)
    return [
        TableCell(factor(lead.ratio.value), "bad" if lead.ratio.value < 1 else ""),
        TableCell(f"{factor(lead.least)} to {factor(lead.most)}", "bad" if lead.least < 1 else ""),
        TableCell(f"{lead.wins} {lead.ties} {lead.losses}", "bad" if lead.losses else ""),
        TableCell(second_library(lead)),
    ]


def second_library(lead: Lead) -> str:
    """The library that is the best one on most workloads, and how many libraries are on any."""
    first = next(iter(lead.libraries))
    return first if len(lead.libraries) == 1 else f"{first} of {len(lead.libraries)}"


def _notes(found: Leads) -> Iterator[str]:
    if found.alone:
        yield f"no library to compare with: {', '.join(found.alone)}"
    outdated = [f"{each.definition} ({each.outdated})" for each in found.operators if each.outdated]
    if outdated:
        yield f"shapes to be measured again, since a time is of former code: {', '.join(outdated)}"
