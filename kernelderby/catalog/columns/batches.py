"""Lines of traces/ as columns, some hundred at a time, without a Measurement of each.

A batch of valid lines becomes columns at once. Text that many rows share (workload, environment, GPU) is read and
checked once. If anything in a batch is invalid, load_rows() reads it line by line and gives the reasons.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.json import Decoder

from kernelderby.catalog.agreement import Demands, RowFolders, check_passed, check_place, demands_on
from kernelderby.catalog.columns.write import OF_ONE_ROW, Columns, as_json, own_bytes
from kernelderby.catalog.model import Definition, Workload
from kernelderby.catalog.traces import check_workload, load_rows
from kernelderby.errors import DerbyError
from kernelderby.rows.bulk import QuickOwn, QuickRow, odd_medians
from kernelderby.rows.measurement import FLASHINFER_BENCH_PROTOCOLS, Measurement, Status, correctness_of
from kernelderby.rows.row import Evaluation, Hardware, KnownEnvironment, RanWorkload, expect_same_libs
from kernelderby.store.fields import EXPLAINED, TextLine, agree

_AT_ONCE = 64  # lines: their data fit into the processor's cache
_ODD = (ValueError, ArithmeticError, LookupError, TypeError, RecursionError, SystemError, DerbyError)
_decode = msgspec.json.decode


class _Evaluation(Evaluation):
    environment: Raw  # type: ignore[assignment]


class _Own(QuickOwn):
    environment: dict[str, Raw] = {}  # noqa: RUF012


class _QuickLine(QuickRow):
    """A checked Row, except for the fields that are still text."""

    evaluation: _Evaluation
    measurement: _Own | None = None


_decode_line = Decoder(_QuickLine).decode
_decode_rounds = Decoder(list[list[list[float]]]).decode


def columns_of(
    path: Path,
    workloads: Mapping[str, Workload],
    left_out: Callable[[str], None],
    lines: Iterator[TextLine],
    place: RowFolders | None = None,
    definition: Definition | None = None,
) -> Columns:
    """The columns of the rows that load_rows() gives for these lines. load_rows() also reports the other lines."""
    batches, broken = _Batches(path.stem, workloads, place, definition), list[str]()
    while some := list(islice(lines, _AT_ONCE)):
        if len(broken) >= EXPLAINED:  # read batch by batch, it would explain the first line of each batch
            some += lines
        elif batches.take(some):
            continue
        own = load_rows(path, workloads, broken.append, lambda _: None, place, definition, iter(some))
        batches.columns.add_rows(own)
    for problem in broken:
        left_out(problem)
    return batches.columns


class _Batches:
    """The shared texts that were found valid, and the columns so far."""

    def __init__(
        self, stem: str, workloads: Mapping[str, Workload], place: RowFolders | None, definition: Definition | None
    ) -> None:
        self.stem, self.workloads, self.place, self.definition = stem, workloads, place, definition
        self.columns = Columns()
        self._ran: dict[bytes, tuple[RanWorkload, str]] = {}
        self._around: dict[tuple[bytes, tuple[str, ...], bytes], tuple[str, str, object]] = {}
        self._placed: set[tuple[str, str]] = set()
        self._demands: dict[tuple[bytes, str], Demands] = {}

    def take(self, some: Sequence[TextLine]) -> bool:
        """Whether these lines are valid. Then they are added to the columns."""
        if b"".join([line.text for line in some]).count(b'"environment"') != 2 * len(some):
            return False  # a field occurs twice, and the first one would be overlooked
        try:
            rows = [_decode_line(line.text) for line in some]
            cells = [self._cells(line.number, row) for line, row in zip(some, rows, strict=True)]
            return self._with_samples(rows, cells)
        except _ODD:
            return False

    def _with_samples(self, rows: Sequence[_QuickLine], cells: Sequence[list[Any]]) -> bool:
        times = [row.measurement.times for row in rows if row.measurement]
        owners = [time for each in times for time in each.values()]
        rounds = _decode_rounds(b"[" + b",".join([time.samples_us for time in owners]) + b"]")
        shapes = [tuple(map(len, each)) for each in rounds]
        sizes = {shape: sum(shape) for shape in {*shapes}}
        if any(not shape or 0 in shape for shape in sizes):
            return False
        flat, medians = array("d"), array("d", [time.median_us for time in owners])
        flat.fromlist([*chain.from_iterable(chain.from_iterable(rounds))])
        counts = [sizes[shape] for shape in shapes]
        starts = list(accumulate(counts, initial=0))
        if next(odd_medians(flat, starts[:-1], counts, medians), None) is not None:
            return False
        columns, end = self.columns, 0
        ends = list(accumulate(map(len, times)))
        for row, each, end in zip(cells, times, ends, strict=True):
            start = end - len(each)
            row[_KINDS] = columns.kinds(tuple(zip(each, shapes[start:end], strict=True)))
            columns.of_samples.append(starts[end] - starts[start])
        columns.of_medians.extend(map(len, times))
        columns.medians.extend(medians)
        columns.samples.extend(flat)
        columns.add_many(cells)
        return True

    def _cells(self, number: int, row: _QuickLine) -> list[Any]:
        """The cells of a row, without a check of its samples. ValueError, DerbyError: a field is invalid."""
        own, evaluation, text = row.measurement, row.evaluation, bytes(row.workload)
        if own is None or bytes(own.samples_us) != b"[]":
            raise ValueError("of flashinfer-bench, or of the first protocol")
        agree("", "definition", row.definition, self.stem)
        alone = self._alone(own.environment)
        gpu, shared, empty_us = self._environment(bytes(evaluation.environment), own.environment)
        ran, workload = self._ran.get(text) or self._workload(text)
        if self.place is not None and (gpu, own.protocol) not in self._placed:
            said = Measurement("", {}, "", own.status, gpu, own.protocol, "")
            check_place("", said, self.place, self.definition)
            self._placed.add((gpu, own.protocol))
        if self.definition is not None and own.status is Status.PASSED:
            self._check_passed(own, (text, gpu), ran, empty_us)
        return [
            *(number, row.solution, gpu, own.protocol, own.status, own.solution_hash, own.session),
            *(evaluation.timestamp, evaluation.log or "", own.graph_missing or ""),
            *(workload, as_json(own.shape) if own.shape else "{}", shared),
            *("null" if own.setup is None else as_json(own.setup), ""),
            *(own.latency_us, own.reference_latency_us, own.host_us, own.wall_us),
            own_bytes(alone, correctness_of(own.correctness)),
        ]

    def _alone(self, environment: dict[str, Raw]) -> dict[str, Any]:
        """Takes the fields that belong to one row only out of the environment, and returns them."""
        names = [name for name in OF_ONE_ROW if name in environment]
        values = _decode(b"[" + b",".join([environment.pop(name) for name in names]) + b"]")
        alone = dict(zip(names, values, strict=True))
        msgspec.convert(alone, KnownEnvironment)
        return alone

    def _environment(self, evaluated: bytes, environment: dict[str, Raw]) -> tuple[str, str, object]:
        """The GPU, the environment that rows share, as JSON, and its empty_kernel_us. evaluated: flashinfer-bench's
        part."""
        key = evaluated, tuple(environment), b"\0".join(environment.values())
        found = self._around.get(key)
        if found is None:
            shared = {name: _decode(text) for name, text in environment.items()}
            msgspec.convert(shared, KnownEnvironment)
            hardware = _decode(evaluated, type=Hardware)
            expect_same_libs(hardware.libs, shared.get("libs"))
            found = self._around[key] = hardware.hardware, as_json(shared), shared.get("empty_kernel_us")
        return found

    def _workload(self, text: bytes) -> tuple[RanWorkload, str]:
        said = _decode(text, type=dict[str, Any])
        ran = msgspec.convert(said, RanWorkload)
        check_workload("", said, self.workloads.get(ran.uuid), self.definition)
        self._ran[text] = ran, as_json(said)
        return self._ran[text]

    def _check_passed(self, own: _Own, key: tuple[bytes, str], ran: RanWorkload, empty_us: object) -> None:
        assert self.definition is not None
        if key not in self._demands:
            self._demands[key] = demands_on(self.definition, self.workloads.get(ran.uuid), ran.axes, key[1])
        times = {kind: time.median_us for kind, time in own.times.items()}
        if own.latency_us is not None:
            times.setdefault("eager", own.latency_us)
        ratios = own.correctness.matched_ratio if own.correctness else {}
        is_ours = own.protocol not in FLASHINFER_BENCH_PROTOCOLS
        check_passed("", ratios, times, key[1], self.definition, self._demands[key], is_ours=is_ours, empty_us=empty_us)


_KINDS = 14  # their place among a row's cells
