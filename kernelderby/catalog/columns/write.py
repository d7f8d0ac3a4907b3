"""Rows to columns: a Parquet file of many rows, from Measurements or from the columns of batches.py."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from kernelderby.errors import DerbyError
from kernelderby.rows.measurement import Correctness, Measurement, moment_of
from kernelderby.rows.samples import Samples
from kernelderby.store.files import temporary, write_all

if TYPE_CHECKING:
    import pyarrow as pa

# Texts that many rows share: each distinct text is stored and decoded once. The columns in JSON hold JSON.
TEXTS = ("solution", "gpu", "protocol", "status", "solution_hash", "session", "timestamp", "message", "graph_missing")
JSON = ("workload", "shape", "shared", "setup", "kinds")
NUMBERS = ("latency_us", "reference_latency_us", "host_us", "wall_us")  # NaN means None
OF_ONE_ROW = ("clocks", "clocks_before", "seconds", "secret")  # of an environment; rows share the rest
OWN = ""  # the kind of the samples outside `times`, in rows before protocol 2
_CELLS = ("line", *TEXTS, *JSON, *NUMBERS, "own")
Kinds = tuple[tuple[str, tuple[int, ...]], ...]  # kind, lengths of its rounds


class Columns:
    """cells: one list per column. medians, samples: the numbers of all rows one after another; of_medians, of_samples:
    their count in each row."""

    def __init__(self) -> None:
        self.cells: dict[str, list[Any]] = {name: [] for name in _CELLS}
        self.medians, self.of_medians = array("d"), list[int]()
        self.samples, self.of_samples = array("d"), list[int]()
        self._kinds: dict[Kinds, str] = {}  # equal for most rows

    def add_many(self, rows: Sequence[Sequence[Any]]) -> None:
        """Adds the cells of several rows, each in the order of _CELLS."""
        for cells, of_rows in zip(self.cells.values(), zip(*rows, strict=True), strict=True):
            cells.extend(of_rows)

    def add_rows(self, rows: Iterable[Measurement]) -> None:
        for row in rows:
            shared = dict(row.environment)
            alone = {name: shared.pop(name) for name in OF_ONE_ROW if name in shared}
            times = [(kind, time.median_us, Samples.of(time.samples_us)) for kind, time in row.times.items()]
            if row.samples_us and "eager" not in row.times:
                times.append((OWN, 0.0, Samples.of(row.samples_us)))
            for _, median, samples in times:
                self.medians.append(median)
                self.samples.extend(samples.flat)
            self.of_medians.append(len(times))
            self.of_samples.append(sum(len(samples.flat) for *_, samples in times))
            kinds = self.kinds(tuple([(kind, samples.lengths) for kind, _, samples in times]))
            setup = "null" if row.setup is None else as_json(row.setup)
            cells = (
                row.place.line if row.place else 0,
                *(getattr(row, name) for name in TEXTS),
                *(as_json(row.workload), as_json(row.shape), as_json(shared), setup, kinds),
                *(getattr(row, name) for name in NUMBERS),
                own_bytes(alone, row.correctness),
            )
            self.add_many([cells])

    def kinds(self, kinds: Kinds) -> str:
        return self._kinds.get(kinds) or self._kinds.setdefault(kinds, as_json(kinds))

    def newest(self) -> float:
        """The time of the newest row, in seconds since 1970; 0 without rows."""
        return max((moment_of(text).timestamp() for text in {*self.cells["timestamp"]}), default=0.0)


def as_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def own_bytes(alone: dict[str, Any], correctness: Correctness | None) -> bytes:
    """The fields that belong to one row only: parts of its environment, and its correctness. DerbyError: a number is
    too long."""
    try:
        return msgspec.msgpack.encode((alone, correctness))
    except OverflowError:
        raise DerbyError("measurement.environment: an integer of more than 64 bits has no place in columns") from None


def write_columns(path: Path, columns: Columns) -> None:
    """Writes a Parquet file, whole or not at all. OSError if it cannot be written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = dict.fromkeys((*TEXTS, *JSON), pa.string()) | dict.fromkeys(NUMBERS, pa.float64())
    types |= {"line": pa.int32(), "own": pa.binary()}
    made = {name: pa.array(cells, types[name]) for name, cells in columns.cells.items()}
    for name in (*TEXTS, *JSON):
        made[name] = made[name].dictionary_encode()
    lists = partial(_lists, pa)
    made["medians"] = lists(columns.medians, columns.of_medians)
    made["samples"] = lists(columns.samples, columns.of_samples)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(made), sink, compression="zstd", use_dictionary=[*TEXTS, *JSON])
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary(path) as (unfinished, descriptor):
        write_all(descriptor, sink.getvalue().to_pybytes())
        unfinished.rename(path)


def _lists(arrow: Any, flat: array[float], lengths: Sequence[int]) -> pa.Array:
    """For each row a list of `lengths` numbers, taken from `flat` in order."""
    values = np.frombuffer(flat, dtype=np.float64) if flat else np.empty(0)
    return arrow.ListArray.from_arrays(arrow.array([0, *accumulate(lengths)], arrow.int32()), arrow.array(values))
