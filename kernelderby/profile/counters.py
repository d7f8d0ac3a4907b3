"""What ncu counted of each kernel: the CSV of `ncu --csv --page raw`, by `derby profile run --with ncu` or anybody."""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.files import read_bytes
from kernelderby.profile.names import short_name

_INVOCATION = re.compile(r"\binvocation \d+")
# ncu's units as it writes them, to nanoseconds and bytes; percentages and counts stay.
_UNITS = {
    **{"ns": 1, "nsecond": 1, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9},
    **{"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "byte/block": 1, "Kbyte/block": 1e3},
}
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
_GPU = "device__attribute_display_name"


@dataclass(frozen=True, slots=True)
class KernelCounters:
    """One kernel with one grid: medians over its launches. percent: of the GPU's peak while the kernel ran; None where
    the file lacks the metric.

    tensor: cycles of the tensor cores; special: instructions of the special function unit; issue: slots that issued;
    shared: reads of shared memory and L1; warps: resident, of the most that a multiprocessor holds.
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


FULL = 60.0  # percent of its peak from which on a unit counts as what bounds a kernel, as in ncu's own rules
UNITS = {
    "tensor cores": "tensor_percent",
    "special functions": "special_percent",
    "issue slots": "issue_percent",
    "shared memory": "shared_percent",
    "L2": "l2_percent",
    "DRAM": "dram_percent",
}


def bounding_unit(rows: Sequence[KernelCounters]) -> tuple[str, float] | None:
    """The unit that is busiest over the kernels' time, and its percent of peak; None without counts."""
    found = {}
    for unit, field in UNITS.items():
        known = [(row.duration_ns or 1.0, value) for row in rows if (value := getattr(row, field)) is not None]
        if known:
            found[unit] = sum(each * value for each, value in known) / sum(each for each, _ in known)
    return max(found.items(), key=lambda item: item[1]) if found else None


@dataclass(frozen=True, slots=True)
class Counters:
    """path: of the CSV. gpu: its name, None where the file has none. invocations: calls that the ranges mark, 0: none
    do. rows: kernels inside of them (of a file without any: all), in the order in which they ran first. outside:
    launches that no invocation holds."""

    path: Path
    gpu: str | None
    invocations: int
    rows: tuple[KernelCounters, ...]
    outside: int


def read_counters(path: Path) -> Counters:
    """DerbyError for a file that is no such CSV, or that has no kernel."""
    header, units, lines = _table(path)
    places = {name: place for place, name in enumerate(header)}
    needed = {"Kernel Name", "Block Size", "Grid Size"} - set(places)
    if needed:
        raise DerbyError(f"{path}: has no column {', '.join(sorted(needed))}; write it with ncu --csv --page raw")
    ranges = [place for name, place in places.items() if "Push/Pop_Range" in name]
    marks = [_INVOCATION.search(" ".join(line[place] for place in ranges)) for line in lines]
    inside = [line for line, mark in zip(lines, marks, strict=True) if mark or not any(marks)]
    names = {line[places[_GPU]] for line in inside if _GPU in places}
    return Counters(
        path,
        ", ".join(sorted(names)) or None,
        len({mark[0] for mark in marks if mark}),
        tuple(_kernels(path, places, units, inside)),
        len(lines) - len(inside),
    )


def _table(path: Path) -> tuple[list[str], list[str], list[list[str]]]:
    """Header, units and lines; whatever ncu and the program printed above the header is passed over."""
    text = read_bytes(path).decode("utf-8-sig", errors="replace").splitlines()
    start = next((number for number, line in enumerate(text) if line.startswith('"ID",')), None)
    if start is None:
        raise DerbyError(f'{path}: no line begins with "ID",; write it with ncu --csv --page raw (--import REPORT)')
    try:
        header, *rest = csv.reader(text[start:], strict=True)
    except csv.Error as error:
        raise DerbyError(f"{path}: is no whole CSV ({error}); count again") from None
    whole = [line for line in rest if len(line) == len(header)]
    if len(whole) < 2:
        raise DerbyError(f"{path}: has no kernel; was anything launched between cudaProfilerStart and its Stop?")
    return header, whole[0], whole[1:]


def _kernels(
    path: Path, places: dict[str, int], units: Sequence[str], lines: Sequence[Sequence[str]]
) -> Iterator[KernelCounters]:
    groups: dict[tuple[str, str, str], list[Sequence[str]]] = {}
    for line in lines:
        key = (line[places["Kernel Name"]], line[places["Grid Size"]], line[places["Block Size"]])
        groups.setdefault(key, []).append(line)
    for (kernel, grid, block), group in groups.items():
        values = {field: _median(path, places, units, group, metric) for field, metric in METRICS.items()}
        yield KernelCounters(kernel, short_name(kernel), grid, block, len(group), **values)


def _median(
    path: Path, places: dict[str, int], units: Sequence[str], group: Sequence[Sequence[str]], metric: str
) -> float | None:
    place = places.get(metric)
    if place is None:
        return None
    texts = [line[place].replace(",", "") for line in group if line[place] not in ("", "n/a")]
    try:
        values = [float(text) * _UNITS.get(units[place], 1) for text in texts]
    except ValueError:
        raise DerbyError(f"{path}: {metric}: {texts[0]!r:.40} is no number; count again") from None
    return statistics.median(values) if values else None


assert set(METRICS) <= {field.name for field in fields(KernelCounters)}
