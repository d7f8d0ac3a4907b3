"""What can be relied on: what was measured where, what failed or was caught, and what nobody ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kernelderby.catalog import Catalog
from kernelderby.page.model import ShownFailure, ShownGroup, ShownMissing, ShownOutdated, ShownRace, ShownTrust
from kernelderby.page.operators import needs
from kernelderby.page.text import words
from kernelderby.rank.model import NOT_MEASURED, PASSED
from kernelderby.roofline import selection
from kernelderby.trace import Measurement, Status

# What an honest kernel does not do: it was caught by the judge, not by a tolerance.
CHEATS = {
    status.value.replace("_", " ")
    for status in (Status.UNWRITTEN, Status.INPUT_CHANGED, Status.STALE_OUTPUT, Status.REWARD_HACK, Status.BELOW_FLOOR)
}


def trust(
    catalog: Catalog,
    rows: Sequence[Measurement],
    races: Sequence[ShownRace],
    workload_labels: Mapping[str, Sequence[str]],
    warnings: Iterable[str],
) -> ShownTrust:
    groups = selection.group_rows(rows)
    return ShownTrust(
        tuple(_group(*each) for each in sorted(groups.items(), key=lambda item: -len(item[1]))),
        tuple(failure for race in races for failure in _failures(race, workload_labels[race.definition])),
        tuple(outdated for race in races for outdated in _outdated(race)),
        tuple(_missing(catalog, rows)),
        tuple(words(str(each)) for each in warnings),
    )


def _group(key: selection.Key, rows: Sequence[Measurement]) -> ShownGroup:
    first, last = min(rows, key=lambda row: row.moment), max(rows, key=lambda row: row.moment)
    environments = [row.environment for row in rows]
    return ShownGroup(
        key.gpu,
        words(key.protocol),
        len(rows),
        sum(row.status is Status.PASSED for row in rows),
        len({row.definition for row in rows}),
        len({row.solution for row in rows}),
        first.timestamp,
        last.timestamp,
        len({each["gpu_uuid"] for each in environments if each.get("gpu_uuid")}),
        tuple(sorted({words(str(each["driver"])) for each in environments if each.get("driver")})),
        tuple(sorted({words(str(each["commit"]))[:10] for each in environments if each.get("commit")})),
    )


def _failures(race: ShownRace, labels: Sequence[str]) -> Iterable[ShownFailure]:
    """Rows that count and did not pass; passed ones faster than the floor allows."""
    for place, cells in zip(race.shapes, race.cells, strict=True):
        for solution, cell in zip(race.solutions, cells, strict=True):
            doubtful = "too good" in cell.marks
            if cell.status in (PASSED, NOT_MEASURED) and not doubtful:
                continue
            yield ShownFailure(
                race.definition,
                race.gpu,
                race.protocol,
                solution,
                labels[place],
                "faster than the floor allows" if doubtful else cell.status,
                cell.status in CHEATS,
                cell.message,
                cell.timestamp,
            )


def _outdated(race: ShownRace) -> Iterable[ShownOutdated]:
    for place, solution in enumerate(race.solutions):
        rows = [cells[place] for cells in race.cells if cells[place].status != NOT_MEASURED]
        former = sum("outdated" in cell.marks for cell in rows)
        if former:
            yield ShownOutdated(race.definition, race.gpu, race.protocol, solution, former, len(rows))


def _missing(catalog: Catalog, rows: Sequence[Measurement]) -> Iterable[ShownMissing]:
    """Solutions without a row on a GPU on which another one of their definition has some."""
    measured: dict[tuple[str, str], set[str]] = {}
    for key, own in selection.group_rows(rows).items():
        for row in own:
            measured.setdefault((row.definition, key.gpu), set()).add(row.solution)
    for (definition, gpu), names in sorted(measured.items()):
        if definition not in catalog.definitions:
            continue
        for solution in sorted(catalog.solutions_of(definition), key=lambda each: each.name):
            if solution.name not in names:
                yield ShownMissing(
                    words(definition), gpu, words(solution.name), words(solution.author), needs(solution)
                )
