"""Recorded rows: traces/**/<definition>.jsonl, ours and flashinfer-bench's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kernelderby.catalog.agreement import Demands, RowFolders, check_passed, check_place, demands_on, out_of_session
from kernelderby.catalog.model import Definition, Workload
from kernelderby.catalog.workloads import FRESH, workload_of
from kernelderby.errors import DerbyError
from kernelderby.rows.bulk import QuickRow, read_rows
from kernelderby.rows.measurement import FLASHINFER_BENCH_PROTOCOLS, TIME_KINDS, FileLine, Measurement, Status
from kernelderby.store.counts import counted
from kernelderby.store.fields import TextLine, agree, decode_json, expect_keys_once, lines_of

_CLOCKS_DIFFER = timedelta(days=1)  # a row may come from a machine whose clock is fast or has no time zone


def load_rows(
    path: Path,
    workloads: Mapping[str, Workload],
    left_out: Callable[[str], None],
    noted: Callable[[str], None],
    place: RowFolders | None = None,
    definition: Definition | None = None,
    lines: Iterator[TextLine] | None = None,
) -> list[Measurement]:
    """The rows of a file, in its order. workloads: uuid -> workload of the definition. A row is broken if it
    contradicts its workload or its surroundings (agreement.py). place: the two folders above the file under traces/, if
    there are two. lines: some lines of the file (default: all); then rows of one session are not compared. left_out
    gets a line for each broken row, noted for each row dated in the future, which stays."""
    rows, file, stem = list[Measurement](), str(path), path.stem
    demands: dict[tuple[str, str, str], Demands] = {}
    ran: dict[bytes, dict[str, Any]] = {}  # text of a workload in the file -> its contents, read and checked once
    for where, line in read_rows(path, left_out, lines):
        try:
            text = bytes(line.workload) if isinstance(line, QuickRow) else b""
            if text:
                line.workload = ran[text] if text in ran else decode_json(f"{where}: workload", text)
            number = int(where.rpartition(":")[2])
            row = Measurement.from_row(
                line, where, FileLine(file, number), is_known=text in ran, by_author=place is not None
            )
            agree(where, "definition", row.definition, stem)
            workload = workloads.get(row.uuid)
            if text not in ran:
                check_workload(where, row.workload, workload, definition)
            if place is not None:
                check_place(where, row, place, definition)
            if definition is not None and row.status is Status.PASSED:
                key = row.uuid, repr(row.workload["axes"]), row.gpu
                if key not in demands:
                    demands[key] = demands_on(definition, workload, row.workload["axes"], row.gpu)
                ratios = row.correctness.matched_ratio if row.correctness else {}
                times = {kind: time.median_us for kind in TIME_KINDS if (time := row.time(kind)) is not None}
                is_ours = row.protocol not in FLASHINFER_BENCH_PROTOCOLS
                empty_us = row.environment.get("empty_kernel_us")
                check_passed(
                    where, ratios, times, row.gpu, definition, demands[key], is_ours=is_ours, empty_us=empty_us
                )
        except DerbyError as error:
            left_out(str(error))
            continue
        if text:
            ran[text] = row.workload
        rows.append(row)
    note_future(rows, noted)
    contradicting = dict[int, Measurement]()
    for row, problem in out_of_session(rows) if lines is None else ():
        contradicting[id(row)] = row
        left_out(f"{file}:{row.place.line if row.place else 0}: {problem}")
    return [row for row in rows if id(row) not in contradicting] if contradicting else rows


def note_future(rows: Iterable[Measurement], noted: Callable[[str], None]) -> None:
    """rows: the rows of one file, in their order."""
    latest = datetime.now(UTC) + _CLOCKS_DIFFER
    ahead = [row.place for row in rows if row.moment > latest]
    if ahead and ahead[0]:
        noted(
            f"{ahead[0].path}:{ahead[0].line}: evaluation.timestamp: lies in the future "
            f"({counted(len(ahead), 'row')} of the "
            "file); was the clock of that machine right?"
        )


def fresh_workloads(
    rows: Iterable[Measurement], definition: Definition, left_out: Callable[[str], None]
) -> list[Workload]:
    """The fresh shapes in these rows, each once, in order. No workloads file lists them."""
    found: dict[str, Workload] = {}
    for row in rows:
        if row.definition != definition.name or row.shape.get("origin") != FRESH or row.uuid in found:
            continue
        line = {"definition": row.definition, "workload": row.workload, **row.shape}
        where = f"{row.place.path}:{row.place.line}: measurement.shape" if row.place else "a row: measurement.shape"
        try:
            found[row.uuid] = workload_of(where, line, definition)
        except DerbyError as error:
            left_out(f"{error}; left out")
    return list(found.values())


def doubled_keys(path: Path) -> Iterator[str]:
    """A line for each row that has a field twice. Nothing else is checked. Only `derby pack --check` does this, because
    it takes longer than reading the rows."""
    try:
        lines = [*lines_of(path)]
    except DerbyError:
        return  # load_rows reports these rows, and text that is not JSON
    for line in lines:
        text = bytes(line.text)
        if not text.strip():
            continue
        try:
            expect_keys_once(f"{path}:{line.number}", text)
        except DerbyError as problem:
            yield str(problem)
        except (ValueError, RecursionError):
            continue


def check_workload(where: str, ran: dict[str, Any], workload: Workload | None, definition: Definition | None) -> None:
    """DerbyError if what a row ran is not the workload that has its uuid, or none of the definition."""
    axes, inputs, uuid = ran["axes"], ran["inputs"], ran["uuid"]
    if workload is not None and axes != workload.axes:
        raise DerbyError(
            f"{where}: workload.axes: are {axes}, but those of uuid {uuid} are {workload.axes}; remove that line"
        )
    for name, value in workload.scalars.items() if workload else ():
        found = inputs.get(name, {}).get("value", value)
        if found != value:
            raise DerbyError(
                f"{where}: workload.inputs.{name}.value: is {found!r:.40}, but that of uuid {uuid} is "
                f"{value!r}; remove that line"
            )
    if definition is None:
        return
    variable = {name for name, size in definition.axes.items() if size is None}
    for field, names, known in (("axes", axes.keys(), variable), ("inputs", inputs.keys(), {*definition.inputs})):
        if odd := sorted(names - known) or (sorted(known - names) if field == "axes" else []):
            raise DerbyError(
                f"{where}: workload.{field}: {odd[0]!r:.60} stands in the row or in {definition.name}, not in both; "
                "remove that line"
            )
