"""Leads as a sentence a GPU, and as a table of operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kernelderby.rank.leads import KINDS, Lead, Leads, OperatorLead
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, fields_of, frame
from kernelderby.report.model import NOTHING, Column, Report, Table, TableCell
from kernelderby.report.numbers import factor

IN_WORDS = {"graph": "replayed as CUDA graphs", "eager": "launched by the host"}


def leads_answer(found: Sequence[Leads], with_operators: bool, warnings: Sequence[str] = ()) -> Answer[Any]:
    """Frames: leads, one row a GPU and kind of time; operators."""
    found = tuple(found)
    return Answer(
        found,
        lambda: {"leads": found},
        lambda: [leads_report(each, with_operators) for each in found],
        lambda: _frames(found),
        tuple(warnings),
    )


def _frames(found: Sequence[Leads]) -> tuple[Frame, ...]:
    def key(each: Leads) -> dict[str, Any]:
        return {"gpu": each.gpu, "protocol": each.protocol, "author": each.author}

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


def leads_report(found: Leads, with_operators: bool) -> Report:
    days = dict.fromkeys(each[:10] for each in (found.measured_from, found.measured_to))
    return Report(
        title=f"{found.gpu}, {' to '.join(days)}",
        facts=(sentence(found),),
        tables=(_table(found),) if with_operators else (),
        notes=tuple(_notes(found)) if with_operators else (),
    )


def sentence(found: Leads) -> str:
    """The result on one GPU: how many times as fast as the best library, both ways, over how many shapes."""
    operators = len(found.operators)
    parts = [
        f"{IN_WORDS[kind]} {factor(lead.geomean)} times as fast (first on {lead.faster} of {lead.shapes} shapes)"
        for kind, lead in found.total.items()
    ]
    outdated = sum(each.outdated for each in found.operators)
    were = "time is" if outdated == 1 else "times are"
    former = f" {outdated} {were} of sources that have changed since." if outdated else ""
    return (
        f"{found.author} against the best library on every shape, over {operators} operator{'s' * (operators != 1)}: "
        f"{', '.join(parts)}; geomean"
        + (" of the operators' geomeans." if operators > 1 else " of the shapes.")
        + former
    )


def _table(found: Leads) -> Table:
    columns = (
        Column("operator", "left"),
        Column("shapes compared"),
        *(
            Column(f"{kind} {name}", is_optional=(kind, name) == ("eager", "range"))
            for kind in KINDS
            for name in ("geomean", "range", "first on")
        ),
    )
    return Table(
        f"The best library's time over the best of {found.author}",
        columns,
        tuple(_row(each) for each in found.operators),
        caption="Above 1: faster than every library on that shape. Geomean over the shapes that both have; range: the "
        f"least and the most of any shape. Protocol {found.protocol}.",
    )


def _row(operator: OperatorLead) -> tuple[TableCell, ...]:
    shapes = max(lead.shapes for lead in operator.kinds.values())
    cells = [TableCell(operator.definition), TableCell(f"{shapes}/{operator.of_shapes}")]
    for kind in KINDS:
        cells += _cells(operator.kinds.get(kind))
    return tuple(cells)


def _cells(lead: Lead | None) -> list[TableCell]:
    if lead is None:
        return [NOTHING] * 3
    return [
        TableCell(factor(lead.geomean), "bad" if lead.geomean < 1 else ""),
        TableCell(f"{factor(lead.least)} to {factor(lead.most)}", "bad" if lead.least < 1 else ""),
        TableCell(f"{lead.faster}/{lead.shapes}"),
    ]


def _notes(found: Leads) -> Iterator[str]:
    if found.alone:
        yield f"without a library to compare with: {', '.join(found.alone)}"
    outdated = [f"{each.definition} ({each.outdated})" for each in found.operators if each.outdated]
    if outdated:
        yield f"times of former sources, to be measured again: {', '.join(outdated)}"
