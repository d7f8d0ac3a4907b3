"""A recording written as an nsys export: tables against answers worked out by hand, and read back by our reader."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from kernelderby.measure.record.records import (
    CallRecord,
    CopyRecord,
    FillRecord,
    KernelRecord,
    ProcessRecording,
    RangeRecord,
    WaitRecord,
)
from kernelderby.measure.record.writer import write
from kernelderby.measure.wire.replies import GpuSeen
from kernelderby.profile.sources import open_profile
from kernelderby.profile.spans import SpanKind
from kernelderby.store.demangle import demangled, function_name

T0 = 1_795_229_604_000_000_000  # an epoch time in ns: differences survive only in integers
PID, MAIN, OTHER = 4242, 4242, 4250
MANGLED = "_ZN3abc3addIfEEvPT_i"  # void abc::add<float>(float*, int)
GPU = GpuSeen("NVIDIA H200", "9.0", "GPU-0123", memory_bytes=150_000_000_000, l2_bytes=62_914_560, multiprocessors=132)


def kernel(name: str, start: int, end: int, correlation: int, stream: int = 7) -> KernelRecord:
    return KernelRecord(
        T0 + start,
        T0 + end,
        0,
        1,
        stream,
        correlation,
        name,
        (8, 4, 2),
        (128, 1, 1),
        64,
        (16, 1024, 32768),
        (8, 4096),
        grid_id=3,
    )


def recording() -> ProcessRecording:
    """Two invocations of gemm and a mangled kernel, all four copies' directions, a memset, and what launched them."""
    out = ProcessRecording(
        PID,
        "python3",
        T0,
        T0 + 10_000,
        GPU,
        facts={"solution": "toy"},
        threads={MAIN: "python3"},
        warnings=["2 records without timestamps were left out"],
    )
    out.kernels = [
        kernel("gemm", 1000, 1300, 11),
        kernel(MANGLED, 1250, 1400, 12, stream=8),
        kernel("gemm", 3000, 3500, 13),
    ]
    out.copies = [
        CopyRecord(T0 + 500, T0 + 700, 0, 1, 7, 21, 4096, 1, 1, 3),
        CopyRecord(T0 + 4000, T0 + 4100, 0, 1, 7, 22, 1024, 2, 3, 2),
        CopyRecord(T0 + 4200, T0 + 4210, 0, 1, 7, 23, 64, 8, 3, 3, graph_node=9),
        CopyRecord(T0 + 4300, T0 + 4400, 0, 1, 7, 24, 128, 10, 3, 3, peers=(0, 1, 1, 2)),
    ]
    out.fills = [FillRecord(T0 + 4500, T0 + 4550, 0, 1, 7, 25, 4, 255, 3)]
    out.calls = [
        CallRecord("cudaMemcpyAsync_v3020", T0 + 300, T0 + 400, MAIN, 21),
        CallRecord("cuLaunchKernelEx", T0 + 900, T0 + 950, MAIN, 11, driver=True),
        CallRecord("cudaLaunchKernel_v7000", T0 + 960, T0 + 990, MAIN, 12),
        CallRecord("cuLaunchKernelEx", T0 + 2900, T0 + 2950, MAIN, 13, driver=True),
        *(
            CallRecord("cudaMemcpyAsync_v3020", T0 + 3600 + 10 * number, T0 + 3605 + 10 * number, MAIN, number)
            for number in (22, 23, 24)
        ),
        CallRecord("cudaMemsetAsync_v3020", T0 + 3900, T0 + 3950, OTHER, 25),
    ]
    out.waits = [WaitRecord(T0 + 5000, T0 + 6000, 1, 30, 4), WaitRecord(T0 + 6000, T0 + 6100, 1, 31, 1, 7, 5)]
    out.ranges = [
        RangeRecord("solution:toy n=8", T0 + 880, T0 + 1000, MAIN),
        RangeRecord("invocation 0", T0 + 890, T0 + 995, MAIN),
        RangeRecord("solution:toy n=8", T0 + 2880, T0 + 2990, MAIN),
        RangeRecord("invocation 1", T0 + 2890, T0 + 2980, MAIN),
        RangeRecord("DeviceReduce", T0 + 3650, T0 + 3700, MAIN, domain="CCCL"),
        RangeRecord("across threads", T0 + 100, T0 + 9000, MAIN, OTHER),
        RangeRecord("mark", T0 + 50, None, MAIN),
    ]
    return out


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "toy.sqlite"
    write(recording(), file)
    return file


@pytest.fixture
def query(path):
    with closing(sqlite3.connect(path)) as connection:
        yield lambda text: connection.execute(text).fetchall()


def test_kernels_with_their_three_names(query):
    rows = query("""
        SELECT start, end, streamId, correlationId, globalPid, d.value, s.value, m.value, gridX, gridY, gridZ, blockX,
               registersPerThread, staticSharedMemory, dynamicSharedMemory, sharedMemoryExecuted, localMemoryPerThread,
               graphNodeId, l.label
        FROM CUPTI_ACTIVITY_KIND_KERNEL
        JOIN StringIds d ON d.id = demangledName JOIN StringIds s ON s.id = shortName
        JOIN StringIds m ON m.id = mangledName JOIN ENUM_CUDA_KERNEL_LAUNCH_TYPE l ON l.id = launchType
        ORDER BY start""")
    same = (8, 4, 2, 128, 64, 16, 1024, 32768, 8, None, "Regular")
    assert rows == [
        (1000, 1300, 7, 11, PID << 24, "gemm", "gemm", "gemm", *same),
        (1250, 1400, 8, 12, PID << 24, "void abc::add<float>(float*, int)", "add", MANGLED, *same),
        (3000, 3500, 7, 13, PID << 24, "gemm", "gemm", "gemm", *same),
    ]


def test_sums_as_nsys_stats_computes_them(query):
    assert query("""SELECT value, sum(end - start), count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL
                    JOIN StringIds ON id = demangledName GROUP BY 1 ORDER BY 2 DESC""") == [
        ("gemm", 800, 2),
        ("void abc::add<float>(float*, int)", 150, 1),
    ]
    assert query("""SELECT label, sum(end - start), sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY
                    JOIN ENUM_CUDA_MEMCPY_OPER ON id = copyKind GROUP BY 1 ORDER BY 1""") == [
        ("Device-to-Device", 10, 64),
        ("Device-to-Host", 100, 1024),
        ("Host-to-Device", 200, 4096),
        ("Peer-to-Peer", 100, 128),
    ]
    assert query("SELECT sum(end - start), sum(bytes), max(value) FROM CUPTI_ACTIVITY_KIND_MEMSET") == [(50, 4, 255)]
    assert query("""SELECT value, sum(end - start), count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME
                    JOIN StringIds ON id = nameId GROUP BY 1 ORDER BY 2 DESC""") == [
        ("cudaMemcpyAsync_v3020", 115, 4),
        ("cuLaunchKernelEx", 100, 2),
        ("cudaMemsetAsync_v3020", 50, 1),
        ("cudaLaunchKernel_v7000", 30, 1),
    ]


def test_memory_kinds_peers_and_graph_nodes(query):
    rows = query("""SELECT s.label, d.label, srcDeviceId, srcContextId, dstDeviceId, dstContextId, graphNodeId,
                           copyCount FROM CUPTI_ACTIVITY_KIND_MEMCPY c JOIN ENUM_CUDA_MEM_KIND s ON s.id = srcKind
                    JOIN ENUM_CUDA_MEM_KIND d ON d.id = dstKind ORDER BY start""")
    none = (None,) * 4
    assert rows == [
        ("Pageable", "Device", *none, None, 1),
        ("Device", "Pinned", *none, None, 1),
        ("Device", "Device", *none, 9, 1),
        ("Device", "Device", 0, 1, 1, 2, None, 1),
    ]


def test_threads_and_processes_are_in_the_global_ids(query):
    assert query(
        "SELECT DISTINCT (globalTid >> 24) & 0xFFFFFF, globalTid & 0xFFFFFF FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY 2"
    ) == [(PID, MAIN), (PID, OTHER)]
    assert query("SELECT value, globalTid FROM ThreadNames JOIN StringIds ON id = nameId") == [
        ("python3", PID << 24 | MAIN)
    ]
    assert query("SELECT * FROM PROCESSES") == [(PID << 24, PID, "python3")]


def test_ranges_marks_and_domains(query):
    rows = query("""SELECT start, end, eventType, value, endGlobalTid & 0xFFFFFF, domainId FROM NVTX_EVENTS
                    JOIN StringIds ON id = textId ORDER BY start, end""")
    assert rows == [
        (50, None, 34, "mark", None, 0),
        (100, 9000, 60, "across threads", OTHER, 0),
        (880, 1000, 59, "solution:toy n=8", None, 0),
        (890, 995, 59, "invocation 0", None, 0),
        (2880, 2990, 59, "solution:toy n=8", None, 0),
        (2890, 2980, 59, "invocation 1", None, 0),
        (3650, None, 75, "CCCL", None, 1),
        (3650, 3700, 59, "DeviceReduce", None, 1),
    ]


def test_projection_of_a_range_is_from_its_first_kernel_to_its_last(query):
    """As nvtx_gpu_proj_sum joins them: launches in the range on its thread, then the work of their correlation ids."""
    rows = query("""
        SELECT value, n.start, min(k.start), max(k.end) FROM NVTX_EVENTS n
        JOIN StringIds ON id = textId
        JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.globalTid = n.globalTid AND r.start >= n.start AND r.end <= n.end
        JOIN CUPTI_ACTIVITY_KIND_KERNEL k ON k.correlationId = r.correlationId
             AND k.globalPid = (r.globalTid & 0xFFFFFFFFFF000000)
        WHERE value LIKE 'solution:%' GROUP BY 2 ORDER BY 2""")
    assert rows == [("solution:toy n=8", 880, 1000, 1400), ("solution:toy n=8", 2880, 3000, 3500)]


def test_waits_diagnostics_gpu_and_version(query):
    assert query(
        "SELECT start, end, label, streamId, eventId FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION "
        "JOIN ENUM_CUPTI_SYNC_TYPE ON id = syncType"
    ) == [(5000, 6000, "Context sync", -1, 4294967295), (6000, 6100, "Event sync", 7, 5)]
    assert query("SELECT severity, text FROM DIAGNOSTIC_EVENT") == [(2, "2 records without timestamps were left out")]
    assert query("SELECT name, smCount, computeMajor, computeMinor FROM TARGET_INFO_GPU") == [
        ("NVIDIA H200", 132, 9, 0)
    ]
    assert ("EXPORT_SCHEMA_VERSION", "3.20.3") in query("SELECT * FROM META_DATA_EXPORT")
    assert ("KERNELDERBY:SOLUTION", "toy") in query("SELECT * FROM META_DATA_CAPTURE")
    assert query("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME") == [(T0,)]


def test_tables_without_events_are_absent_as_in_nsys(tmp_path):
    small = ProcessRecording(1, "python3", T0, T0 + 10, GPU, kernels=[kernel("k", 1, 2, 1)])
    write(small, tmp_path / "small.sqlite")
    with closing(sqlite3.connect(tmp_path / "small.sqlite")) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert "CUPTI_ACTIVITY_KIND_KERNEL" in tables and "META_DATA_EXPORT" in tables
    assert not tables & {"CUPTI_ACTIVITY_KIND_MEMCPY", "NVTX_EVENTS", "DIAGNOSTIC_EVENT"}


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(path):
    small = ProcessRecording(1, "python3", T0, T0 + 10, GPU, kernels=[kernel("k", 1, 2, 1)])
    write(small, path)
    assert [row.name for row in open_profile(path).sums()] == ["k"]
    broken = ProcessRecording(1, "python3", T0, T0 + 10, GPU, kernels=[kernel("k", 1, 2, 1), "no kernel"])
    with pytest.raises(AttributeError):
        write(broken, path)
    assert [file.name for file in path.parent.iterdir()] == ["toy.sqlite"]
    assert [row.name for row in open_profile(path).sums()] == ["k"]


def test_our_reader_sees_the_same(path):
    profile = open_profile(path)
    assert profile.gpu == "NVIDIA H200" and profile.has_events and profile.unlinked_launches == 0
    kernels = [span for span in profile.spans() if span.kind is SpanKind.KERNEL]
    assert [(span.name, span.start_ns, span.end_ns, span.stream) for span in kernels] == [
        ("gemm", 1000, 1300, 7),
        ("void abc::add<float>(float*, int)", 1250, 1400, 8),
        ("gemm", 3000, 3500, 7),
    ]
    assert [span.ranges[-2:] for span in kernels] == [
        ("solution:toy n=8", f"invocation {number}") for number in (0, 0, 1)
    ]
    sums = {row.name: (row.instances, row.total_ns, row.bytes) for row in profile.sums()}
    assert sums["gemm"][:2] == (2, 800)
    assert sums["[CUDA memcpy Device-to-Host]"] == (1, 100, 1024)
    assert {call.name: call.total_ns for call in profile.api_sums()}["cuLaunchKernelEx"] == 100
    assert any("without timestamps" in warning for warning in profile.warnings)


@pytest.mark.parametrize(
    ("name", "readable", "short"),
    [
        ("moe_gemm1", "moe_gemm1", "moe_gemm1"),
        (MANGLED, "void abc::add<float>(float*, int)", "add"),
        ("_Z", "_Z", "_Z"),  # no name at all
        ("_ZN12_GLOBAL__N_13fooIiEEvT_", "void (anonymous namespace)::foo<int>(int)", "foo"),
        ("void <unnamed>::sum<(int)4, a::b<char *>>(T1 *)", "void <unnamed>::sum<(int)4, a::b<char *>>(T1 *)", "sum"),
        ("f(int, b<c>)", "f(int, b<c>)", "f"),
    ],
)
def test_a_mangled_name_gives_its_readable_and_short_forms(name, readable, short):
    assert (demangled(name), function_name(demangled(name))) == (readable, short)
