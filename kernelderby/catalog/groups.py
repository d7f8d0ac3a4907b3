"""Sums over all rows of an operator on one GPU under one protocol, counted from rows or from their columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from kernelderby.rows.measurement import Measurement, moment_of
from kernelderby.rows.row import Status

if TYPE_CHECKING:
    import pyarrow as pa


class RowGroup(Struct, frozen=True):
    """gpu: the name in the rows. solutions: number of rows of each. first, last: timestamps. environments: each
    different one, without the parts that belong to one row only."""

    definition: str
    gpu: str
    protocol: str
    rows: int
    passed: int
    solutions: dict[str, int]
    first: str
    last: str
    environments: list[dict[str, Any]]


def groups_of(rows: Iterable[Measurement]) -> list[RowGroup]:
    found: dict[tuple[str, str, str], list[Measurement]] = {}
    for row in rows:
        found.setdefault((row.definition, row.gpu, row.protocol), []).append(row)
    return [
        RowGroup(
            *key,
            len(own),
            sum(row.status is Status.PASSED for row in own),
            dict(Counter(row.solution for row in own)),
            *_ends([row.timestamp for row in own]),
            [row.environment for row in own],
        )
        for key, own in found.items()
    ]


def read_groups(paths: Sequence[Path], definition: str) -> list[RowGroup]:
    """The groups of one file of traces, from its parts (columns/). OSError, ValueError: a part is gone or broken."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ["gpu", "protocol", "status", "solution", "timestamp", "shared"]
    table = pa.concat_tables([pq.read_table(path, columns=names, partitioning=None) for path in paths])
    table = table.unify_dictionaries()

    def counted(name: str) -> dict[tuple[str, str], dict[str, int]]:
        return _counted(table, name)

    columns = {name: counted(name) for name in names[2:]}
    return [
        RowGroup(
            *(definition, gpu, protocol, sum(of_status.values()), of_status.get(Status.PASSED.value, 0)),
            columns["solution"][gpu, protocol],
            *_ends(list(columns["timestamp"][gpu, protocol])),
            [msgspec.json.decode(each) for each in columns["shared"][gpu, protocol]],
        )
        for (gpu, protocol), of_status in columns["status"].items()
    ]


def _counted(table: pa.Table, name: str) -> dict[tuple[str, str], dict[str, int]]:
    """(GPU, protocol) -> value of a column -> rows."""
    keys = ["gpu", "protocol", name]
    found: dict[tuple[str, str], dict[str, int]] = {}
    distinct = table.group_by(keys, use_threads=False).aggregate([([], "count_all")])
    for gpu, protocol, value, count in zip(*(distinct[each].to_pylist() for each in (*keys, "count_all")), strict=True):
        found.setdefault((gpu, protocol), {})[value] = count
    return found


def _ends(timestamps: Sequence[str]) -> tuple[str, str]:
    return min(timestamps, key=moment_of), max(timestamps, key=moment_of)
