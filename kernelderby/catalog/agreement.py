"""A row against what stands around it: its path, its definition, the hardware, and the other rows of its session."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from kernelderby.catalog.model import Definition, Workload
from kernelderby.errors import DerbyError
from kernelderby.hardware import find_gpu, gpu_id
from kernelderby.rows.measurement import TIME_KINDS, Measurement, Status
from kernelderby.store.fields import agree

_IMPOSSIBLE = 10  # times as fast as the GPU's peaks allow: no clock, no cache and no miscount explains it
# One run on one GPU has one of each.
_OF_A_SESSION: dict[str, Callable[[Measurement], object]] = {
    "evaluation.environment.hardware": lambda row: row.gpu,
    "measurement.protocol": lambda row: row.protocol,
    "measurement.environment.driver": lambda row: row.environment.get("driver"),
    "measurement.environment.empty_kernel_us": lambda row: _sorted(row.environment.get("empty_kernel_us")),
}
Place = tuple[str, str]  # the folders that a file of rows lies in: that of the GPU (or an author's), the op_type's


def check_place(where: str, row: Measurement, place: Place, definition: Definition | None) -> None:
    """DerbyError where the path says another GPU, or another op_type. flashinfer-bench's rows lie under authors."""
    if row.solution_hash is not None:
        agree(where, "evaluation.environment.hardware", gpu_id(row.gpu), place[0])
    if definition is not None:
        agree(where, "op_type", definition.op_type, place[1])


def check_passed(where: str, row: Measurement, definition: Definition, workload: Workload | None) -> None:
    """DerbyError for a row that says it passed where its own figures say that it cannot have."""
    if row.status is not Status.PASSED:
        return
    ratios = row.correctness.matched_ratio if row.correctness else {}
    for tolerance in definition.tolerances if ratios else ():
        least = tolerance.least_ratio(_elements(definition, row, tolerance.outputs))
        if ratios.get(tolerance.name, 1.0) < least * (1 - 1e-9):
            raise DerbyError(
                f"{where}: measurement.correctness.matched_ratio.{tolerance.name}: is {ratios[tolerance.name]:g} in a "
                f"passed row, but {definition.name} demands {least:g}; measure it again"
            )
    gpu, cost = find_gpu(row.gpu), workload.cost if workload else None
    if gpu is None or cost is None:
        return
    moved_us = max(cost.bytes_read, cost.bytes_written) / gpu.memory_bytes_per_second * 1e6 / 2  # in place: once
    flops_us = sum(n / gpu.flops_per_second.get(dtype, math.inf) for dtype, n in cost.flops.items()) * 1e6
    for kind in TIME_KINDS[:2]:
        time = row.time(kind)
        if time is not None and time.median_us * _IMPOSSIBLE < max(moved_us, flops_us):
            raise DerbyError(
                f"{where}: the {kind} time is {time.median_us:g} us, but {row.gpu} needs {max(moved_us, flops_us):.3g} "
                "us for that work; measure it again"
            )


def out_of_session(rows: Iterable[Measurement]) -> Iterator[tuple[Measurement, str]]:
    """Rows that contradict most others of their session on the same GPU, each with what is wrong. Of as many on either
    side, all of them: nobody knows which are right."""
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
                    others = "others" if count == next_count else f"{count} rows"
                    yield (
                        row,
                        (f"{field}: is {value!s:.60}, unlike {others} of its session {session:.60}; measure it again"),
                    )


def _elements(definition: Definition, row: Measurement, outputs: Iterable[str]) -> int:
    """Of the smallest of these outputs, all without names; 0 where the row's axes do not tell."""
    try:
        sizes = definition.sizes(row.workload["axes"])
    except DerbyError:
        return 0
    return min(
        math.prod(sizes[axis] for axis in definition.outputs[name].shape or ())
        for name in outputs or definition.outputs
    )


def _sorted(value: object) -> object:
    """Of a mapping what can be counted."""
    return tuple(sorted(value.items(), key=str)) if isinstance(value, dict) else value
