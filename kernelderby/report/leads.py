"""Leads as a sentence a GPU, and as a table of operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from kernelderby.catalog.workloads import FRESH, MODELS
from kernelderby.rank.lead import Lead
from kernelderby.rank.leads import KINDS, Leads, OperatorLead
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, fields_of, frame
from kernelderby.report.model import NOTHING, Column, Report, Table, TableCell
from kernelderby.report.numbers import factor

IN_WORDS = {"graph": "replayed as CUDA graphs", "eager": "launched by the host"}


WHAT = {"": "every shape", MODELS: "every shape of models", FRESH: "every fresh shape"}
SETS = {"": "Published shapes", MODELS: "Shapes of models", FRESH: "Fresh shapes"}


def leads_answer(
    found: Sequence[Leads], with_operators: bool, warnings: Sequence[str] = (), legs: Sequence[str] = ()
) -> Answer[Any]:
    """Frames: leads, one row a GPU, leg and kind of time; operators. legs: of selection.LEGS; of each it is said where
    it was not measured."""
    found = tuple(found)
    gpus = dict.fromkeys(each.gpu for each in found)
    return Answer(
        found,
        lambda: {"leads": found},
        lambda: [leads_report([each for each in found if each.gpu == gpu], with_operators, legs) for gpu in gpus],
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


def leads_report(found: Sequence[Leads], with_operators: bool, legs: Sequence[str] = ()) -> Report:
    """found: of one GPU, a leg each."""
    days = sorted({day[:10] for each in found for day in (each.measured_from, each.measured_to)})
    measured = {each.origin for each in found}
    missing = [f"{SETS[leg]}: not measured yet." for leg in legs if leg not in measured]
    return Report(
        title=f"{found[0].gpu}, {' to '.join(dict.fromkeys((days[0], days[-1])))}",
        facts=(*map(sentence, found), *missing),
        tables=tuple(map(_table, found)) if with_operators else (),
        notes=tuple(note for each in found for note in _notes(each)) if with_operators else (),
    )


def sentence(found: Leads) -> str:
    """The result on one GPU: how many times as fast as the best library, both ways, over how many shapes."""
    operators = sum(bool(each.kinds) for each in found.operators)
    over = f"{operators} operator{'s' * (operators != 1)}"
    most = max((lead.workloads for lead in found.total.values()), default=0)
    parts = [
        f"{IN_WORDS[kind]} {factor(lead.ratio.value)} times as fast ({_counts(lead)})"
        if 2 * lead.workloads >= most
        else f"{IN_WORDS[kind]} only {lead.workloads} of {most} shapes have a time of the present code"
        for kind, lead in found.total.items()
    ]
    outdated = sum(each.outdated for each in found.operators)
    shapes = f"{outdated} shape{'s' * (outdated != 1)}"
    if not most:
        return f"{found.author} on {WHAT[found.origin]}: no time of the present code ({shapes} to be measured again)."
    return (
        f"{found.author} against the best of {_libraries(found)} on {WHAT[found.origin]}, over {over}: "
        f"{', '.join(parts)}; geomean"
        + (" of the operators' geomeans." if operators > 1 else " of the shapes.")
        + (f" Left out: {shapes}, whose times are of former code." if outdated else "")
    )


def _libraries(found: Leads) -> str:
    count = len({name for lead in found.total.values() for name in lead.libraries})
    return f"{count} libraries" if count > 1 else "one library"


def _counts(lead: Lead) -> str:
    """By the 95 % interval of each workload."""
    parts = [f"faster on {lead.wins} of {lead.workloads} shapes"]
    if lead.ties:
        parts.append(f"{lead.ties} tie{'s' * (lead.ties != 1)}")
    if lead.losses:
        parts.append(f"slower on {lead.losses}")
    if lead.unpaired:
        parts.append(f"{lead.unpaired} not measured in turn")
    return ", ".join(parts)


_COLUMNS: tuple[tuple[str, Literal["left", "right"], bool], ...] = (
    ("graph geomean", "right", False),
    ("graph range", "right", True),
    ("graph win tie loss", "right", False),
    ("graph second", "left", False),
    ("eager geomean", "right", True),
    ("eager range", "right", True),
    ("eager win tie loss", "right", True),
    ("eager second", "left", True),
)


def _table(found: Leads) -> Table:
    columns = (
        Column("operator", "left"),
        Column("shapes compared"),
        *(Column(title, align, is_optional) for title, align, is_optional in _COLUMNS),
    )
    return Table(
        f"The best library's time over the best of {found.author}"
        + (f": {SETS[found.origin].lower()}" if found.origin else ""),
        columns,
        tuple(_row(each) for each in found.operators if each.kinds),
        caption="Above 1: faster than every library on that shape. Geomean over the shapes that both have; range: the "
        "least and the most of any shape; win, tie, loss by the 95 % interval; second: the library that is the best "
        f"one on most shapes, of how many. Protocol {found.protocol}.",
    )


def _row(operator: OperatorLead) -> tuple[TableCell, ...]:
    shapes = max(lead.workloads for lead in operator.kinds.values())
    cells = [TableCell(operator.definition), TableCell(f"{shapes}/{operator.of_shapes}")]
    for kind in KINDS:
        cells += _cells(operator.kinds.get(kind))
    return tuple(cells)


def _cells(lead: Lead | None) -> list[TableCell]:
    if lead is None:
        return [NOTHING] * 4
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
        yield f"without a library to compare with: {', '.join(found.alone)}"
    outdated = [f"{each.definition} ({each.outdated})" for each in found.operators if each.outdated]
    if outdated:
        yield f"left out, since a time is of former code (shapes to be measured again): {', '.join(outdated)}"
