"""Findings of a kernel summary in words, each with its numbers and the recommended action."""

from __future__ import annotations

from dataclasses import dataclass

from kernelderby.profile.kernels.findings import (
    Finding,
    FindingKind,
    HiddenCopies,
    LaunchGaps,
    MemoryCopies,
    OlderArchitecture,
    Severity,
    Synchronisation,
)
from kernelderby.profile.timeline import LATE_NS, PAUSE_NS
from kernelderby.store.counts import counted

Evidence = dict[str, float | int | str]

_ADVICE = {
    FindingKind.GEMM_DOMINANCE: (
        "even if everything except GEMMs were free, the gain would stay within the bound; first compare the largest "
        "GEMM with its roofline: shape, element type, architecture, tile and wave quantisation"
    ),
    FindingKind.GATHER_SCATTER: (
        "read the rows through the index inside the consumer (a GEMM's A operand, the epilogue of the one before) "
        "rather than writing a permuted copy; move FP8 rather than BF16"
    ),
    FindingKind.HIDDEN_COPIES: (
        "look for .transpose().contiguous(), .to(dtype), torch.cat and expanded operands on the path; do them once, at "
        "load time, or pass strides and let the consumer cast"
    ),
    FindingKind.HOST_TO_DEVICE: (
        "keep inputs and indices on the GPU; what must come over, from pinned memory and asynchronously"
    ),
    FindingKind.DEVICE_TO_HOST: (
        "look for .item(), .cpu(), printing and shapes that depend on data: each also waits for the GPU"
    ),
    FindingKind.DEVICE_TO_DEVICE: (
        "find the copy_() or clone() behind them: a contiguous copy becomes a memcpy, not a kernel; "
        "reuse the buffer or write into it in the first place"
    ),
    FindingKind.BETWEEN_GPUS: "overlap them with computing on another stream, or fuse them into a collective",
    FindingKind.SYNCHRONISATION: (
        "a timing loop waits once per iteration, which costs the tested code nothing; otherwise look for .item(), "
        ".cpu() and torch.cuda.synchronize() on the path, and compare with the launch gaps"
    ),
    FindingKind.LAUNCH_GAPS: (
        "launch less: a CUDA graph, fused kernels, buffers allocated once, no Python between launches"
    ),
    FindingKind.SKEWED: (
        "two shapes share this name (prefill and decode, large and small batches) or a few launches are outliers: "
        "split the profile by phase or workload before optimising for either"
    ),
}


@dataclass(frozen=True, slots=True)
class ToldFinding:
    """share: 0 to 1; `what` says of which time. evidence: label -> number (its unit is in the label), or text. kernels:
    names, largest first."""

    kind: str
    severity: Severity
    share: float
    what: str
    evidence: Evidence
    advice: str
    kernels: tuple[str, ...]


def told_finding(found: Finding) -> ToldFinding:
    what, evidence = _told(found)
    advice = _of_older(found) if isinstance(found, OlderArchitecture) else _ADVICE[found.kind]
    return ToldFinding(
        found.kind.value, found.severity, found.share, what, evidence, advice, tuple(row.name for row in found.rows)
    )


def _told(found: Finding) -> tuple[str, Evidence]:
    share, total_ms = found.share, found.total_ns / 1e6
    of_kernels: Evidence = {"share of kernel time": share, "total ms": total_ms}
    match found:
        case OlderArchitecture():
            architectures = sorted({each for row in found.rows if (each := row.attribution.architecture)})
            return (
                f"{share:.0%} of the kernel time runs kernels for {', '.join(architectures)} on an "
                f"{_sm(found.capability)} GPU ({found.gpu or 'not named'})",
                of_kernels
                | {"kernels": len(found.rows), "launches": found.launches, "libraries": ", ".join(_libraries(found))},
            )
        case HiddenCopies():
            return (
                f"kernels that only copy or cast are {share:.1%} of the kernel time",
                of_kernels | {"launches": found.launches, "of these casts ms": found.casts_ns / 1e6},
            )
        case MemoryCopies():
            return f"{found.kind.value} are {share:.1%} of the GPU time", _of_copies(found)
        case Synchronisation():
            calls, time = sum(each.calls for each in found.waits), sum(each.total_ns for each in found.waits)
            largest = max(found.waits, key=lambda each: each.total_ns)
            return (
                f"{share:.0%} of the CUDA API time is waiting for the GPU, most of it in {largest.name}",
                {
                    "share of API time": share,
                    "total ms": time / 1e6,
                    "calls": calls,
                    "us a call": time / 1e3 / max(1, calls),
                },
            )
        case LaunchGaps():
            return _of_gaps(found)
        case Finding(kind=FindingKind.GEMM_DOMINANCE):
            return (
                f"GEMMs are {share:.0%} of the kernel time",
                of_kernels
                | {"largest share": found.rows[0].share, "bound without everything else": f"{1 / share:.2f}x"},
            )
        case Finding(kind=FindingKind.GATHER_SCATTER):
            return f"gather and scatter are {share:.1%} of the kernel time", of_kernels | {"launches": found.launches}
    return _of_skewed(found)


def _sm(capability: str) -> str:
    return f"sm_{capability.replace('.', '')}"


def _libraries(found: Finding) -> list[str]:
    return list(dict.fromkeys(row.library for row in found.rows))


def _of_older(found: OlderArchitecture) -> str:
    own, advice = _sm(found.capability), []
    libraries = _libraries(found)
    if "cuBLAS" in libraries:
        advice.append(
            f"cuBLAS: check that the process loads a libcublas that has {own} kernels (/proc/PID/maps tells which), "
            "that rows and strides are multiples of 16 bytes and that cuBLASLt has a workspace (tens of MiB); "
            "rebuilding the framework mends it only where that changes the cuBLAS in use"
        )
    others = [library for library in libraries if library != "cuBLAS"]
    if others:
        advice.append(
            f"{', '.join(others)}: build for {own} (TORCH_CUDA_ARCH_LIST={found.capability}, "
            f"CMAKE_CUDA_ARCHITECTURES) or take a release that has it"
        )
    return "; ".join(advice)


def _of_copies(found: MemoryCopies) -> Evidence:
    evidence: Evidence = {"share of GPU time": found.share, "total ms": found.total_ns / 1e6, "copies": found.launches}
    if found.bytes:
        evidence |= {"GB": found.bytes / 1e9, "GB/s": found.bytes / found.total_ns}
    if found.bandwidth_share is not None:
        evidence["of the memory bandwidth"] = found.bandwidth_share
    return evidence


def _of_gaps(found: LaunchGaps) -> tuple[str, Evidence]:
    timeline, above = found.timeline, f"{LATE_NS / 1e3:g} us"
    return (
        f"GPU {timeline.label or timeline.device} waits for the host in {found.share:.0%} of the time between pauses: "
        f"{counted(timeline.late, 'gap')} above {above}",
        {
            "share of time without pauses": found.share,
            f"gaps above {above}": timeline.late,
            "their total ms": timeline.late_ns / 1e6,
            "gaps": timeline.gaps,
            "median gap us": timeline.gap_median_ns / 1e3,
            "busy ms": timeline.busy_ns / 1e6,
            f"pauses above {PAUSE_NS / 1e6:g} ms": timeline.pauses,
        },
    )


def _of_skewed(found: Finding) -> tuple[str, Evidence]:
    [row] = found.rows
    median_ns = row.median_ns or 1
    evidence: Evidence = {
        "share of kernel time": row.share,
        "average us": row.average_ns / 1e3,
        "median us": median_ns / 1e3,
        "average over median": row.average_ns / median_ns,
        "instances": row.instances,
    }
    if row.max_ns is not None:
        evidence["max us"] = row.max_ns / 1e3
    return f"{row.short_name}: average {row.average_ns / median_ns:.0f} times the median", evidence
