"""Traces of AMD's profilers with one entry per dispatch: rocprofv3's kernel_trace and memory_copy_trace (one CSV file,
or both in a row), its JSON (`--output-format json`), and the results.csv of the old rocprof.

A GPU is identified by the number of its agent, in JSON by its number among the GPUs, as HIP counts them. With hardware
counters a dispatch has a line for each counter, but counts once. Calls and markers are not read. Barrier packets are
left out and counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kernelderby.errors import DerbyError
from kernelderby.profile.sources.cells import csv_cells
from kernelderby.profile.sources.in_memory import NO_TIME, InMemoryProfile
from kernelderby.profile.sources.operations import copy_name, operation
from kernelderby.profile.sources.sqlite.schema import as_text
from kernelderby.profile.spans import Span, SpanKind
from kernelderby.store.counts import counted
from kernelderby.store.files import decoded, unpacked

HEADER = re.compile(
    r'^"?(?:Guid"?,"?)?(?:Kind|Index|Correlation_Id|Dispatch_Id)"?,.*"?(?:End_Timestamp|EndNs)\b',
    re.MULTILINE | re.IGNORECASE,
)
TOOL = "rocprofiler-sdk-tool"  # the key of the JSON that contains everything
AXES = tuple(f"{kind}_{axis}" for kind in ("grid_size", "workgroup_size") for axis in "xyz")
_TITLES = {  # field -> its titles, the newest tool's first; the case differs too
    "name": ("kernel_name", "kernelname", "direction"),
    "start": ("start_timestamp", "beginns"),
    "end": ("end_timestamp", "endns"),
    "gpu": ("agent_id", "gpu-id"),
    "queue": ("stream_id", "queue_id", "queue-id"),
    "process": ("process_id", "pid"),
    "dispatch": ("dispatch_id", "index"),
    "registers": ("vgpr_count", "arch_vgpr", "vgpr"),
    "shared": ("lds_block_size", "group_segment_size", "lds"),
    "to": ("destination_agent_id",),
    "from": ("source_agent_id",),
    **{axis: (axis,) for axis in AXES},
}
BARRIER = "<barrier packet>"  # a queue waits for others; nothing runs
UNNAMED = "kernel without a name"
_CLONE = re.compile(r"(?: \[clone \.kd\]|\.kd)$")
_NUMBER = re.compile(r"[0-9]{1,20}")
_GPU = 2  # rocprofiler_agent_type_t


class RocprofProfile(InMemoryProfile):
    def __init__(self, path: Path, form: str) -> None:
        super().__init__(path, form)
        self._dispatches: set[tuple[int, int, int, int]] = set()
        self._barriers = 0

    def take(self, row: Mapping[str, object]) -> None:
        """row: field (_TITLES, bytes) -> its cell."""
        number = partial(_number, row)
        if "name" not in row:  # a line of another table
            return
        title, start, end = as_text(row["name"]).strip() or UNNAMED, number("start"), number("end")
        if title == BARRIER:
            self._barriers += 1
            return
        if start is None or end is None or not 0 < start <= end < NO_TIME:
            self.untimed += 1
            return
        dispatch = number("dispatch")
        gpu = next((found for place in ("gpu", "to", "from") if (found := number(place)) is not None), 0)
        process, queue = number("process") or 0, number("queue") or 0
        if dispatch is not None:
            known = len(self._dispatches)
            self._dispatches.add((process, gpu, dispatch, start))
            if len(self._dispatches) == known:
                return
        kind, name = operation(_CLONE.sub("", title))
        self.held.append(Span(kind, name, start, end, process, gpu, queue, bytes=number("bytes") or 0))
        sizes = [size for axis in AXES if (size := number(axis)) is not None]
        if kind is SpanKind.KERNEL and len(sizes) == len(AXES) and all(sizes[3:]):
            groups = tuple(-(-items // size) for items, size in zip(sizes[:3], sizes[3:], strict=True))  # of work items
            self.count_shape(end - start, name, groups, tuple(sizes[3:]), number("registers"), number("shared"))

    def settle(self) -> None:
        self._dispatches.clear()
        super().settle()
        if self._barriers:
            self.warnings.append(f"left out: {counted(self._barriers, 'barrier packet')}, where a queue only waited")


def _number(row: Mapping[str, object], title: str) -> int | None:
    """The number in "Agent 4" or 4; None without one."""
    match = _NUMBER.fullmatch(as_text(row.get(title)).strip().removeprefix("Agent "))
    found = int(match[0]) if match else NO_TIME
    return found if found < NO_TIME else None


def open_rocprof(path: Path, text: str) -> RocprofProfile:
    """DerbyError for a line with missing cells, or a file without GPU work."""
    profile = RocprofProfile(path, "rocprof trace, CSV")
    places: dict[str, int] = {}
    width = 0
    for number, line in enumerate(text.splitlines(), 1):
        cells = csv_cells(line, ",")
        if len(cells) > 1 and {"end_timestamp", "endns"} & {cell.strip().lower() for cell in cells}:
            places, width = _places(cells), len(cells)
        elif places and cells:
            if len(cells) != width:
                raise DerbyError(
                    f"{path}:{number}: {counted(len(cells), 'cell')} where the header has {width}; copy the file again"
                )
            profile.take({title: cells[place] for title, place in places.items()})
    profile.settle()
    profile.expect_work("give the kernel_trace of `rocprofv3 --kernel-trace`")
    return profile


def _places(header: list[str]) -> dict[str, int]:
    titles = {cell.strip().lower(): place for place, cell in reversed(list(enumerate(header)))}
    found = {meaning: [titles[each] for each in spellings if each in titles] for meaning, spellings in _TITLES.items()}
    return {meaning: places[0] for meaning, places in found.items() if places}


def open_rocprof_json(path: Path, packed: bool) -> RocprofProfile:
    """The file was read once, as JSON. DerbyError if it has no GPU work."""
    profile = RocprofProfile(path, "rocprofv3 JSON")
    gpus: dict[str, None] = {}
    for process in _dicts(_at(json.loads(decoded(unpacked(path, packed))), TOOL)):
        _take_process(profile, process, gpus)
    profile.gpu = ", ".join(gpus) or None
    profile.settle()
    profile.expect_work("record it with `rocprofv3 --kernel-trace`")
    return profile


def _take_process(profile: RocprofProfile, process: dict[str, Any], gpus: dict[str, None]) -> None:
    """gpus: gets the names of the GPUs that worked."""
    agents = {
        str(_at(agent, "id", "handle")): agent for agent in _dicts(_at(process, "agents")) if agent.get("type") == _GPU
    }
    kernels = {str(kernel.get("kernel_id")): kernel for kernel in _dicts(_at(process, "kernel_symbols"))}
    used = set()

    def take(record: dict[str, Any], agent: str, name: str, **more: object) -> None:
        used.add(agent)
        number = agents.get(agent, {}).get("logical_node_type_id")  # an unlisted agent keeps its handle
        row = {"start": record.get("start_timestamp"), "end": record.get("end_timestamp")}
        row |= {"name": name, "gpu": agent if number is None else number, "queue": _at(record, "stream_id", "handle")}
        profile.take({**row, "process": _at(process, "metadata", "pid"), **more})

    for record in _dicts(_at(process, "buffer_records", "kernel_dispatch")):
        about = partial(_at, record, "dispatch_info")
        kernel = kernels.get(str(about("kernel_id")), {})
        take(
            record,
            str(about("agent_id", "handle")),
            kernel.get("formatted_kernel_name") or kernel.get("kernel_name") or UNNAMED,
            dispatch=about("dispatch_id"),
            registers=kernel.get("arch_vgpr_count"),
            shared=about("group_segment_size"),
            **{axis: about(axis[:-2], axis[-1]) for axis in AXES},
        )
    operations = _at(process, "strings", "buffer_records")
    for record in _dicts(_at(process, "buffer_records", "memory_copy")):
        ends = [str(_at(record, f"{end}_agent_id", "handle")) for end in ("dst", "src")]
        name = _at(operations, record.get("kind"), "operations", record.get("operation"))
        take(record, next((end for end in ends if end in agents), ""), name or copy_name(None))
    for handle, agent in agents.items():
        named = agent.get("product_name") or agent.get("name")
        if handle in used and isinstance(named, str) and named:
            gpus[named] = None


def _at(value: Any, *keys: Any) -> Any:
    """The value under successive keys and places; None if the file has another structure."""
    for key in keys:
        if isinstance(value, dict) and isinstance(key, str):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and 0 <= key < len(value):
            value = value[key]
        else:
            return None
    return value


def _dicts(value: object) -> Iterator[dict[str, Any]]:
    return (each for each in value if isinstance(each, dict)) if isinstance(value, list) else iter(())
