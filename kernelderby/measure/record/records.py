"""The request to a process that runs one solution, and its records, in the terms of the nsys export. Plain data;
writer.py writes it into SQLite.

All times are ns on one clock (CUPTI's, which counts from the epoch); the writer makes them relative to
ProcessRecording.start_ns. Identifiers of kinds are CUPTI's own numbers (CUpti_ActivityMemcpyKind, ...MemoryKind,
...SynchronizationType, ...LaunchType); the writer translates them if nsys uses others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from kernelderby.measure.wire.replies import GpuSeen
from kernelderby.store.fields import Count


class ProfileRequest(Struct, frozen=True):
    """One solution on one workload. case: Case.to_json. reply: the path of the answer (ProfileDone); None for one call
    under compute-sanitizer, without an answer. output: the SQLite file for CUPTI's records; None if a profiler around
    the process records between cudaProfilerStart and Stop: all calls with the work between them (nsys), or call_by_call
    (ncu, which runs every kernel there some ten times)."""

    root: str
    definition: str
    solution: str
    case: dict[str, Any]
    device: str = "cuda"
    iterations: Count = 0
    reply: str | None = None
    output: str | None = None
    call_by_call: bool = False


@dataclass(frozen=True, slots=True)
class WorkRecord:
    """The fields of every record of GPU work."""

    start: int
    end: int
    device: int
    context: int
    stream: int
    correlation: int


@dataclass(frozen=True, slots=True)
class KernelRecord(WorkRecord):
    """name: as in the module, mangled or not. local_memory: bytes per thread and in total. shared_memory: static,
    dynamic and executed bytes. graph_node: 0 outside a CUDA graph."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int = 0
    shared_memory: tuple[int, int, int] = (0, 0, 0)
    local_memory: tuple[int, int] = (0, 0)
    grid_id: int = 0
    graph_node: int = 0
    launch_type: int = 0


@dataclass(frozen=True, slots=True)
class CopyRecord(WorkRecord):
    """One copy. peers: for a copy between GPUs the source's device and context, and the destination's."""

    bytes: int
    copy_kind: int
    source_kind: int = 0
    destination_kind: int = 0
    graph_node: int = 0
    count: int = 1
    peers: tuple[int, int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class FillRecord(WorkRecord):
    """One memset."""

    bytes: int
    value: int = 0
    memory_kind: int = 0
    graph_node: int = 0


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call of the CUDA runtime (driver: False) or driver API. name: with its version, "cudaLaunchKernel_v7000"."""

    name: str
    start: int
    end: int
    thread: int
    correlation: int
    driver: bool = False
    returned: int = 0


@dataclass(frozen=True, slots=True)
class WaitRecord:
    """The host waiting for the GPU, or one stream for another. stream, event: None if it waits for all."""

    start: int
    end: int
    context: int
    correlation: int
    kind: int
    stream: int | None = None
    event: int | None = None


@dataclass(frozen=True, slots=True)
class RangeRecord:
    """An NVTX range, or a mark (end is None). end_thread: the thread on which it ended, if not the one on which it
    began."""

    name: str
    start: int
    end: int | None
    thread: int
    end_thread: int | None = None
    domain: str = ""


@dataclass(slots=True)
class ProcessRecording:
    """Everything recorded in one process between start_ns and end_ns.

    facts: solution, workload and so on. warnings: for readers; they are stored in the file.
    """

    process: int
    process_name: str
    start_ns: int
    end_ns: int
    gpu: GpuSeen
    kernels: list[KernelRecord] = field(default_factory=list)
    copies: list[CopyRecord] = field(default_factory=list)
    fills: list[FillRecord] = field(default_factory=list)
    calls: list[CallRecord] = field(default_factory=list)
    waits: list[WaitRecord] = field(default_factory=list)
    ranges: list[RangeRecord] = field(default_factory=list)
    threads: dict[int, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
