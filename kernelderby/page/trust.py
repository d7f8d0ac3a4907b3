"""The reliability of results: where they were measured, what failed or was caught, and what was never run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kernelderby.catalog import Catalog
from kernelderby.catalog.groups import RowGroup
from kernelderby.catalog.templates import NotRaced
from kernelderby.hardware import gpu_id
from kernelderby.page.model import trust as model
from kernelderby.page.model.races import ShownRace
from kernelderby.page.operators import requirements_text
from kernelderby.page.text import words
from kernelderby.rank.model import NOT_MEASURED, PASSED
from kernelderby.roofline import selection
from kernelderby.rows.measurement import Status, moment_of

# Statuses that no honest kernel gets: the judge caught the solution, not a tolerance.
CHEATS = {
    status.value.replace("_", " ")
    for status in (Status.UNWRITTEN, Status.INPUT_CHANGED, Status.STALE_OUTPUT, Status.REWARD_HACK, Status.BELOW_FLOOR)
}


def trust(
    catalog: Catalog,
    counted: Sequence[RowGroup],
    races: Sequence[ShownRace],
    workload_labels: Mapping[str, Sequence[str]],
    libraries: Iterable[NotRaced],
    warnings: Iterable[str],
) -> model.ShownTrust:
    groups: dict[selection.GroupKey, list[RowGroup]] = {}
    for group in counted:
        groups.setdefault(selection.GroupKey(gpu_id(group.gpu), group.protocol), []).append(group)
    shown = [_group(*each) for each in groups.items()]
    return model.ShownTrust(
        tuple(sorted(shown, key=lambda each: -each.rows)),
        tuple(failure for race in races for failure in _failures(race, workload_labels[race.definition])),
        tuple(outdated for race in races for outdated in _outdated(race)),
        tuple(_missing(catalog, counted)),
        tuple(
            model.ShownNotRaced(words(each.name), tuple(map(words, each.operators)), words(each.why), words(each.needs))
            for each in libraries
        ),
        tuple(words(str(each)) for each in warnings),
    )


def _group(key: selection.GroupKey, groups: Sequence[RowGroup]) -> model.ShownGroup:
    environments = [environment for group in groups for environment in group.environments]
    return model.ShownGroup(
        key.gpu,
        words(key.protocol),
        sum(group.rows for group in groups),
        sum(group.passed for group in groups),
        len({group.definition for group in groups}),
        len({solution for group in groups for solution in group.solutions}),
        min((group.first for group in groups), key=moment_of),
        max((group.last for group in groups), key=moment_of),
        len({each["gpu_uuid"] for each in environments if each.get("gpu_uuid")}),
        tuple(sorted({words(str(each["driver"])) for each in environments if each.get("driver")})),
        tuple(sorted({words(str(each["commit"]))[:10] for each in environments if each.get("commit")})),
    )


def _failures(race: ShownRace, labels: Sequence[str]) -> Iterable[model.ShownFailure]:
    """Rows that count and did not pass, and passed rows that are faster than the floor allows."""
    for place, cells in zip(race.shapes, race.cells, strict=True):
        for solution, cell in zip(race.solutions, cells, strict=True):
            doubtful = "too good" in cell.marks
            if cell.status in (PASSED, NOT_MEASURED) and not doubtful:
                continue
            yield model.ShownFailure(
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


def _outdated(race: ShownRace) -> Iterable[model.ShownOutdated]:
    for place, solution in enumerate(race.solutions):
        rows = [cells[place] for cells in race.cells if cells[place].status != NOT_MEASURED]
        former = sum("outdated" in cell.marks for cell in rows)
        if former:
            yield model.ShownOutdated(race.definition, race.gpu, race.protocol, solution, former, len(rows))


def _missing(catalog: Catalog, counted: Sequence[RowGroup]) -> Iterable[model.ShownMissing]:
    """Solutions without a row on a GPU on which another solution of the definition has rows."""
    measured: dict[tuple[str, str], set[str]] = {}
    for group in counted:
        measured.setdefault((group.definition, gpu_id(group.gpu)), set()).update(group.solutions)
    for (definition, gpu), names in sorted(measured.items()):
        if definition not in catalog.definitions:
            continue
        for solution in sorted(catalog.solutions_of(definition), key=lambda each: each.name):
            if solution.name not in names:
                yield model.ShownMissing(
                    words(definition), gpu, words(solution.name), words(solution.author), requirements_text(solution)
                )
