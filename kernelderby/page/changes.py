"""Changes since another run: compares every solution that both sets measured under one protocol with itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec.structs import replace as changed_row

from kernelderby.catalog import Catalog, Solution, Workload
from kernelderby.catalog.traces import load_rows
from kernelderby.errors import DerbyError
from kernelderby.page.model.trust import ShownChange, ShownChanges
from kernelderby.page.text import interval, words
from kernelderby.rank.ranking import rank
from kernelderby.roofline import selection
from kernelderby.roofline.selection import GroupKey
from kernelderby.rows.measurement import Measurement
from kernelderby.store.files import files_under

BEFORE = " (before)"  # after a solution's name: names have no blanks, so no name ends like this


def rows_before(path: Path, catalog: Catalog) -> list[Measurement]:
    """The rows of another trace set, or of a folder of traces. DerbyError without rows."""
    if not path.is_dir():
        raise DerbyError(f"--against {path}: no such folder; give a trace set or a folder of traces")
    folder = path / "traces" if (path / "traces").is_dir() else path
    rows = []
    for file in files_under(folder, ".jsonl", catalog.left_out):
        if file.stem in catalog.definitions:
            known = {workload.uuid: workload for workload in catalog.workloads(file.stem)}
            rows += load_rows(file, known, catalog.left_out, catalog.left_out)
    if not rows:
        raise DerbyError(f"--against {path}: has no recorded rows; give a trace set or a folder of traces")
    return rows


def changes(
    against: str,
    now: Mapping[str, Sequence[Measurement]],
    before: Mapping[str, Sequence[Measurement]],
    workloads: Mapping[str, Sequence[Workload]],
    solutions: Mapping[str, Mapping[str, Solution]],
) -> ShownChanges:
    """now, before: definition -> rows."""
    lines, unchanged, here, there = [], 0, set[str](), set[str]()
    for definition, own in solutions.items():
        groups, former = (selection.group_rows(rows.get(definition, ())) for rows in (now, before))
        for name, solution in own.items():
            for key in sorted(set(groups) | set(former)):
                new = [row for row in groups.get(key, ()) if row.solution == name]
                old = [row for row in former.get(key, ()) if row.solution == name]
                where = f"{definition} / {name} on {key.gpu} under {key.protocol}"
                if new == old:
                    unchanged += bool(new)
                elif new and old:
                    lines += _change(key, definition, solution, new, old, workloads[definition])
                elif new:
                    here.add(where)
                elif old:
                    there.add(where)
    return ShownChanges(words(against), tuple(lines), unchanged, tuple(sorted(here)), tuple(sorted(there)))


def _change(
    key: GroupKey,
    definition: str,
    solution: Solution,
    new: Sequence[Measurement],
    old: Sequence[Measurement],
    workloads: Sequence[Workload],
) -> list[ShownChange]:
    """The changes by the kind of time that both have; [] if they passed no workload in common."""
    name, other = solution.name, solution.name + BEFORE
    former = [changed_row(row, solution=other, solution_hash=None) for row in old]
    kind = selection.time_kind([*new, *former])
    contenders = {name: solution, other: replace(solution, name=other)}
    ranking = rank([*new, *former], definition, workloads, contenders, baseline=None, time=kind)
    pair = next((each for each in ranking.pairs), None)
    if pair is None:
        return []
    is_slower = pair.first == other  # a pair's ratio is time of the second over time of the first
    ratio = interval(pair.geomean if is_slower else pair.geomean.inverse())
    assert ratio is not None
    wins, losses = (pair.losses, pair.wins) if is_slower else (pair.wins, pair.losses)
    codes, former_codes = (
        {row.solution_hash and solution.code_of(row.solution_hash) for row in rows} for rows in (new, old)
    )
    return [
        ShownChange(
            words(definition),
            key.gpu,
            words(key.protocol),
            kind,
            words(name),
            ratio,
            wins,
            pair.ties,
            losses,
            pair.workloads,
            codes == former_codes,
        )
    ]
