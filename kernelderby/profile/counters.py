"""ncu's counters of each kernel: speed of light, units, stalls; from `derby profile run --with ncu` or any other
program."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.profile.names import short_name
from kernelderby.profile.sources.ncu import CountedLaunch, read_launches
from kernelderby.store.counts import counted

_INVOCATION = re.compile(r"\binvocation \d+")
_OF_PEAK = ".avg.pct_of_peak_sustained_elapsed"
METRICS = {
    "duration_ns": "gpu__time_duration.sum",
    "tensor_percent": f"sm__pipe_tensor_cycles_active{_OF_PEAK}",
    "special_percent": f"sm__inst_executed_pipe_xu{_OF_PEAK}",
    "issue_percent": f"sm__issue_active{_OF_PEAK}",
    "shared_percent": f"l1tex__data_bank_reads{_OF_PEAK}",
    "l2_percent": f"lts__throughput{_OF_PEAK}",
    "dram_percent": f"gpu__dram_throughput{_OF_PEAK}",
    "read_bytes": "dram__bytes_read.sum",
    "written_bytes": "dram__bytes_write.sum",
    "warps_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
    "shared_bytes": "launch__shared_mem_per_block",
}
# Other names of the same metric: in other sets of metrics, then on the details page of `ncu --csv`.
_ALSO = {
    "duration_ns": ("gpu__time_duration.avg", "Duration"),
    "issue_percent": ("sm__inst_issued.avg.pct_of_peak_sustained_active", "Issue Slots Busy"),
    "l2_percent": (
        "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
        "L2 Cache Throughput",
        "L2 Cache Throughput [%]",
    ),
    "dram_percent": (f"dram__throughput{_OF_PEAK}", "DRAM Throughput"),
    "warps_percent": ("Achieved Occupancy",),
    "registers": ("Registers Per Thread",),
    "tensor_percent": (
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
    ),
    "compute_percent": (f"sm__throughput{_OF_PEAK}", "Compute (SM) Throughput", "SM [%]", "SOL SM"),
    "memory_percent": (f"gpu__compute_memory_throughput{_OF_PEAK}", "Memory Throughput", "Memory [%]", "SOL Memory"),
    "l1_percent": ("l1tex__throughput.avg.pct_of_peak_sustained_active", "L1/TEX Cache Throughput"),
}
_NAMES = {
    name: (*((METRICS[name],) if name in METRICS else ()), *_ALSO.get(name, ()))
    for name in dict.fromkeys((*METRICS, *_ALSO))
}
_SHARED = tuple(f"{kind} Shared Memory Per Block" for kind in ("Static", "Dynamic", "Driver"))
_STALL = re.compile(
    r"^smsp__average_warps?_(?:latency_)?issue_stalled_(?P<reason>\w+?)(?:_per_issue_active)?\.(?:ratio|pct)$"
    r"|^(?:Warp )?Stall (?P<title>[A-Z][\w /-]*)$"
)
_FLOPS = {  # floating-point instructions of a thread -> floating-point operations of one instruction
    f"smsp__sass_thread_inst_executed_op_{type_}{operation}_pred_on.sum": count
    for type_ in "dfh"
    for operation, count in (("add", 1), ("mul", 1), ("fma", 2))
}
_BUSY = 60.0  # percent, as in ncu's own rules: a kernel below it in both computing and memory waits


@dataclass(frozen=True, slots=True)
class KernelCounters:
    """One kernel with one grid: medians over its launches. percent: percent of the GPU's peak while the kernel ran;
    None if the file lacks the metric.

    tensor: cycles of the tensor cores; special: instructions of the special function unit; issue: slots that issued;
    shared: reads of shared memory and L1; warps: resident warps, of a multiprocessor's maximum. compute, memory: the
    speed of light of ncu's first section; l1: of L1 and texture. stalls: cycles that a warp waits per issued
    instruction, by reason, largest first. flops: floating-point operations by ncu's counts, without tensor cores.
    """

    kernel: str
    short_name: str
    grid: str
    block: str
    launches: int
    duration_ns: float | None
    tensor_percent: float | None
    special_percent: float | None
    issue_percent: float | None
    shared_percent: float | None
    l2_percent: float | None
    dram_percent: float | None
    read_bytes: float | None
    written_bytes: float | None
    warps_percent: float | None
    registers: float | None
    shared_bytes: float | None
    compute_percent: float | None = None
    memory_percent: float | None = None
    l1_percent: float | None = None
    stalls: tuple[tuple[str, float], ...] = ()
    flops: float | None = None

    @property
    def bound(self) -> str:
        """compute, memory or latency (neither is busy), by the speed of light; "" if it was not counted."""
        if self.compute_percent is None or self.memory_percent is None:
            return ""
        if max(self.compute_percent, self.memory_percent) < _BUSY:
            return "latency"
        return "compute" if self.compute_percent >= self.memory_percent else "memory"

    @property
    def flops_a_byte(self) -> float | None:
        """Flops per byte of DRAM traffic: the place on the axis of a roofline."""
        moved = (self.read_bytes or 0) + (self.written_bytes or 0)
        return self.flops / moved if self.flops and moved else None


FULL = 60.0  # percent of its peak above which a unit counts as the bound of a kernel, as in ncu's own rules
UNITS = {
    "tensor cores": "tensor_percent", "special functions": "special_percent", "issue slots": "issue_percent",
    "shared memory": "shared_percent", "L2": "l2_percent", "DRAM": "dram_percent",
}  # fmt: skip


def bounding_unit(rows: Sequence[KernelCounters]) -> tuple[str, float] | None:
    """The busiest unit, weighted by the kernels' time, and its percent of peak; None without counts."""
    found = {}
    for unit, field in UNITS.items():
        known = [(row.duration_ns or 1.0, value) for row in rows if (value := getattr(row, field)) is not None]
        if known:
            found[unit] = sum(each * value for each, value in known) / sum(each for each, _ in known)
    return max(found.items(), key=lambda item: item[1]) if found else None


@dataclass(frozen=True, slots=True)
class Counters:
    """path: the CSV. gpu: its name, None if the file lacks it. invocations: number of calls that ranges mark; 0 without
    such ranges. rows: kernels inside invocations (all kernels without invocations), in order of their first launch.
    outside: number of launches outside invocations. unread: metrics of the file that no table shows."""

    path: Path
    gpu: str | None
    invocations: int
    rows: tuple[KernelCounters, ...]
    outside: int
    unread: tuple[str, ...] = ()


def read_counters(path: Path) -> Counters:
    """DerbyError if the file is not such a CSV, has no kernel, or has none of the known metrics."""
    launches = read_launches(path)
    marks = [_INVOCATION.search(launch.ranges) for launch in launches]
    inside = [launch for launch, mark in zip(launches, marks, strict=True) if mark or not any(marks)]
    rows = tuple(_kernels(inside))
    there = sorted({name for launch in launches for name in launch.metrics})
    if not any(_says_something(row) for row in rows):
        told = f"none of its {counted(len(there), 'metric')} is known (it has {', '.join(there[:3])})"
        raise DerbyError(
            f"{path}: {told if there else 'no metric in it has a value'}; count with `ncu --set full`, or with `derby "
            "profile run --with ncu`"
        )
    return Counters(
        path,
        ", ".join(sorted({launch.gpu for launch in inside if launch.gpu})) or None,
        len({mark[0] for mark in marks if mark}),
        rows,
        sum(launch.launches for launch in launches) - sum(launch.launches for launch in inside),
        tuple(name for name in there if not _is_read(name)),
    )


def _says_something(row: KernelCounters) -> bool:
    return bool(row.stalls) or any(getattr(row, name) is not None for name in (*_NAMES, "flops"))


def _is_read(name: str) -> bool:
    named = {*_SHARED, *_FLOPS, *(each for names in _NAMES.values() for each in names)}
    return name in named or bool(_STALL.match(name))


def _kernels(launches: Sequence[CountedLaunch]) -> Iterator[KernelCounters]:
    groups: dict[tuple[str, str, str], list[CountedLaunch]] = {}
    for launch in launches:
        groups.setdefault((launch.kernel, launch.grid, launch.block), []).append(launch)
    for (kernel, grid, block), group in groups.items():
        values = {name: _median(group, *names) for name, names in _NAMES.items()}
        parts = [each for each in (_median(group, name) for name in _SHARED) if each is not None]
        if values["shared_bytes"] is None and parts:
            values["shared_bytes"] = sum(parts)
        counted = [(count, value) for name, count in _FLOPS.items() if (value := _median(group, name)) is not None]
        flops = sum(count * value for count, value in counted) if counted else None
        number = sum(launch.launches for launch in group)
        yield KernelCounters(
            kernel, short_name(kernel), grid, block, number, **values, stalls=_stalls(group), flops=flops
        )


def _stalls(group: Sequence[CountedLaunch]) -> tuple[tuple[str, float], ...]:
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for launch in group for name in launch.metrics):
        if (match := _STALL.match(name)) and (value := _median(group, name)):
            found[(match["reason"] or match["title"]).lower().replace("_", " ")] = value
    return tuple(sorted(found.items(), key=lambda each: (-each[1], each[0])))


def _median(group: Sequence[CountedLaunch], *names: str) -> float | None:
    """The median over the launches of the first of these metrics that they have."""
    for name in names:
        values = [launch.metrics[name] for launch in group if name in launch.metrics]
        if values:
            return statistics.median(values)
    return None


assert set(METRICS) <= {field.name for field in fields(KernelCounters)}
