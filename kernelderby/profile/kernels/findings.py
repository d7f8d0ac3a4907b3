"""Findings in a kernel summary, each with its numbers and the recommended action."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from kernelderby.hardware import Gpu, find_gpu
from kernelderby.profile.kernels.attribution import Role
from kernelderby.profile.kernels.summary import KernelRow, KernelTable
from kernelderby.profile.spans import ApiSum, SpanKind, is_waiting
from kernelderby.profile.timeline import LATE_NS, PAUSE_NS, Timeline
from kernelderby.store.counts import counted

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


Evidence = dict[str, float | int | str]


class Severity(StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, slots=True)
class Finding:
    """share: the share of the time, 0 to 1; `what` says of which time. evidence: label -> number (its unit is in the
    label), or text. kernels: names, largest first."""

    kind: str
    severity: Severity
    share: float
    what: str
    evidence: Evidence
    advice: str
    kernels: tuple[str, ...] = ()


def findings(table: KernelTable, api: Sequence[ApiSum] = (), timelines: Sequence[Timeline] = ()) -> list[Finding]:
    """All findings, severest first. api: host time by call. timelines: only for a profile with events."""
    gpu = find_gpu(table.gpu) if table.gpu else None
    found = [
        *older_architecture(table),
        *gemm_dominance(table),
        *gather_scatter(table),
        *hidden_copies(table),
        *memory_copies(table, gpu),
        *synchronisation(api),
        *launch_gaps(timelines),
        *skewed(table),
    ]
    order = list(Severity)
    return sorted(found, key=lambda finding: (order.index(finding.severity), -finding.share))


def older_architecture(table: KernelTable) -> Iterable[Finding]:
    """Kernels whose name shows an architecture of an earlier generation (major version) than the GPU's."""
    capability = table.compute_capability
    if capability is None:
        return
    major = int(capability.partition(".")[0])
    rows = [row for row in table.rows if _generation(row.attribution.architecture, major) < major]
    share = sum(row.share for row in rows)
    if share < OLDER:
        return
    libraries = list(dict.fromkeys(row.library for row in rows))
    own = f"sm_{capability.replace('.', '')}"
    advice = []
    if "cuBLAS" in libraries:
        advice.append(
            f"cuBLAS: check that the process loads a libcublas that has {own} kernels (/proc/PID/maps tells which), "
            "that rows and strides are multiples of 16 bytes and that cuBLASLt has a workspace (tens of MiB); "
            "rebuilding the framework mends it only where that changes the cuBLAS in use"
        )
    others = [library for library in libraries if library != "cuBLAS"]
    if others:
        advice.append(
            f"{', '.join(others)}: build for {own} (TORCH_CUDA_ARCH_LIST={capability}, "
            f"CMAKE_CUDA_ARCHITECTURES) or take a release that has it"
        )
    architectures = sorted({row.attribution.architecture for row in rows if row.attribution.architecture})
    yield _of_rows(
        "older architecture",
        rows,
        f"{share:.0%} of the kernel time runs kernels for {', '.join(architectures)} on an {own} GPU "
        f"({table.gpu or 'not named'})",
        {"kernels": len(rows), "launches": _launches(rows), "libraries": ", ".join(libraries)},
        "; ".join(advice),
    )


def gemm_dominance(table: KernelTable) -> Iterable[Finding]:
    """GEMMs, single and grouped, are most of the kernel time."""
    rows = _of(table, Role.GEMM, Role.GROUPED_GEMM)
    share = sum(row.share for row in rows)
    if share <= GEMM_DOMINANCE:
        return
    found = _of_rows(
        "GEMM dominance",
        rows,
        f"GEMMs are {share:.0%} of the kernel time",
        {"largest share": rows[0].share, "bound without everything else": f"{1 / share:.2f}x"},
        "even if everything except GEMMs were free, the gain would stay within the bound; first compare the largest "
        "GEMM with its roofline: shape, element type, architecture, tile and wave quantisation",
    )
    yield replace(found, severity=Severity.MEDIUM)


def gather_scatter(table: KernelTable) -> Iterable[Finding]:
    """Rows moved between orders: permutation, index kernels, cache writes."""
    rows = _of(table, Role.GATHER_SCATTER)
    share = sum(row.share for row in rows)
    if share < GATHER_SCATTER:
        return
    yield _of_rows(
        "gather and scatter",
        rows,
        f"gather and scatter are {share:.1%} of the kernel time",
        {"launches": _launches(rows)},
        "read the rows through the index inside the consumer (a GEMM's A operand, the epilogue of the one before) "
        "rather than writing a permuted copy; move FP8 rather than BF16",
    )


def hidden_copies(table: KernelTable) -> Iterable[Finding]:
    """Kernels that only copy or cast: .contiguous(), .to(dtype), torch.cat, layout changes."""
    rows = _of(table, Role.COPY)
    share = sum(row.share for row in rows)
    if share < HIDDEN_COPY:
        return
    casts = [row for row in rows if "LoadWithCast" in row.name or "_copy_kernel" in row.name.replace("direct_copy", "")]
    yield _of_rows(
        "hidden copies",
        rows,
        f"kernels that only copy or cast are {share:.1%} of the kernel time",
        {"launches": _launches(rows), "of these casts ms": _ms(casts)},
        "look for .transpose().contiguous(), .to(dtype), torch.cat and expanded operands on the path; do them once, at "
        "load time, or pass strides and let the consumer cast",
    )


def memory_copies(table: KernelTable, gpu: Gpu | None = None) -> Iterable[Finding]:
    """Copies by direction, each against the time of kernels, copies and memsets together."""
    whole = table.total_ns + table.memory_ns
    for direction, words in _DIRECTIONS.items():
        rows = [row for row in table.memory if row.kind is SpanKind.MEMCPY and re.search(words, row.name)]
        time = sum(row.total_ns for row in rows)
        if not whole or time / whole < MEMORY_COPY:
            continue
        share = time / whole
        evidence: Evidence = {
            "share of GPU time": share,
            "total ms": time / 1e6,
            "copies": _launches(rows),
        }
        moved = sum(row.bytes or 0 for row in rows)
        if moved:
            evidence["GB"] = moved / 1e9
            evidence["GB/s"] = moved / time
            if gpu and direction == "device to device":  # every byte is read and written
                evidence["of the memory bandwidth"] = 2e9 * moved / time / gpu.memory_bytes_per_second
        yield Finding(
            f"copies {direction}",
            _severity(share),
            share,
            f"copies {direction} are {share:.1%} of the GPU time",
            evidence,
            _COPY_ADVICE[direction],
            _names(rows),
        )


_DIRECTIONS = {
    "host to device": r"Host-to-Device|HtoD",
    "device to host": r"Device-to-Host|DtoH",
    "device to device": r"Device-to-Device|DtoD",
    "between GPUs": r"Peer-to-Peer|PtoP",
}
_COPY_ADVICE = {
    "host to device": "keep inputs and indices on the GPU; what must come over, from pinned memory and asynchronously",
    "device to host": "look for .item(), .cpu(), printing and shapes that depend on data: each also waits for the GPU",
    "device to device": "find the copy_() or clone() behind them: a contiguous copy becomes a memcpy, not a kernel; "
    "reuse the buffer or write into it in the first place",
    "between GPUs": "overlap them with computing on another stream, or fuse them into a collective",
}


def synchronisation(api: Sequence[ApiSum]) -> Iterable[Finding]:
    """Host time in calls that wait for the GPU, of the time in all CUDA calls."""
    whole = sum(each.total_ns for each in api)
    waits = [each for each in api if is_waiting(each.name)]
    time = sum(each.total_ns for each in waits)
    if not whole or time / whole < SYNCHRONISATION:
        return
    share = time / whole
    largest = max(waits, key=lambda each: each.total_ns)
    # Host time is not GPU time, so it is never high by itself; the launch gaps show its cost.
    yield Finding(
        "synchronisation",
        Severity.MEDIUM if share >= 0.5 else Severity.LOW,
        share,
        f"{share:.0%} of the CUDA API time is waiting for the GPU, most of it in {largest.name}",
        {
            "share of API time": share,
            "total ms": time / 1e6,
            "calls": sum(each.calls for each in waits),
            "us a call": time / 1e3 / max(1, sum(each.calls for each in waits)),
        },
        "a timing loop waits once per iteration, which costs the tested code nothing; otherwise look for .item(), "
        ".cpu() and torch.cuda.synchronize() on the path, and compare with the launch gaps",
    )


def launch_gaps(timelines: Sequence[Timeline]) -> Iterable[Finding]:
    """Idle times of a GPU that are too long for a launch and too short for another phase of the program."""
    for timeline in timelines:
        active = timeline.wall_ns - timeline.pauses_ns
        share = timeline.late_ns / active if active else 0.0
        if share < LAUNCH_GAPS:
            continue
        yield Finding(
            "launch gaps",
            _severity(share),
            share,
            f"GPU {timeline.label or timeline.device} waits for the host in {share:.0%} of the time between pauses: "
            f"{counted(timeline.late, 'gap')} above {LATE_NS / 1e3:g} us",
            {
                "share of time without pauses": share,
                f"gaps above {LATE_NS / 1e3:g} us": timeline.late,
                "their total ms": timeline.late_ns / 1e6,
                "gaps": timeline.gaps,
                "median gap us": timeline.gap_median_ns / 1e3,
                "busy ms": timeline.busy_ns / 1e6,
                f"pauses above {PAUSE_NS / 1e6:g} ms": timeline.pauses,
            },
            "launch less: a CUDA graph, fused kernels, buffers allocated once, no Python between launches",
        )


def skewed(table: KernelTable) -> Iterable[Finding]:
    """Kernels with an average of at least SKEW times their median: a few launches take nearly all the time."""
    for row in table.rows:
        if not row.median_ns or row.instances < SKEW_INSTANCES or row.share < WORTH:
            continue
        ratio = row.average_ns / row.median_ns
        if ratio < SKEW:
            continue
        evidence: Evidence = {
            "share of kernel time": row.share,
            "average us": row.average_ns / 1e3,
            "median us": row.median_ns / 1e3,
            "average over median": ratio,
            "instances": row.instances,
        }
        if row.max_ns is not None:
            evidence["max us"] = row.max_ns / 1e3
        yield Finding(
            "average far above median",
            _severity(row.share),
            row.share,
            f"{row.short_name}: average {ratio:.0f} times the median",
            evidence,
            "two shapes share this name (prefill and decode, large and small batches) or a few launches are outliers: "
            "split the profile by phase or workload before optimising for either",
            (row.name,),
        )


def _of_rows(kind: str, rows: Sequence[KernelRow], what: str, evidence: Evidence, advice: str) -> Finding:
    share = sum(row.share for row in rows)
    of_all: Evidence = {"share of kernel time": share, "total ms": _ms(rows)}
    return Finding(kind, _severity(share), share, what, of_all | evidence, advice, _names(rows))


def _generation(architecture: str | None, default: int) -> int:
    """The major version in "sm_80". The default for None and for "sm_90+", which may be any later one."""
    if architecture is None or architecture.endswith("+") or not architecture.startswith("sm_"):  # gfx942: AMD's
        return default
    return int(architecture.removeprefix("sm_")) // 10


def _severity(share: float) -> Severity:
    return Severity.HIGH if share >= HIGH else Severity.MEDIUM if share >= MEDIUM else Severity.LOW


def _of(table: KernelTable, *roles: Role) -> list[KernelRow]:
    return [row for row in table.rows if row.role in roles]


def _ms(rows: Iterable[KernelRow]) -> float:
    return sum(row.total_ns for row in rows) / 1e6


def _launches(rows: Iterable[KernelRow]) -> int:
    return sum(row.instances for row in rows)


def _names(rows: Iterable[KernelRow]) -> tuple[str, ...]:
    return tuple(row.name for row in rows)
