"""Findings in a kernel summary, each with its figures. report.profile.findings has the words and the advice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kernelderby.hardware import Gpu, find_gpu
from kernelderby.profile.kernels.attribution import Role
from kernelderby.profile.kernels.summary import KernelRow, KernelTable
from kernelderby.profile.spans import ApiSum, SpanKind, is_waiting
from kernelderby.profile.timeline import Timeline

# From a tenth of the time a finding is high (a mend is noticeable end to end), from a fiftieth medium.
HIGH, MEDIUM = 0.10, 0.02
# Kernels below this share of the time get no line.
WORTH = 0.001
# Kernels for an older architecture get a line from 1 %, since every process has a stray one.
OLDER = 0.01
# Above half, GEMMs dominate the pipeline: nothing else can gain more.
GEMM_DOMINANCE = 0.50
# Moving rows between tokens and experts costs a few % at best; above 5 % fusing it into a GEMM's prologue pays.
GATHER_SCATTER = 0.05
# A copy does no arithmetic; above 1 % its origin is worth a look.
HIDDEN_COPY = 0.01
# Copies by the copy engines, of the time of kernels, copies and memsets together.
MEMORY_COPY = 0.01
# Every program waits for the GPU; above 20 % of the API time the waits determine its course.
SYNCHRONISATION = 0.20
# Idle time between launches, as a share of the wall time. Below 2 % it is lost in the noise of clocks.
LAUNCH_GAPS = 0.02
# An order of magnitude between average and median, in a kernel with enough launches to have a median.
SKEW, SKEW_INSTANCES = 10.0, 10


class Severity(StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class FindingKind(StrEnum):
    OLDER_ARCHITECTURE = "older architecture"
    GEMM_DOMINANCE = "GEMM dominance"
    GATHER_SCATTER = "gather and scatter"
    HIDDEN_COPIES = "hidden copies"
    HOST_TO_DEVICE = "copies host to device"
    DEVICE_TO_HOST = "copies device to host"
    DEVICE_TO_DEVICE = "copies device to device"
    BETWEEN_GPUS = "copies between GPUs"
    SYNCHRONISATION = "synchronisation"
    LAUNCH_GAPS = "launch gaps"
    SKEWED = "average far above median"


_DIRECTIONS = {
    FindingKind.HOST_TO_DEVICE: r"Host-to-Device|HtoD",
    FindingKind.DEVICE_TO_HOST: r"Device-to-Host|DtoH",
    FindingKind.DEVICE_TO_DEVICE: r"Device-to-Device|DtoD",
    FindingKind.BETWEEN_GPUS: r"Peer-to-Peer|PtoP",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """share: 0 to 1, of the kernel time. Of the API time for Synchronisation, of the time without pauses for
    LaunchGaps, of the GPU time for MemoryCopies. rows: its kernels or copies, largest first."""

    kind: FindingKind
    severity: Severity
    share: float
    rows: tuple[KernelRow, ...]

    @property
    def total_ns(self) -> float:
        return sum(row.total_ns for row in self.rows)

    @property
    def launches(self) -> int:
        return sum(row.instances for row in self.rows)


@dataclass(frozen=True, slots=True)
class OlderArchitecture(Finding):
    """Kernels whose name shows an architecture of an earlier generation (major version) than the GPU's. capability: of
    the GPU, "9.0"."""

    gpu: str | None
    capability: str


@dataclass(frozen=True, slots=True)
class HiddenCopies(Finding):
    """Kernels that only copy or cast: .contiguous(), .to(dtype), torch.cat, layout changes."""

    casts_ns: float


@dataclass(frozen=True, slots=True)
class MemoryCopies(Finding):
    """bytes: 0 if unknown. bandwidth_share: of the GPU's memory bandwidth; None if unknown or between two memories."""

    bytes: float
    bandwidth_share: float | None


@dataclass(frozen=True, slots=True)
class Synchronisation(Finding):
    """waits: the host's calls that wait for the GPU."""

    waits: tuple[ApiSum, ...]


@dataclass(frozen=True, slots=True)
class LaunchGaps(Finding):
    """Idle times of a GPU that are too long for a launch and too short for another phase of the program."""

    timeline: Timeline


def findings(table: KernelTable, api: Sequence[ApiSum] = (), timelines: Sequence[Timeline] = ()) -> list[Finding]:
    """All findings, severest first. api: host time by call. timelines: only for a profile with events."""
    gpu = find_gpu(table.gpu) if table.gpu else None
    found = [
        *_older_architecture(table),
        *_roles(table),
        *_memory_copies(table, gpu),
        *_synchronisation(api),
        *_launch_gaps(timelines),
        *_skewed(table),
    ]
    order = list(Severity)
    return sorted(found, key=lambda finding: (order.index(finding.severity), -finding.share))


def _older_architecture(table: KernelTable) -> Iterator[Finding]:
    capability = table.compute_capability
    if capability is None:
        return
    major = int(capability.partition(".")[0])
    rows = tuple(row for row in table.rows if _generation(row.attribution.architecture, major) < major)
    share = _share(rows)
    if share >= OLDER:
        kind = FindingKind.OLDER_ARCHITECTURE
        yield OlderArchitecture(kind, _severity(share), share, rows, table.gpu, capability)


def _roles(table: KernelTable) -> Iterator[Finding]:
    """GEMMs (single and grouped) are most of the time; rows move between orders (permutation, index kernels, cache
    writes); kernels only copy."""
    gemms = _of(table, Role.GEMM, Role.GROUPED_GEMM)
    if (share := _share(gemms)) > GEMM_DOMINANCE:
        yield Finding(FindingKind.GEMM_DOMINANCE, Severity.MEDIUM, share, gemms)
    moves = _of(table, Role.GATHER_SCATTER)
    if (share := _share(moves)) >= GATHER_SCATTER:
        yield Finding(FindingKind.GATHER_SCATTER, _severity(share), share, moves)
    copies = _of(table, Role.COPY)
    if (share := _share(copies)) >= HIDDEN_COPY:
        casts_ns = sum(row.total_ns for row in copies if _is_cast(row.name))
        yield HiddenCopies(FindingKind.HIDDEN_COPIES, _severity(share), share, copies, casts_ns)


def _is_cast(name: str) -> bool:
    return "LoadWithCast" in name or "_copy_kernel" in name.replace("direct_copy", "")


def _memory_copies(table: KernelTable, gpu: Gpu | None) -> Iterator[Finding]:
    """Copies by direction, as a share of the time of kernels, copies and memsets together."""
    whole = table.total_ns + table.memory_ns
    for kind, words in _DIRECTIONS.items():
        rows = tuple(row for row in table.memory if row.kind is SpanKind.MEMCPY and re.search(words, row.name))
        time = sum(row.total_ns for row in rows)
        if not whole or time / whole < MEMORY_COPY:
            continue
        moved = sum(row.bytes or 0 for row in rows)
        bandwidth = None
        if gpu and moved and kind is FindingKind.DEVICE_TO_DEVICE:  # every byte is read and written
            bandwidth = 2e9 * moved / time / gpu.memory_bytes_per_second
        yield MemoryCopies(kind, _severity(time / whole), time / whole, rows, moved, bandwidth)


def _synchronisation(api: Sequence[ApiSum]) -> Iterator[Finding]:
    """Host time in calls that wait for the GPU, of the time in all CUDA calls."""
    whole = sum(each.total_ns for each in api)
    waits = tuple(each for each in api if is_waiting(each.name))
    time = sum(each.total_ns for each in waits)
    if whole and time / whole >= SYNCHRONISATION:
        # Host time is not GPU time, so it is never high by itself; the launch gaps show its cost.
        severity = Severity.MEDIUM if time / whole >= 0.5 else Severity.LOW
        yield Synchronisation(FindingKind.SYNCHRONISATION, severity, time / whole, (), waits)


def _launch_gaps(timelines: Sequence[Timeline]) -> Iterator[Finding]:
    for timeline in timelines:
        active = timeline.wall_ns - timeline.pauses_ns
        share = timeline.late_ns / active if active else 0.0
        if share >= LAUNCH_GAPS:
            yield LaunchGaps(FindingKind.LAUNCH_GAPS, _severity(share), share, (), timeline)


def _skewed(table: KernelTable) -> Iterator[Finding]:
    """Kernels with an average of at least SKEW times their median: a few launches take nearly all the time."""
    for row in table.rows:
        if not row.median_ns or row.instances < SKEW_INSTANCES or row.share < WORTH:
            continue
        if row.average_ns / row.median_ns >= SKEW:
            yield Finding(FindingKind.SKEWED, _severity(row.share), row.share, (row,))


def _generation(architecture: str | None, default: int) -> int:
    """The major version in "sm_80". The default for None and for "sm_90+", which may be any later one."""
    if architecture is None or architecture.endswith("+") or not architecture.startswith("sm_"):  # gfx942: AMD's
        return default
    return int(architecture.removeprefix("sm_")) // 10


def _severity(share: float) -> Severity:
    return Severity.HIGH if share >= HIGH else Severity.MEDIUM if share >= MEDIUM else Severity.LOW


def _of(table: KernelTable, *roles: Role) -> tuple[KernelRow, ...]:
    return tuple(row for row in table.rows if row.role in roles)


def _share(rows: Sequence[KernelRow]) -> float:
    return sum(row.share for row in rows)
