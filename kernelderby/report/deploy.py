"""The contents of a package of winners, as a table of operators."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from kernelderby.deploy.export import Exported
from kernelderby.deploy.twins import WrittenTwins
from kernelderby.deploy.winners import FRESH, AllWinners, HeldOutShapes, Winners, kind_of
from kernelderby.report.answer import Answer
from kernelderby.report.frame import frame
from kernelderby.report.model import Column, Report, Row, Table, cell_of, left, right
from kernelderby.report.numbers import percent
from kernelderby.store.counts import counted

T = TypeVar("T")
_WORDS = {"own": "own", "library": "libraries", "plain": "plain torch"}


def exported_answer(found: Exported, warnings: Sequence[str] = ()) -> Answer[Exported]:
    """Frame: operators."""
    where = f"{found.path} ({found.bytes / 1e6:.1f} MB, {found.libraries} CUDA libraries)"
    built = {"path": str(found.path), "bytes": found.bytes, "cuda_libraries": found.libraries}
    built |= {"not_built": found.not_built}
    return _answer(found, found.found, where, built, warnings)


def planned_answer(found: AllWinners, warnings: Sequence[str] = ()) -> Answer[AllWinners]:
    """The same of a package that is not built. Frame: operators."""
    where = "Nothing is built. The table shows what a package would run, and how much its choice loses."
    return _answer(found, found, where, {}, warnings)


def _answer(value: T, found: AllWinners, where: str, built: dict[str, Any], warnings: Sequence[str]) -> Answer[T]:
    return Answer(
        value,
        lambda: {**built, **_data(found)},
        lambda: [_report(found, where)],
        lambda: (frame("operators", _operators(found)),),
        tuple(warnings),
    )


def twins_answer(found: WrittenTwins, warnings: Sequence[str] = ()) -> Answer[WrittenTwins]:
    """Frame: operators, one row per definition of FlashInfer."""
    return Answer(
        found,
        lambda: {"path": str(found.folder), "chosen": found.chosen, "left": found.left},
        lambda: [_twins_report(found)],
        lambda: (frame("operators", ({"name": name, "solution": own} for name, own in found.chosen.items())),),
        tuple(warnings),
    )


def _twins_report(found: WrittenTwins) -> Report:
    columns = left("FlashInfer's definition", "solution")
    rows = tuple((name, solution) for name, solution in found.chosen.items())
    notes = [f"{name}: left to FlashInfer, as {solution} is faster" for name, solution in found.left.items()]
    facts = (
        f"{found.folder}: set FLASHINFER_TRACE_APPLY=1 and FLASHINFER_TRACE_APPLY_PATH to it.",
        "Twins of norms take the eps of the call from FlashInfer's adapter (0.7.2), or raise an error.",
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
    inside, outside, untimed = (
        sum(getattr(each.loss, name) for each in operators) for name in ("inside", "outside", "untimed")
    )
    facts = [
        where,
        f"Chosen by times of CUDA graphs on {found.gpus[0]}, {' to '.join(dict.fromkeys(found.measured))}, "
        f"{found.protocol}. On any other device libraries or plain torch run.",
    ]
    if means:
        facts.append(
            f"If each shape is left out in turn and the other shapes choose for it, the choice is "
            f"{percent(sum(means) / len(means))} slower than the fastest (mean of {counted(len(means), 'operator')}, "
            f"{counted(inside, 'shape')}). {counted(outside, 'shape lies', 'shapes lie')} outside the region of the "
            f"others: libraries run there. Not counted: {counted(untimed, 'shape')} at which the choice has no time."
        )
    facts.append(_held_out(operators))
    columns = (
        *(Column("operator", "left"), Column("shapes"), Column("fastest", "left")),
        *right("loss mean", "loss worst"),
        Column("left out, outside", is_optional=True),
    )
    caption = (
        "Fastest: the number of shapes on which kernels of the package, or a library, are fastest. Loss: how "
        "much slower the chosen solution is than the fastest, each shape left out in turn."
    )
    table = Table("Operators", columns, map(_row, operators), caption)
    skipped, out = defaultdict[str, list[str]](list), dict[str, list[str]]()
    for name, reason in found.skipped.items():
        skipped[reason].append(name)
    notes = [f"not in the package, {reason}: {', '.join(names)}" for reason, names in skipped.items()]
    for each in operators:
        for name, reason in sorted(each.left_out.items()):
            out.setdefault(reason, []).append(name)
    notes += [f"no candidate, {reason}: {', '.join(names)}" for reason, names in out.items()]
    return Report(counted(len(operators), "operator"), tuple(facts), (table,), tuple(notes))


def _held_out(operators: Sequence[Winners]) -> str:
    """For each origin a mean over operators."""
    found: dict[str, list[HeldOutShapes]] = {"models": [], FRESH: []}
    for each in operators:
        for origin, held in each.loss.held_out.items():
            found.setdefault(origin, []).append(held)
    parts = [
        f"{origin} {percent(sum(means) / len(means))} "
        f"({counted(sum(each.shapes for each in held), 'shape')} of {counted(len(held), 'operator')}, "
        f"{sum(each.twins for each in held)} at sizes that others measured, "
        f"{sum(each.outside for each in held)} outside the region, "
        f"{sum(each.untimed for each in held)} without a time of the choice)"
        if (means := [each.mean for each in held if each.mean is not None])
        else f"{origin} not measured yet"
        for origin, held in sorted(found.items())
    ]
    return f"If only shapes of other origins choose, the choice is slower by (mean of operators): {', '.join(parts)}."


def _row(found: Winners) -> Row:
    kinds = {each.name: kind_of(each) for each in found.solutions}
    counts: Counter[str] = Counter()
    for name, shapes in found.fastest.items():
        counts[_WORDS[kinds[name]]] += shapes
    loss = found.loss
    return (
        found.definition.name,
        len(found.shapes),
        ", ".join(f"{kind} {shapes}" for kind, shapes in counts.most_common()),
        cell_of(loss.mean, percent),
        cell_of(loss.worst, percent),
        loss.outside or None,
    )
