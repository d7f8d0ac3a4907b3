"""Rows of a made-up operator for the tests of rank and report, few enough to work out by hand."""

from __future__ import annotations

from types import SimpleNamespace

from kernelderby.catalog import Workload
from kernelderby.rank.ranking import rank
from kernelderby.report.ranking.notes import notes
from kernelderby.rows.measurement import Cost, Measurement, Status

D = "operator"
STEADY = (0.98, 1.0, 1.02)  # factors of the three rounds, for every solution alike: they drift together


def workload(uuid: str, floor_us: float = 10.0, **extra) -> Workload:
    """On an H200 (4.8e12 bytes/s) reading 4.8e6 bytes takes 1 us."""
    cost = Cost({"float32": 1}, bytes_read=round(4.8e6 * floor_us), bytes_written=0)
    return Workload(D, uuid, {"seq_len": int(uuid[1:])}, {}, cost, {"workload": {"uuid": uuid}}, **extra)


def row(solution: str, uuid: str, latency_us: float | None, **other) -> Measurement:
    rounds = tuple((latency_us * drift,) * 5 for drift in STEADY) if latency_us else ()
    fields = {
        "definition": D,
        "workload": {"uuid": uuid, "axes": {}, "inputs": {}},
        "solution": solution,
        "gpu": "NVIDIA H200",
        "status": Status.PASSED if latency_us else Status.TIMED_OUT,
        "protocol": "cupti",
        "timestamp": "2026-11-20T10:00:00Z",
        "latency_us": latency_us,
        "samples_us": rounds,
        "solution_hash": f"hash of {solution}",
        "session": "one",
    }
    return Measurement(**{**fields, **other})


def rows(**latencies) -> list[Measurement]:
    """rows(fast=[1, 2]) measures fast at 1 us on w1 and 2 us on w2; None is a timed out row."""
    return [
        row(solution, f"w{index}", latency)
        for solution, each in latencies.items()
        for index, latency in enumerate(each, start=1)
    ]


def ranked(measurements, workloads=3, names=None, **options):
    if isinstance(workloads, int):
        workloads = [workload(f"w{index}") for index in range(1, workloads + 1)]
    names = names or sorted({each.solution for each in measurements})
    solutions = {
        name: SimpleNamespace(
            name=name,
            author="baseline" if name == "plain" else "someone",
            has_code=f"hash of {name}".__eq__,
            has_kernels=lambda recorded, uuid, own=f"hash of {name}": recorded == own,
            in_place={},
        )
        for name in names
    }
    return rank(measurements, D, workloads, solutions, noted=notes, **options)
