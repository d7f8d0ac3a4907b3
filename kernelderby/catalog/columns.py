"""Rows as columns: a Parquet file of many rows, to and from trace.Measurement.

Of a row that a later one of its file replaces only what counting needs is given back: see read_columns().
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from kernelderby.rows.measurement import Correctness, Measurement, Place, Timed
from kernelderby.rows.row import Status
from kernelderby.rows.samples import Samples
from kernelderby.store.files import temporary, write_all

if TYPE_CHECKING:
    import pyarrow as pa

# Texts that most rows share with others: each distinct one is kept and made once. Those of _JSON are texts of JSON.
_TEXTS = ("solution", "gpu", "protocol", "status", "solution_hash", "session", "timestamp", "message", "graph_missing")
_JSON = ("workload", "shape", "shared", "setup", "kinds")
_NUMBERS = ("latency_us", "reference_latency_us", "host_us", "wall_us")  # not a number stands for None
_OF_ONE_ROW = ("clocks", "clocks_before", "seconds", "secret")  # of an environment; the others share the rest
_OWN = ""  # the kind of samples that stand beside `times`, in rows before protocol 2
_KEY = ("solution", "gpu", "protocol", "solution_hash", "workload", "kinds")  # of rows that replace one another


def write_columns(path: Path, rows: Sequence[Measurement]) -> None:
    """A Parquet file, whole or not at all. OSError where it cannot be written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = partial(pa.array, type=pa.string())
    columns: dict[str, Any] = {"line": pa.array([row.place.line if row.place else 0 for row in rows], pa.int32())}
    for name in _TEXTS:
        columns[name] = text([*map(attrgetter(name), rows)]).dictionary_encode()
    for name in _NUMBERS:
        columns[name] = pa.array([*map(attrgetter(name), rows)], pa.float64())
    workloads = {id(row.workload): row.workload for row in rows}  # most rows share one object
    texts = {key: _json(workload) for key, workload in workloads.items()}
    columns["workload"] = text([texts[id(row.workload)] for row in rows])
    columns["shape"] = text([_json(row.shape) if row.shape else "{}" for row in rows])
    environments = [*map(_split, rows)]
    columns["shared"] = text([shared for shared, _ in environments])
    columns["setup"] = text(["null" if row.setup is None else _json(row.setup) for row in rows])
    times = [*map(_times, rows)]
    shapes: dict[tuple[Any, ...], str] = {}  # kinds and lengths of most rows are alike
    lengths = [tuple([(kind, samples.lengths) for kind, _, samples in each]) for each in times]
    columns["kinds"] = text([shapes.get(each) or shapes.setdefault(each, _json(each)) for each in lengths])
    for name in _JSON:
        columns[name] = columns[name].dictionary_encode()
    columns["own"] = pa.array([own for _, own in environments])
    columns["medians"] = _lists([array("d", [median for _, median, _ in each]) for each in times], [*map(len, times)])
    flats = [samples.flat for each in times for *_, samples in each]
    columns["samples"] = _lists(flats, [sum([len(samples.flat) for *_, samples in each]) for each in times])
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, compression="zstd", use_dictionary=[*_TEXTS, *_JSON])
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary(path) as (unfinished, descriptor):
        write_all(descriptor, sink.getvalue().to_pybytes())
        unfinished.rename(path)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _split(row: Measurement) -> tuple[str, bytes]:
    """Of the environment what rows share; what is of this one, with its correctness."""
    shared = dict(row.environment)
    own = {name: shared.pop(name) for name in _OF_ONE_ROW if name in shared}
    return _json(shared), msgspec.msgpack.encode((own, row.correctness))


def _times(row: Measurement) -> list[tuple[str, float, Samples]]:
    """Kind, median, samples."""
    found = [(kind, time.median_us, Samples.of(time.samples_us)) for kind, time in row.times.items()]
    if row.samples_us and "eager" not in row.times:
        found.append((_OWN, 0.0, Samples.of(row.samples_us)))
    return found


def _lists(arrays: Sequence[array[float]], lengths: Sequence[int]) -> pa.Array:
    """A list of so many numbers for each row, of all of them in turn."""
    import pyarrow as pa

    flat = np.frombuffer(b"".join(arrays), dtype=np.float64)
    return pa.ListArray.from_arrays(pa.array([0, *accumulate(lengths)], pa.int32()), pa.array(flat))


# -------------------------------------------------------------------------------------------------------------- reading


def read_columns(
    paths: Sequence[Path], definition: str, file: str, *, clocks: bool, replaced: bool = True
) -> Iterator[Measurement]:
    """The rows of one file of traces, from its parts in order. file: its path, for Place. clocks: with what of the
    environment is of one row alone, and the correctness.

    A row that a later one replaces (the same solution with the same code, workload, GPU, protocol and kinds of time)
    can never count. It comes without times, correctness, setup and clocks, to be counted among the others; not at all
    without `replaced`.
    OSError, ValueError: a part is gone or broken."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    read = partial(pq.read_table, partitioning=None, use_threads=False)
    keys = pa.concat_tables([read(path, columns=[*_KEY]) for path in paths]).unify_dictionaries()
    live, start = _live([_places(keys[name]) for name in _KEY]), 0
    for path in paths:
        table = read(path, columns=["line", *_TEXTS, *_JSON, *_NUMBERS]).combine_chunks()
        which = live[start : start + len(table)]
        start += len(table)
        body = read(path, columns=["own", "medians", "samples"]).filter(pa.array(which)) if any(which) else None
        if not replaced:
            table = table.filter(pa.array(which))
            which = [True] * len(table)
        yield from _rows(_Made(definition, file, table, clocks), table, which, body)


def read_sessions(paths: Sequence[Path]) -> Iterator[Measurement]:
    """For each different environment under which any session measured, a row that says no more."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ["session", "gpu", "protocol", "shared"]
    table = pa.concat_tables([pq.read_table(path, columns=names, partitioning=None) for path in paths])
    distinct = table.unify_dictionaries().group_by(names).aggregate([])
    for session, gpu, protocol, shared in zip(*(distinct[name].to_pylist() for name in names), strict=True):
        environment = msgspec.json.decode(shared)
        yield Measurement("", {}, "", Status.PASSED, gpu, protocol, "", session=session, environment=environment)


def _rows(made: _Made, table: pa.Table, which: Sequence[bool], body: pa.Table | None) -> Iterator[Measurement]:
    """body: of the rows that may count, which `which` names."""
    numbers = zip(*(table[name].to_pylist() for name in _NUMBERS), strict=True)
    codes = zip(*(_places(table[name]).tolist() for name in (*_TEXTS, *_JSON)), strict=True)
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
    """Makes rows of one part; what they share is decoded once."""

    def __init__(self, definition: str, file: str, table: pa.Table, clocks: bool) -> None:
        self.definition, self.file, self.clocks = definition, file, clocks
        self.texts: list[list[Any]] = []
        for name in (*_TEXTS, *_JSON):
            values = table[name].combine_chunks().dictionary.to_pylist()
            if name == "status":
                values = [*map(Status, values)]
            elif name in _JSON:
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
                if kind != _OWN:
                    times[kind] = Timed(median, one)
                if kind in ("eager", _OWN):
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
            Place(self.file, line),
        )
