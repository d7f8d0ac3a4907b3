"""On a GPU: what we record against NVIDIA's own `nsys stats` on the same file, and against flashinfer's timing."""

from __future__ import annotations

import csv
import io
import re
import sqlite3
import statistics
import subprocess
from collections import defaultdict
from contextlib import closing
from functools import partial

import pytest
from test_gpu import MIDDLE, MOE, SMALL, compared

from kernelderby.catalog import Catalog
from kernelderby.measure.machine.probe import find_machine
from kernelderby.measure.machine.tools import find_tool
from kernelderby.measure.record import ncu
from kernelderby.measure.record.run import OuterProfiler, plan_profiles, run_profiles
from kernelderby.profile.counters import METRICS, read_counters
from kernelderby.profile.sources import open_profile
from kernelderby.profile.spans import SpanKind

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

ITERATIONS = 20


@pytest.fixture(scope="module", params=[("triton_compact", MIDDLE), ("moe_baseline", SMALL)], ids=lambda one: one[0])
def recorded(request, checkout, tmp_path_factory):
    """(solution, file): hardly more than the pipeline's four kernels, and hundreds of small ones with copies."""
    solution, workload = request.param
    machine = find_machine(checkout, "cuda")
    if machine.protocol_note:
        pytest.skip(machine.protocol_note)
    catalog = Catalog.open(checkout)
    pairs, skipped = plan_profiles(catalog, machine, [solution], [MOE], [workload])
    if skipped:
        pytest.skip(str(skipped))
    (result,) = run_profiles(catalog, machine, pairs, tmp_path_factory.mktemp("profiles"), ITERATIONS, 300)
    assert result.path is not None, result.message
    assert result.warnings == []
    return solution, result.path


def invocations(path) -> dict[str, list]:
    """Spans by the innermost range of the pass around them."""
    found = defaultdict(list)
    for span in open_profile(path).spans():
        for name in span.ranges:
            if name.startswith("invocation "):
                found[name].append(span)
    return found


def test_every_kernel_has_its_launch_and_every_call_its_range(recorded):
    solution, path = recorded
    profile = open_profile(path)
    assert profile.unlinked_launches == 0 and profile.warnings == []
    assert profile.gpu and "schema 3" in profile.form
    spans = list(profile.spans())
    assert all(span.ranges and span.ranges[0].startswith((f"solution:{solution} ", "harness:")) for span in spans)
    calls = invocations(path)
    assert len(calls) >= 3
    assert len({len(work) for work in calls.values()}) == 1, "calls differ in their number of kernels"
    if solution == "triton_compact":
        assert len(calls) == ITERATIONS
        names = {span.name for work in calls.values() for span in work if span.kind is SpanKind.KERNEL}
        assert {"moe_route", "moe_gemm1", "moe_gemm2", "moe_combine"} <= names


def test_correlation_ids_are_unique_and_kernel_names_readable(recorded):
    with closing(sqlite3.connect(recorded[1])) as connection:
        assert (
            connection.execute(
                "SELECT correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME GROUP BY globalTid >> 24, "
                "correlationId HAVING count(*) > 1"
            ).fetchall()
            == []
        )
        assert (
            connection.execute(
                "SELECT value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName "
                "WHERE value LIKE '\\_Z%' ESCAPE '\\'"
            ).fetchall()
            == []
        )


# ------------------------------------------------------------------------------------------------ nsys stats as judge


@pytest.fixture(scope="module")
def stats():
    """stats(report, file) -> rows as dicts by header; None where the report has nothing to show."""
    tool = find_tool("nsys")
    if tool is None:
        pytest.skip("no nsys here")

    def run(report: str, path) -> list[dict[str, str]] | None:
        done = subprocess.run(
            [str(tool), "stats", "--report", report, "--format", "csv", str(path)],
            text=True,
            capture_output=True,
            timeout=120,
        )
        assert done.returncode == 0 and "ERROR" not in done.stdout, done.stdout + done.stderr
        lines = [line for line in done.stdout.splitlines() if line and not line.startswith(("Processing", "NOTICE"))]
        if lines and lines[0].startswith("SKIPPED"):
            return None
        return list(csv.DictReader(io.StringIO("\n".join(lines))))

    return run


def test_kernel_sums_agree_to_the_nanosecond(recorded, stats):
    ours = {
        row.name: (row.instances, row.total_ns, row.min_ns, row.max_ns)
        for row in open_profile(recorded[1]).sums()
        if row.kind is SpanKind.KERNEL
    }
    theirs = {
        row["Name"]: (int(row["Instances"]), *(int(row[f"{what} (ns)"]) for what in ("Total Time", "Min", "Max")))
        for row in stats("cuda_gpu_kern_sum", recorded[1])
    }
    assert theirs == ours


def test_api_sums_agree_to_the_nanosecond(recorded, stats):
    theirs = {
        row["Name"]: (int(row["Num Calls"]), int(row["Total Time (ns)"])) for row in stats("cuda_api_sum", recorded[1])
    }
    ours = {
        re.sub(r"_v\d+$", "", call.name): (call.calls, call.total_ns) for call in open_profile(recorded[1]).api_sums()
    }
    assert {re.sub(r"_v\d+$", "", name): row for name, row in theirs.items()} == ours


def test_memory_sums_agree(recorded, stats):
    ours = {row.name: row for row in open_profile(recorded[1]).sums() if row.kind is not SpanKind.KERNEL}
    times, sizes = (stats(f"cuda_gpu_mem_{what}_sum", recorded[1]) for what in ("time", "size"))
    if recorded[0] == "moe_baseline":
        assert ours, "the reference-like solution copies, or this test shows nothing"
    assert {row["Operation"]: (int(row["Count"]), int(row["Total Time (ns)"])) for row in times or ()} == {
        name: (row.instances, row.total_ns) for name, row in ours.items()
    }
    for row in sizes or ():
        assert float(row["Total (MB)"]) == pytest.approx(ours[row["Operation"]].bytes / 1e6, abs=5.1e-4)


def test_projected_ranges_agree_to_the_nanosecond(recorded, stats):
    solution, path = recorded
    rows = {row["Range"].removeprefix(":"): row for row in stats("nvtx_gpu_proj_sum", path)}
    calls = {
        name: max(span.end_ns for span in work) - min(span.start_ns for span in work)
        for name, work in invocations(path).items()
    }
    assert {name: int(row["Total Proj Time (ns)"]) for name, row in rows.items() if name in calls} == calls
    (whole,) = (row for name, row in rows.items() if name.startswith(f"solution:{solution} "))
    assert int(whole["Total Proj Time (ns)"]) == sum(calls.values())
    assert int(whole["Range Instances"]) == len(calls)


def test_spans_agree_with_flashinfers_timing(recorded, checkout):
    solution, path = recorded
    if solution != "triton_compact":
        pytest.skip("hundreds of launches: its span depends on the host, which recording API calls slows down")
    pytest.importorskip("flashinfer.testing")
    spans = [
        max(span.end_ns for span in work) - min(span.start_ns for span in work) for work in invocations(path).values()
    ]
    found = compared(checkout, solution, MIDDLE, "flashinfer")
    assert statistics.median(spans) / 1e3 == pytest.approx(found["flashinfer"], rel=0.02)


# -------------------------------------------------------------------------------------- a solution's own marks

MARKING = """
import json, sys
from pathlib import Path
import torch
from kernelderby.measure.machine.environment import gpu_seen
from kernelderby.measure.record.writer import write
from kernelderby.measure.record.profiler import Recorder, record_function_as_nvtx
recorder = Recorder()
x = torch.ones(512, 512, device="cuda")
graph, y = torch.cuda.CUDAGraph(), x * 2
with torch.cuda.graph(graph):
    y = x * 2
    z = y + 1
with record_function_as_nvtx(), recorder.record(gpu_seen()) as recording:
    with recorder.range("invocation 0"):
        torch.cuda.nvtx.range_push("stage one")
        (x * 3)
        torch.cuda.nvtx.range_pop()
        with torch.profiler.record_function("stage two"):
            x.cpu()
        graph.replay()
write(recording, Path(sys.argv[1]))
"""


def test_ranges_of_the_solution_and_graph_nodes_are_recorded(tmp_path):
    import sys

    path = tmp_path / "marked.sqlite"
    done = subprocess.run([sys.executable, "-c", MARKING, str(path)], text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    spans = list(open_profile(path).spans())
    assert [(span.kind, span.ranges[1:]) for span in spans] == [
        (SpanKind.KERNEL, ("stage one",)),
        (SpanKind.MEMCPY, ("stage two",)),
        (SpanKind.KERNEL, ()),
        (SpanKind.KERNEL, ()),
    ]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(
            "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE graphNodeId IS NOT NULL"
        ).fetchone() == (2,)


def test_ncu_counts_every_kernel_of_three_calls(checkout, tmp_path):
    tool = find_tool("ncu")
    if tool is None:
        pytest.skip("no ncu on the PATH or in its usual places")
    machine = find_machine(checkout, "cuda")
    catalog = Catalog.open(checkout)
    pairs, skipped = plan_profiles(catalog, machine, ["triton_compact"], [MOE], [SMALL])
    if skipped:
        pytest.skip(str(skipped))
    around = OuterProfiler(partial(ncu.record, tool), ncu.SUFFIX, ncu.count_kernels, call_by_call=True)
    (result,) = run_profiles(catalog, machine, pairs, tmp_path, ncu.MOST_ITERATIONS, 300, around)
    if "ERR_NVGPUCTRPERM" in result.message:
        pytest.skip("the driver keeps its counters for root")
    assert result.path is not None, result.message
    found = read_counters(result.path)
    assert found.gpu == machine.name and (found.invocations, found.outside) == (3, 0)
    assert len(found.rows) == 4 and {row.launches for row in found.rows} == {3}
    assert all(getattr(row, field) is not None for row in found.rows for field in METRICS)
    gemm = max(found.rows, key=lambda row: row.duration_ns)
    assert gemm.dram_percent > 10 and gemm.tensor_percent > 1, gemm
