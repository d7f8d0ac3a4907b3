"""An ImportanceRanking as two tables: authors over all operators, and every operator by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from kernelderby.rank.by_importance import BEST, Contender, ImportanceRanking
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, frame, picked
from kernelderby.report.model import Column, Report, Row, Table, TableCell, cell_of, right
from kernelderby.report.numbers import percent
from kernelderby.report.roofline.notes import groups_told, importance_note
from kernelderby.store.counts import counted


def importance_answer(ranking: ImportanceRanking, warnings: Sequence[str] = ()) -> Answer[ImportanceRanking]:
    """Frames: authors; operators, one row per author and operator."""
    return Answer(
        ranking,
        lambda: {"importance": asdict(ranking)},
        lambda: [importance_report(ranking)],
        lambda: _frames(ranking),
        tuple(warnings),
    )


def _frames(ranking: ImportanceRanking) -> tuple[Frame, ...]:
    group = {"gpu": ranking.group.gpu, "protocol": ranking.group.protocol}
    authors = (
        {"rank": place or None, "author": each.name}
        | group
        | asdict(each.share)
        | picked(each, "shapes", "of_shapes", "outdated")
        for place, each in enumerate(ranking.contenders)
    )
    operators = (
        {"operator": operator, "importance_percent": ranking.importance[operator]}
        | {"author": each.name, "solution": each.entries[operator].solution}
        | asdict(each.entries[operator].share)
        for operator in ranking.operators
        for each in ranking.contenders
        if operator in each.entries
    )
    return frame("authors", authors), frame("operators", operators)


def importance_report(ranking: ImportanceRanking) -> Report:
    return Report(
        title=f"{counted(len(ranking.operators), 'operator')}, weighted by importance",
        facts=(f"{ranking.group.gpu} · protocol {ranking.group.protocol}",),
        tables=(_authors_table(ranking), _operators_table(ranking)),
        notes=tuple(_notes(ranking)),
    )


def _authors_table(ranking: ImportanceRanking) -> Table:
    is_fair = any(each.fair.measured is not None for each in ranking.contenders)
    columns = (
        Column("#"),
        Column("author", "left"),
        *right("S, missing as 0", "S where measured"),
        *(right("S fair, missing as 0", "S fair where measured") if is_fair else ()),
        *right("operators", "importance measured", "shapes passed"),
    )
    caption = (
        "S: floor over time, the median over an operator's shapes, weighted by importance over operators. "
        + ("S fair: reachable time over time, the geomean over an operator's shapes. " if is_fair else "")
        + f"{BEST}: on every shape the fastest solution of any author."
    )
    rows = (_author_row(place, each, is_fair) for place, each in enumerate(ranking.contenders))
    return Table("Over all operators", columns, rows, caption, key_columns=2)


def _author_row(place: int, contender: Contender, is_fair: bool) -> Row:
    share = contender.share
    scores = (share, contender.fair) if is_fair else (share,)
    return (
        place or None,
        TableCell(contender.name, "best" if place == 1 else ""),
        *(cell_of(part, percent) for each in scores for part in (each.everywhere, each.measured)),
        _part(share.operators, share.of_operators),
        f"{share.weight:.1%}",
        _part(contender.shapes, contender.of_shapes),
    )


def _operators_table(ranking: ImportanceRanking) -> Table:
    """S of every contender with the author's solution; the best author is marked."""
    columns = (Column("operator", "left"), *right("importance", *(each.name for each in ranking.contenders)))
    return Table(
        "Each operator: S, and the shapes passed where some were not",
        columns,
        (_operator_row(ranking, operator) for operator in ranking.operators),
        caption="Of each author the solution that stands first in `derby rank --definition OPERATOR`.",
    )


def _operator_row(ranking: ImportanceRanking, operator: str) -> Row:
    shares = [each.entries[operator].share if operator in each.entries else None for each in ranking.contenders]
    best = max((share.everywhere for share in shares[1:] if share), default=0)
    cells: list[TableCell | None] = []
    for place, share in enumerate(shares):
        if share is None:
            cells.append(None)
            continue
        whole = share.shapes == share.of_shapes
        part = "" if whole else f" of {share.shapes}/{share.of_shapes}"
        text = "nothing passed" if share.measured is None else percent(share.measured) + part
        cells.append(TableCell(text, "bad" if not whole else "best" if place and share.everywhere == best else ""))
    return operator, f"{ranking.importance[operator]:.1f}%", *cells


def _notes(ranking: ImportanceRanking) -> Iterator[str]:
    yield importance_note(ranking.importance)
    absent = [name for name in ranking.importance if name not in ranking.operators]
    if absent:
        yield f"no definition in the set, counted as missing: {', '.join(absent)}"
    if ranking.left_out:
        yield f"without an importance, left out: {', '.join(ranking.left_out)}"
    for each in ranking.contenders[1:]:
        if each.outdated:
            yield (
                f"{each.name}: {counted(each.outdated, 'row is', 'rows are')} of sources that the solution has no "
                "more; run `derby bench`"
            )
    if ranking.other_groups:
        yield f"also recorded, not compared here: {groups_told(ranking.other_groups)}"


def _part(count: int, of: int) -> TableCell:
    return TableCell(f"{count}/{of}", "" if count == of else "bad")
