"""rocprofv3's own JSON (`--output-format json`): each process's dispatches and copies, by number of kernel and agent.

A GPU is told by its number among the GPUs, as HIP counts them. Calls and markers are not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelderby.errors import DerbyError
from kernelderby.profile.sources.operations import copy_name
from kernelderby.profile.sources.rocprof import Dispatch, RocprofProfile
from kernelderby.store.files import unpacked

TOOL = "rocprofiler-sdk-tool"  # the key that has all in
_GPU = 2  # rocprofiler_agent_type_t
_SIZES = tuple((f"{kind}_{axis}", kind, axis) for kind in ("grid_size", "workgroup_size") for axis in "xyz")
_TITLES = ("name", "start", "end", "gpu", "queue", "process", "dispatch", "registers", "shared")
_PLACES = {title: place for place, title in enumerate((*_TITLES, *(title for title, _, _ in _SIZES)))}
_COPY_PLACES = {title: place for title, place in _PLACES.items() if place <= _PLACES["process"]}


def open_rocprof_json(path: Path, packed: bool) -> RocprofProfile:
    """The file has been read once, as JSON. DerbyError for one without GPU work."""
    processes = _dicts(_at(json.loads(unpacked(path, packed).decode("utf-8-sig")), TOOL))
    profile = RocprofProfile(path, "rocprofv3 JSON")
    gpus: dict[str, None] = {}
    for process in processes:
        _take(profile, process, gpus)
    profile.gpu = ", ".join(gpus) or None
    profile.finish()
    if not profile.has_work:
        told = f" ({profile.warnings[0]})" if profile.warnings else ""
        raise DerbyError(f"{path}: no GPU work in it{told}; record it with `rocprofv3 --kernel-trace`")
    return profile


def _take(profile: RocprofProfile, process: dict[str, Any], gpus: dict[str, None]) -> None:
    agents = {
        str(_at(agent, "id", "handle")): agent for agent in _dicts(_at(process, "agents")) if agent.get("type") == _GPU
    }
    kernels = {str(kernel.get("kernel_id")): kernel for kernel in _dicts(_at(process, "kernel_symbols"))}
    number = _at(process, "metadata", "pid")
    used = set()
    for record in _dicts(_at(process, "buffer_records", "kernel_dispatch")):
        agent = str(_at(record, "dispatch_info", "agent_id", "handle"))
        used.add(agent)
        kernel = kernels.get(str(_at(record, "dispatch_info", "kernel_id")), {})
        values = (
            kernel.get("formatted_kernel_name") or kernel.get("kernel_name") or "kernel without a name",
            record.get("start_timestamp"),
            record.get("end_timestamp"),
            _number_of(agent, agents),
            _at(record, "stream_id", "handle"),
            number,
            _at(record, "dispatch_info", "dispatch_id"),
            kernel.get("arch_vgpr_count"),
            _at(record, "dispatch_info", "group_segment_size"),
            *(_at(record, "dispatch_info", size, axis) for _, size, axis in _SIZES),
        )
        profile.take(Dispatch(_PLACES, [_cell(value) for value in values]))
    operations = _at(process, "strings", "buffer_records")
    for record in _dicts(_at(process, "buffer_records", "memory_copy")):
        ends = [str(_at(record, f"{end}_agent_id", "handle")) for end in ("dst", "src")]
        agent = next((end for end in ends if end in agents), "")
        used.add(agent)
        name = _at(operations, record.get("kind"), "operations", record.get("operation"))
        values = (
            name or copy_name(None),
            record.get("start_timestamp"),
            record.get("end_timestamp"),
            _number_of(agent, agents),
            _at(record, "stream_id", "handle"),
            number,
        )
        profile.take(Dispatch(_COPY_PLACES, [_cell(value) for value in values]))
    for handle, agent_of in agents.items():
        named = agent_of.get("product_name") or agent_of.get("name")
        if handle in used and isinstance(named, str) and named:
            gpus[named] = None


def _number_of(agent: str, agents: dict[str, dict[str, Any]]) -> Any:
    """Of the GPU; the handle of an agent that the file does not list."""
    number = agents.get(agent, {}).get("logical_node_type_id")
    return agent if number is None else number


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def _at(value: Any, *keys: Any) -> Any:
    """What is under keys and places one after another; None where the file has something else."""
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
