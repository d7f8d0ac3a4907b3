"""ncu's CSV output, in its three forms, as the metrics of each launch in nanoseconds, bytes and percent.

`ncu --csv`                         a line a metric: ..., "Section Name", "Metric Name", "Metric Unit", "Metric Value"
`ncu --csv --print-summary ...`     the same with "Invocations", "Minimum", "Maximum", "Average"
`ncu --csv --page raw`              a line a launch, a column a metric, units in the second line
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kernelderby.errors import DerbyError
from kernelderby.store.files import decoded, read_bytes

# ncu's units as it writes them. Percentages, counts and ratios are not converted.
_UNITS = {
    **{"ns": 1, "nsecond": 1, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9},
    **{"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "Tbyte": 1e12},
    **{"hz": 1, "Hz": 1, "Khz": 1e3, "Mhz": 1e6, "Ghz": 1e9, "MHz": 1e6, "GHz": 1e9},
    **{"cycle/nsecond": 1e9, "cycle/ns": 1e9, "cycle/usecond": 1e6, "cycle/us": 1e6, "cycle/second": 1, "cycle/s": 1},
}
# Thousands between commas. Anything else with a comma has decimals after it, and then a dot may stand for thousands.
_GROUPED = re.compile(r"[-+]?[1-9][0-9]{0,2}(?:,[0-9]{2,3})*,[0-9]{3}(?:\.[0-9]*)?")
_COUNT = re.compile(r"[0-9]{1,15}")
_PER = re.compile(r"/(?:block|second|s)$")
# ncu quotes it. Other programs that rewrite the table drop the quotes, or put a column of numbers first.
_HEADER = re.compile(r'^(?:"?\w*"?,)?"?(?:ID|Process ID|Kernel Name|Function Name)"?,')
_KERNEL = ("Kernel Name", "Demangled Name", "Function Name")  # the last two in the GUI's exports
_LONG = {"Metric Name", "Metric Unit"}
GPU_NAME = "device__attribute_display_name"
MEND = "write it with `ncu --csv` or `ncu --csv --page raw` (--import REPORT)"


@dataclass(slots=True)
class CountedLaunch:
    """metrics: name -> value. If several sections have a name with different units ("Memory Throughput"), the share has
    this name and the rate "NAME, UNIT". ranges: the NVTX ranges around the launch, as ncu prints them."""

    kernel: str
    grid: str
    block: str
    ranges: str = ""
    gpu: str | None = None
    launches: int = 1
    metrics: dict[str, float] = field(default_factory=dict)


def read_launches(path: Path) -> list[CountedLaunch]:
    """DerbyError: not such a CSV, no kernel, or a value that is not a number."""
    text = decoded(read_bytes(path), "replace").splitlines()
    headers = (
        number for number, line in enumerate(text) if _HEADER.match(line) and any(map(line.__contains__, _KERNEL))
    )
    start = next(headers, None)
    if start is None:
        raise DerbyError(f'{path}: no line begins with "ID",; {MEND}')
    csv.field_size_limit(max(csv.field_size_limit(), max(map(len, text[start:]))))
    try:
        header, *rest = csv.reader(text[start:], strict=True)
    except csv.Error as error:
        raise DerbyError(f"{path}: is no whole CSV ({error}); count again") from None
    lines = [line for line in rest if len(line) == len(header)]
    places = {name: place for place, name in enumerate(header)}
    places["Kernel Name"] = next(places[name] for name in _KERNEL if name in places)
    found = list(_long(path, places, lines) if set(places) >= _LONG else _wide(path, places, lines))
    if not found:
        raise DerbyError(f"{path}: has no kernel; was anything launched between cudaProfilerStart and its Stop?")
    return found


def _long(path: Path, places: dict[str, int], lines: list[list[str]]) -> Iterator[CountedLaunch]:
    """Rows of one ID are one launch. Without IDs, a repeated metric of a kernel begins a new launch."""
    value = next((places[name] for name in ("Metric Value", "Average") if name in places), None)
    if value is None:
        raise DerbyError(f"{path}: has no column Metric Value; {MEND}")
    keys = [places[name] for name in ("ID", "Process ID", "Kernel Name", "Grid Size", "Block Size") if name in places]
    launches: dict[tuple[str, ...], CountedLaunch] = {}
    repeated: list[CountedLaunch] = []
    seen: dict[tuple[str, ...], set[tuple[str, str, str]]] = {}
    for line in lines:
        cells = {name: line[place] for name, place in places.items()}
        key = tuple(line[place] for place in keys)
        mark = cells.get("Section Name", ""), cells["Metric Name"], cells["Metric Unit"]
        if "ID" not in places and mark in seen.get(key, ()):
            repeated.append(launches.pop(key))
            seen.pop(key)
        launch = launches.get(key)
        if launch is None:
            launch = launches[key] = _launch(cells, places)
            if _COUNT.fullmatch(invoked := cells.get("Invocations", "").replace(",", "")):
                launch.launches = int(invoked)
        if not cells["Metric Name"]:  # a rule's advice
            continue
        seen.setdefault(key, set()).add(mark)
        _take(path, launch, cells["Metric Name"], cells["Metric Unit"], line[value])
    yield from (*repeated, *launches.values())


def _wide(path: Path, places: dict[str, int], lines: list[list[str]]) -> Iterator[CountedLaunch]:
    if not lines:
        return
    units, *rest = lines
    if units[places["Kernel Name"]]:  # a rewritten table without the line of units
        units, rest = [""] * len(units), lines
    names = [name for name in places if "__" in name and name != GPU_NAME]
    for line in rest:
        launch = _launch({name: line[place] for name, place in places.items()}, places)
        for name in names:
            _take(path, launch, name, units[places[name]], line[places[name]])
        yield launch


def _launch(cells: dict[str, str], places: dict[str, int]) -> CountedLaunch:
    ranges = " ".join(cells[name] for name in places if "Push/Pop_Range" in name)
    gpu = cells.get(GPU_NAME) or None
    return CountedLaunch(cells["Kernel Name"], cells.get("Grid Size", ""), cells.get("Block Size", ""), ranges, gpu)


def _take(path: Path, launch: CountedLaunch, name: str, unit: str, text: str) -> None:
    cleaned = text.replace(",", "").strip()
    if cleaned.lower() in ("", "n/a"):
        return
    try:
        number = float(cleaned) * _UNITS.get(_PER.sub("", unit), _UNITS.get(unit, 1))
    except ValueError:
        if unit:  # names and other texts have no number
            raise DerbyError(f"{path}: {name}: {text!r:.40} is no number; count again") from None
        return
    if not math.isfinite(number):
        return
    if "," in text and not _GROUPED.fullmatch(text.strip()):
        raise DerbyError(f"{path}: {name}: {text!r:.40} has a comma before its decimals; count again with LC_ALL=C")
    key = name if unit in ("", "%") or name not in launch.metrics else f"{name}, {unit}"
    if unit == "%" and name in launch.metrics:
        launch.metrics[f"{name}, rate"] = launch.metrics[name]
    launch.metrics[key] = number
