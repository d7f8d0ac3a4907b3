"""What a package of winners holds, as a table of operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kernelderby.deploy.export import Exported
from kernelderby.deploy.twins import WrittenTwins
from kernelderby.deploy.winners import FRESH, AllWinners, Winners, kind_of
from kernelderby.report.answer import Answer
from kernelderby.report.frame import frame
from kernelderby.report.model import NOTHING, Column, Report, Table, TableCell
from kernelderby.report.numbers import percent
from kernelderby.store.counts import counted

_WORDS = {"own": "own", "library": "libraries", "plain": "plain torch"}


def exported_answer(found: Exported, warnings: Sequence[str] = ()) -> Answer[Exported]:
    """Frame: operators."""

    def data() -> dict[str, Any]:
        built = {"bytes": found.bytes, "cuda_libraries": found.libraries, "not_built": found.not_built}
        return {"path": str(found.path), **built, **_data(found.found)}

    where = f"{found.path} ({found.bytes / 1e6:.1f} MB, {found.libraries} CUDA libraries)"
    return Answer(
        found,
        data,
        lambda: [_report(found.found, where)],
        lambda: (frame("operators", _operators(found.found)),),
        tuple(warnings),
    )


def planned_answer(found: AllWinners, warnings: Sequence[str] = ()) -> Answer[AllWinners]:
    """The same of a package that is not built. Frame: operators."""
    return Answer(
        found,
        lambda: _data(found),
        lambda: [_report(found, "Nothing is built: what a package would run, and what its choice loses.")],
        lambda: (frame("operators", _operators(found)),),
        tuple(warnings),
    )


def twins_answer(found: WrittenTwins, warnings: Sequence[str] = ()) -> Answer[WrittenTwins]:
    """Frame: operators, a row a definition of FlashInfer's."""
    return Answer(
        found,
        lambda: {"path": str(found.folder), "chosen": found.chosen, "left": found.left},
        lambda: [_twins_report(found)],
        lambda: (frame("operators", ({"name": name, "solution": own} for name, own in found.chosen.items())),),
        tuple(warnings),
    )


def _twins_report(found: WrittenTwins) -> Report:
    columns = Column("FlashInfer's definition", "left"), Column("solution", "left")
    rows = tuple((TableCell(name), TableCell(solution)) for name, solution in found.chosen.items())
    notes = [f"{name}: left to FlashInfer, as {solution} is faster" for name, solution in found.left.items()]
    facts = (
        f"{found.folder}: set FLASHINFER_TRACE_APPLY=1 and FLASHINFER_TRACE_APPLY_PATH to it.",
        "FlashInfer passes no eps there: calls with another one than 1e-6 would be wrong.",
    )
    return Report(counted(len(rows), "definition"), facts, (Table("Solutions", columns, rows),), tuple(notes))


def _data(found: AllWinners) -> dict[str, Any]:
    return {
        "gpus": found.gpus,
        "protocol": found.protocol,
        "measured": found.measured,
        "operators": _operators(found),
        "skipped": found.skipped,
    }


def _operators(found: AllWinners) -> list[dict[str, Any]]:
    return [
        {
            "name": each.definition.name,
            "shapes": len(each.shapes),
            "solutions": [solution.name for solution in each.solutions],
            "fastest": each.fastest,
            "loss": asdict(each.loss),
            "left_out": each.left_out,
        }
        for each in found.operators
    ]


def _report(found: AllWinners, where: str) -> Report:
    operators = found.operators
    means = [each.loss.mean for each in operators if each.loss.mean is not None]
    inside, outside = (sum(getattr(each.loss, name) for each in operators) for name in ("inside", "outside"))
    facts = [
        where,
        f"Chosen by times of CUDA graphs on {found.gpus[0]}, {' to '.join(dict.fromkeys(found.measured))}, "
        f"{found.protocol}. On any other device libraries or plain torch run.",
    ]
    if means:
        facts.append(
            f"Each shape left out in turn, and chosen for by the others: {percent(sum(means) / len(means))} above the "
            f"fastest in the mean of {counted(len(means), 'operator')} ({counted(inside, 'shape')}). {outside} more "
            "lay outside of the "
            "region of the others: there libraries run."
        )
    facts.append(_held_out(operators))
    columns = (
        Column("operator", "left"),
        Column("shapes"),
        Column("fastest", "left"),
        Column("loss mean"),
        Column("loss worst"),
        Column("left out, outside", is_optional=True),
    )
    table = Table(
        "Operators",
        columns,
        tuple(map(_row, operators)),
        "Fastest: on how many shapes kernels of the package's own, or an installed library. Loss: time of the chosen "
        "solution above the fastest one's, each shape left out in turn.",
    )
    notes = [f"{name}: not in the package: {reason}" for name, reason in found.skipped.items()]
    notes += [f"{name}: passed over: {reason}" for each in operators for name, reason in sorted(each.left_out.items())]
    return Report(counted(len(operators), "operator"), tuple(facts), (table,), tuple(notes))


def _held_out(operators: Sequence[Winners]) -> str:
    """A mean over operators for each origin."""
    found: dict[str, list[tuple[int, float, int]]] = {"models": [], FRESH: []}
    for each in operators:
        for origin, held in each.loss.held_out.items():
            found.setdefault(origin, []).append(held)
    parts = [
        f"{origin} {percent(sum(mean for _, mean, _ in held) / len(held))} "
        f"({counted(sum(count for count, *_ in held), 'shape')} "
        f"of {counted(len(held), 'operator')}, {sum(beyond for *_, beyond in held)} outside of the region)"
        if held
        else f"{origin} not measured yet"
        for origin, held in sorted(found.items())
    ]
    return f"Chosen for by the shapes of all other origins alone, above the fastest in the mean: {', '.join(parts)}."


def _row(found: Winners) -> tuple[TableCell, ...]:
    kinds = {each.name: kind_of(each) for each in found.solutions}
    counts: Counter[str] = Counter()
    for name, shapes in found.fastest.items():
        counts[_WORDS[kinds[name]]] += shapes
    loss = found.loss
    return (
        TableCell(found.definition.name),
        TableCell(str(len(found.shapes))),
        TableCell(", ".join(f"{kind} {shapes}" for kind, shapes in counts.most_common())),
        NOTHING if loss.mean is None else TableCell(percent(loss.mean)),
        NOTHING if loss.worst is None else TableCell(percent(loss.worst)),
        TableCell(str(loss.outside)) if loss.outside else NOTHING,
    )
