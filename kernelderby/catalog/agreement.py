"""A row compared with its path, its definition, the hardware, and the other rows of its session."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct

from kernelderby.catalog.model import Definition, Workload
from kernelderby.errors import DerbyError
from kernelderby.hardware import find_gpu, gpu_id
from kernelderby.rows.measurement import FLASHINFER_BENCH_PROTOCOLS, TIME_KINDS, Measurement
from kernelderby.store.counts import counted
from kernelderby.store.fields import agree

_EMPTY = 0.5  # of an empty kernel's time: no kernel is that much faster, whatever the clocks did
_IMPOSSIBLE = 10  # times as fast as the GPU's peaks allow: no clock, no cache and no miscount explains it
# One run on one GPU has one of each.
_OF_A_SESSION: dict[str, Callable[[Measurement], object]] = {
    "evaluation.environment.hardware": lambda row: row.gpu,
    "measurement.protocol": lambda row: row.protocol,
    "measurement.environment.driver": lambda row: row.environment.get("driver"),
    "measurement.environment.empty_kernel_us": lambda row: _sorted(row.environment.get("empty_kernel_us")),
}
RowFolders = tuple[str, str]  # the two folders above a file of rows: the GPU (or an author), and the op_type


def check_place(where: str, row: Measurement, place: RowFolders, definition: Definition | None) -> None:
    """DerbyError if the path names another GPU or another op_type. flashinfer-bench's rows lie under authors."""
    if row.protocol not in FLASHINFER_BENCH_PROTOCOLS or find_gpu(place[0]) is not None:
        agree(where, "evaluation.environment.hardware", gpu_id(row.gpu), place[0])
    if definition is not None:
        agree(where, "op_type", definition.op_type, place[1])


class Demands(Struct, frozen=True):
    """The requirements on a row that passed. ratios: tolerance -> minimum share of matching elements. least_us: minimum
    time of the work at the GPU's peaks; an eager or graph time may not be far below it."""

    ratios: dict[str, float]
    least_us: float


def demands_on(definition: Definition, workload: Workload | None, axes: dict[str, int], gpu_name: str) -> Demands:
    """The demands on a workload's rows on one GPU. The workload gives its axes even if the set does not have it."""
    ratios = {each.name: each.least_ratio(_elements(definition, axes, each.outputs)) for each in definition.tolerances}
    gpu, cost = find_gpu(gpu_name), workload.cost if workload else None
    if gpu is None or cost is None:
        return Demands(ratios, 0.0)
    moved_us = max(cost.bytes_read, cost.bytes_written) / gpu.memory_bytes_per_second * 1e6 / 2  # in place: once
    flops_us = sum(n / gpu.flops_per_second.get(dtype, math.inf) for dtype, n in cost.flops.items()) * 1e6
    return Demands(ratios, max(moved_us, flops_us))


def check_passed(
    where: str,
    ratios: Mapping[str, float],
    times_us: Mapping[str, float],
    gpu: str,
    definition: Definition,
    demands: Demands,
    *,
    is_ours: bool,
    empty_us: object = None,
) -> None:
    """DerbyError for a row that claims to have passed although its own figures contradict this. ratios: tolerance ->
    share of matching elements. times_us: kind -> median. is_ours: derby measured the row, so it must have a ratio of
    the definition's. It may lack the ratios of tolerances that were added later. empty_us: kind -> time of an empty
    kernel in that session, as the row gives it."""
    if is_ours and demands.ratios and ratios.keys().isdisjoint(demands.ratios):
        raise DerbyError(
            f"{where}: measurement.correctness.matched_ratio: lacks {', '.join(demands.ratios)} in a passed "
            f"row, which {definition.name} demands; measure it again"
        )
    for name, least in demands.ratios.items() if ratios else ():
        if ratios.get(name, 1.0) < least * (1 - 1e-9):
            raise DerbyError(
                f"{where}: measurement.correctness.matched_ratio.{name}: is {ratios[name]:g} in a passed row, but "
                f"{definition.name} demands {least:g}; measure it again"
            )
    for kind in TIME_KINDS[:2] if demands.least_us else ():
        if kind in times_us and times_us[kind] * _IMPOSSIBLE < demands.least_us:
            raise DerbyError(
                f"{where}: the {kind} time is {times_us[kind]:g} us, but {gpu} needs {demands.least_us:.3g} us for "
                "that work; measure it again"
            )
    for kind, empty in empty_us.items() if isinstance(empty_us, dict) else ():
        if kind in times_us and times_us[kind] < (empty or 0.0) * _EMPTY:
            raise DerbyError(
                f"{where}: the {kind} time is {times_us[kind]:g} us, but that of an empty kernel, "
                f"measurement.environment.empty_kernel_us.{kind}, {empty:g}; measure it again"
            )


def out_of_session(rows: Iterable[Measurement]) -> Iterator[tuple[Measurement, str]]:
    """Rows that contradict most others of their session on the same GPU, each with the contradiction. If both sides are
    equally many, all of them, because nobody knows which are right."""
    sessions: dict[tuple[str, object], list[Measurement]] = {}
    for row in rows:
        if row.session is not None:
            sessions.setdefault((row.session, row.environment.get("gpu_uuid")), []).append(row)
    for (session, _), own in sessions.items():
        told: set[int] = set()
        for field, value_of in _OF_A_SESSION.items():
            values = Counter(value for row in own if (value := value_of(row)) is not None)
            if len(values) < 2:
                continue
            (most, count), (_, next_count) = values.most_common(2)
            for row in own:
                value = value_of(row)
                if value is not None and (value != most or count == next_count) and id(row) not in told:
                    told.add(id(row))
                    others = "others" if count == next_count else counted(count, "row")
                    yield (
                        row,
                        (f"{field}: is {value!s:.60}, unlike {others} of its session {session:.60}; measure it again"),
                    )


def _elements(definition: Definition, axes: dict[str, int], outputs: Iterable[str]) -> int:
    """The number of elements of the smallest of these outputs (default: all outputs); 0 if the axes do not determine
    it."""
    try:
        sizes = definition.sizes(axes)
    except DerbyError:
        return 0
    return min(
        math.prod(sizes[axis] for axis in definition.outputs[name].shape or ())
        for name in outputs or definition.outputs
    )


def _sorted(value: object) -> object:
    """The value in a hashable form: a mapping becomes sorted pairs."""
    return tuple(sorted(value.items(), key=str)) if isinstance(value, dict) else value
