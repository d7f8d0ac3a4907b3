"""Rows from columns: Measurements from the Parquet files of write.py.

A row that a later one of its file replaces comes back with the fields for counting only: see read_columns().
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from kernelderby.catalog.columns.write import JSON, NUMBERS, OWN, TEXTS
from kernelderby.rows.measurement import Correctness, FileLine, Measurement, Timed
from kernelderby.rows.row import Status
from kernelderby.rows.samples import Samples

if TYPE_CHECKING:
    import pyarrow as pa

_KEY = ("solution", "gpu", "protocol", "solution_hash", "workload", "kinds")  # rows of one key replace one another


def read_columns(
    paths: Sequence[Path], definition: str, file: str, *, clocks: bool, replaced: bool = True
) -> Iterator[Measurement]:
    """The rows of one file of traces, from its parts in order. file: its path, for FileLine. clocks: also read the
    correctness, and the parts of the environment that belong to one row only.

    A row that a later one replaces (the same solution with the same code, workload, GPU, protocol and kinds of time)
    can never count. It comes without times, correctness, setup and clocks, to be counted with the others. Without
    `replaced` it does not come at all. OSError, ValueError: a part is gone or broken."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    read = partial(pq.read_table, partitioning=None, use_threads=False)
    keys = pa.concat_tables([read(path, columns=[*_KEY]) for path in paths]).unify_dictionaries()
    live, start = _live([_places(keys[name]) for name in _KEY]), 0
    for path in paths:
        table = read(path, columns=["line", *TEXTS, *JSON, *NUMBERS]).combine_chunks()
        which = live[start : start + len(table)]
        start += len(table)
        body = read(path, columns=["own", "medians", "samples"]).filter(pa.array(which)) if any(which) else None
        if not replaced:
            table = table.filter(pa.array(which))
            which = [True] * len(table)
        yield from _rows(_Made(definition, file, table, clocks), table, which, body)


def read_sessions(paths: Sequence[Path]) -> Iterator[Measurement]:
    """For each environment of each session, a row that holds nothing else."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ["session", "gpu", "protocol", "shared"]
    table = pa.concat_tables([pq.read_table(path, columns=names, partitioning=None) for path in paths])
    distinct = table.unify_dictionaries().group_by(names).aggregate([])
    for session, gpu, protocol, shared in zip(*(distinct[name].to_pylist() for name in names), strict=True):
        environment = msgspec.json.decode(shared)
        yield Measurement("", {}, "", Status.PASSED, gpu, protocol, "", session=session, environment=environment)


def _rows(made: _Made, table: pa.Table, which: Sequence[bool], body: pa.Table | None) -> Iterator[Measurement]:
    """which: whether each row may count. body: the columns of the rows that may."""
    numbers = zip(*(table[name].to_pylist() for name in NUMBERS), strict=True)
    codes = zip(*(_places(table[name]).tolist() for name in (*TEXTS, *JSON)), strict=True)
    bodies = _bodies(body) if body is not None else iter(())
    for line, code, number, is_live in zip(table["line"].to_pylist(), codes, numbers, which, strict=True):
        yield made.row(line, code, number, next(bodies) if is_live else None)


class _Body(NamedTuple):
    own: bytes
    medians: Sequence[float]
    samples: memoryview


def _bodies(table: pa.Table) -> Iterator[_Body]:
    table = table.combine_chunks()
    lists = []
    for name in ("medians", "samples"):
        chunk = table[name].combine_chunks()
        values = np.ascontiguousarray(chunk.values.to_numpy(), dtype=np.float64)
        lists.append((chunk.offsets.to_pylist(), values.data))
    (median_ends, medians), (ends, samples) = lists
    for at, own in enumerate(table["own"].to_pylist()):
        yield _Body(own, medians[median_ends[at] : median_ends[at + 1]].tolist(), samples[ends[at] : ends[at + 1]])


def _places(column: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Each row's place among the distinct values; -1: None."""
    chunk = column.combine_chunks()
    return np.asarray(chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)


def _live(codes: Sequence[np.ndarray[Any, Any]]) -> list[bool]:
    """Whether each row is the last one of its key."""
    rows = len(codes[0])
    key = np.zeros(rows, dtype=np.int64)
    for each in codes:
        _, key = np.unique(key * (int(each.max(initial=0)) + 2) + each + 1, return_inverse=True)
    _, last = np.unique(key[::-1], return_index=True)
    live = np.zeros(rows, dtype=bool)
    live[rows - 1 - last] = True
    found: list[bool] = live.tolist()
    return found


_Own = tuple[dict[str, Any], Correctness | None]


class _Made:
    """Makes the rows of one part. Shared values are decoded once."""

    def __init__(self, definition: str, file: str, table: pa.Table, clocks: bool) -> None:
        self.definition, self.file, self.clocks = definition, file, clocks
        self.texts: list[list[Any]] = []
        for name in (*TEXTS, *JSON):
            values = table[name].combine_chunks().dictionary.to_pylist()
            if name == "status":
                values = [*map(Status, values)]
            elif name in JSON:
                values = [*map(msgspec.json.decode, values)]
            self.texts.append([*values, None])
        self.texts[-1] = [
            each and [(kind, tuple(lengths), sum(lengths)) for kind, lengths in each] for each in self.texts[-1]
        ]
        self.decode = msgspec.msgpack.Decoder(_Own).decode

    def row(self, line: int, code: Sequence[int], numbers: Sequence[float | None], body: _Body | None) -> Measurement:
        values = [each[at] for each, at in zip(self.texts, code, strict=True)]
        solution, gpu, protocol, status, solution_hash, session, timestamp, message, graph_missing = values[:9]
        workload, shape, environment, setup, kinds = values[9:]
        times: dict[str, Timed] = {}
        eager: Sequence[Sequence[float]] = ()
        correctness, start = None, 0
        if body is not None:
            for (kind, lengths, count), median in zip(kinds, body.medians, strict=True):
                one = Samples(array("d", bytes(body.samples[start : start + count])), lengths)
                start += count
                if kind != OWN:
                    times[kind] = Timed(median, one)
                if kind in ("eager", OWN):
                    eager = one
            if self.clocks:
                alone, correctness = self.decode(body.own)
                environment = {**environment, **alone} if alone else environment
        latency_us, reference_latency_us, host_us, wall_us = numbers
        return Measurement(
            self.definition,
            workload,
            solution,
            status,
            gpu,
            protocol,
            timestamp,
            latency_us,
            eager,
            reference_latency_us,
            correctness,
            solution_hash,
            session,
            message,
            environment,
            times,
            graph_missing,
            host_us,
            wall_us,
            setup if body else None,
            shape,
            FileLine(self.file, line),
        )
