"""Recorded rows: traces/**/<definition>.jsonl, ours and flashinfer-bench's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from kernelderby.catalog.model import Workload
from kernelderby.errors import DerbyError
from kernelderby.fields import agree, read_jsonl
from kernelderby.row import Row
from kernelderby.trace import Measurement, Place

_CLOCKS_DIFFER = timedelta(days=1)  # a row may come from a machine whose clock is ahead, or has no zone


def load_rows(
    path: Path,
    workloads: Mapping[str, Workload],
    left_out: Callable[[str], None],
    noted: Callable[[str], None],
    by_author: bool = False,
) -> list[Measurement]:
    """The rows of a file, in its order. workloads: uuid -> workload, of the definition; a row that contradicts its own
    is broken. by_author: it lies at traces/<author>/<op_type>/. Broken lines are told to left_out; rows of the future,
    which stay, to noted."""
    rows, ahead = [], []
    latest, definition, place = datetime.now(UTC) + _CLOCKS_DIFFER, path.stem, str(path)
    encode = msgspec.json.Encoder().encode
    published = {encode(workload.raw["workload"]) for workload in workloads.values()}
    for where, line in read_jsonl(path, Row, left_out):
        try:
            number = int(where.rpartition(":")[2])
            is_known = encode(line.workload) in published  # then it need not be checked again
            row = Measurement.from_row(line, where, Place(place, number), is_known=is_known, by_author=by_author)
            agree(where, "definition", row.definition, definition)
            if not is_known and row.uuid in workloads:
                _check_workload(where, row, workloads[row.uuid])
        except DerbyError as error:
            left_out(str(error))
            continue
        rows.append(row)
        if row.moment > latest:
            ahead.append(where)
    if ahead:
        noted(
            f"{ahead[0]}: evaluation.timestamp: lies in the future ({len(ahead)} rows of the file); "
            "was the clock of that machine right?"
        )
    return rows


def _check_workload(where: str, row: Measurement, workload: Workload) -> None:
    axes = row.workload["axes"]
    if axes != workload.axes:
        raise DerbyError(
            f"{where}: workload.axes: are {axes}, but those of uuid {row.uuid} are {workload.axes}; remove that line"
        )
    for name, value in workload.scalars.items():
        found = row.workload["inputs"].get(name, {}).get("value", value)
        if found != value:
            raise DerbyError(
                f"{where}: workload.inputs.{name}.value: is {found!r:.40}, but that of uuid {row.uuid} is "
                f"{value!r}; remove that line"
            )
