"""nsys's traces as CSV, and its reports, which the nsys that is installed must export."""

import gzip
import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from make_nsys import standard

from kernelderby.errors import DerbyError
from kernelderby.profile.activity import activity_of
from kernelderby.profile.sources import open_profile, report_file
from kernelderby.profile.spans import SpanKind

GPU = """Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),\
Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name
1000,500,1,,,,,,,,,,0.004,8.192,Pageable,Device,NVIDIA H200 (0),1,,7,[CUDA memcpy Host-to-Device]
2000,300,2,132,1,1,128,1,1,168,0.001,0.098,,,,,NVIDIA H200 (0),1,,7,"void gemm<(int)128, float>(T2 *)"
2400,300,3,132,1,1,128,1,1,168,0.001,0.098,,,,,NVIDIA H200 (0),1,,7,"void gemm<(int)128, float>(T2 *)"
"""
CALLS = """Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid,T-Pri,Thread Name
900,40,cudaMemcpyAsync_v3020,0,1,100,100,20,python
1500,20,cudaLaunchKernel_v7000,0,2,100,100,20,python
1530,20,cudaLaunchKernel_v7000,0,3,100,100,20,python
1600,1200,cudaStreamSynchronize_v3020,0,4,100,100,20,python
"""


@pytest.mark.parametrize("order", [GPU + "\n" + CALLS, "Processing [a.sqlite] with [x.py]... \n" + CALLS + "\n" + GPU])
def test_a_trace(tmp_path, order):
    path = tmp_path / "trace.csv"
    path.write_text(order)
    profile = open_profile(path)
    assert (profile.gpu, profile.has_events) == ("NVIDIA H200", True)
    copy, *gemms = profile.spans()
    assert (copy.kind, copy.name, copy.bytes) == (SpanKind.MEMCPY, "[CUDA memcpy Host-to-Device]", 4000)
    assert [(span.start_ns, span.end_ns, span.stream) for span in gemms] == [(2000, 2300, 7), (2400, 2700, 7)]
    gemm = profile.sums()[-1] if profile.sums()[0].kind is SpanKind.MEMCPY else profile.sums()[0]
    assert (gemm.instances, gemm.total_ns, gemm.median_ns) == (2, 600, 300)
    assert [(call.name, call.calls, call.total_ns) for call in profile.api_sums()] == [
        ("cudaStreamSynchronize", 1, 1200),
        ("cudaLaunchKernel", 2, 40),
        ("cudaMemcpyAsync", 1, 40),
    ]
    [gpu] = activity_of(profile).gpus
    assert gpu.launch_median_ns == 500  # 100, 500, 870
    assert gpu.idle_ns["synchronisation"] == 0 and gpu.idle_ns["dependency"] == 100
    assert gpu.idle_ns["host late"] == 500  # launched at 1500, when the copy had just ended
    [shape] = profile.launch_shapes()
    assert (shape.grid, shape.registers, shape.instances) == ((132, 1, 1), 168, 2)
    assert profile.unlinked_launches == 0


DISPATCHED = """"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name",\
"Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count",\
"Accum_VGPR_Count","SGPR_Count","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"
"KERNEL_DISPATCH","Agent 4",1,3,70,1,33,"void ck::gemm(float*) [clone .kd]",1,4000,4600,512,0,12,4,48,256,1,1,1000,2,1
"KERNEL_DISPATCH","Agent 5",1,0,70,2,16,"__amd_rocclr_copyBuffer.kd",2,5000,5100,0,0,4,4,16,512,1,1,512,1,1
"KERNEL_DISPATCH","Agent 4",1,3,70,3,33,"never_ended",3,5000,0,0,0,4,4,16,512,1,1,512,1,1
"""
COPIED = """"Kind","Direction","Stream_Id","Source_Agent_Id","Destination_Agent_Id",\
"Correlation_Id","Start_Timestamp","End_Timestamp"
"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE",3,"Agent 0","Agent 4",4,3000,3500
"""
COUNTED = """"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Kernel_Name","Counter_Name",\
"Counter_Value","Start_Timestamp","End_Timestamp"
1,1,"Agent 4",1,99,"gemm",SQ_WAVES,64,1000,1500
1,1,"Agent 4",1,99,"gemm",GRBM_COUNT,99,1000,1500
"""
OLD = """"Index","KernelName","gpu-id","queue-id","queue-index","pid","tid","grd","wgr","lds","scr","arch_vgpr",\
"DispatchNs","BeginNs","EndNs","CompleteNs","DurationNs"
0,"bodyForce(Body*, float, int) [clone .kd]",2,1,0,36,36,65536,256,0,0,20,900,1000,1500,1600,500
"""


def test_dispatches_of_rocprof(tmp_path):
    path = tmp_path / "1_kernel_trace.csv"
    path.write_text(DISPATCHED + COPIED)
    profile = open_profile(path)
    assert (profile.form, profile.gpu) == ("rocprof trace, CSV", None)
    assert profile.warnings == ["left out: 1 GPU operation without valid times"]
    assert [
        (span.kind, span.name, span.start_ns, span.end_ns, span.device, span.stream) for span in profile.spans()
    ] == [
        (SpanKind.MEMCPY, "[CUDA memcpy Host-to-Device]", 3000, 3500, 4, 3),
        (SpanKind.KERNEL, "void ck::gemm(float*)", 4000, 4600, 4, 3),
        (SpanKind.KERNEL, "__amd_rocclr_copyBuffer", 5000, 5100, 5, 0),
    ]
    gemm = profile.launch_shapes()[0]
    assert (gemm.grid, gemm.block, gemm.registers, gemm.shared_bytes) == ((4, 2, 1), (256, 1, 1), 12, 512)
    assert {gpu.operations for gpu in activity_of(profile).gpus} == {2, 1}


@pytest.mark.parametrize(("text", "name"), [(COUNTED, "gemm"), (OLD, "bodyForce(Body*, float, int)")])
def test_one_dispatch_counts_once(tmp_path, text, name):
    path = tmp_path / "results.csv"
    path.write_text(text)
    [row] = open_profile(path).sums()
    assert (row.name, row.instances, row.total_ns) == (name, 1, 500)


def test_dispatches_without_a_name_count_and_barrier_packets_do_not(tmp_path):
    path = tmp_path / "results.csv"
    unnamed, barrier = '1,"",2,1,1,36,36,64,64,0,0,8,1500,1500,1700,1800,200', '2,"<barrier packet>"'
    path.write_text(f"{OLD}{unnamed}\n{barrier},2,1,2,36,36,0,0,0,0,0,1700,1700,9000,9100,7300\n")
    profile = open_profile(path)
    assert [(row.name, row.total_ns) for row in profile.sums()] == [
        ("bodyForce(Body*, float, int)", 500),
        ("kernel without a name", 200),
    ]
    assert profile.warnings == ["left out: 1 barrier packet, where a queue only waited"]
    assert activity_of(profile).gpus[0].busy_ns == 700


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (DISPATCHED.splitlines()[0] + "\n", "no GPU work in it; give the kernel_trace"),
        (COUNTED + "2,2\n", "4: 2 cells where the header has 10"),
    ],
)
def test_a_broken_trace_of_rocprof(tmp_path, text, told):
    path = tmp_path / "results.csv"
    path.write_text(text)
    with pytest.raises(DerbyError, match=told):
        open_profile(path)


def _of_rocprofv3(dispatches: list[Any]) -> str:
    """As rocprofv3 1.0 writes it, without the parts that are not read."""
    return json.dumps(
        {
            "rocprofiler-sdk-tool": [
                {
                    "metadata": {"pid": 908},
                    "agents": [
                        {
                            "id": {"handle": 37944},
                            "type": 1,
                            "product_name": "AMD EPYC 9575F",
                            "logical_node_type_id": 0,
                        },
                        {
                            "id": {"handle": 1},
                            "type": 2,
                            "product_name": "AMD Instinct MI350X",
                            "logical_node_type_id": 6,
                        },
                    ],
                    "strings": {
                        "buffer_records": [{"operations": []}, {"operations": ["NONE", "MEMORY_COPY_HOST_TO_DEVICE"]}]
                    },
                    "kernel_symbols": [
                        {
                            "kernel_id": 8,
                            "formatted_kernel_name": "void ck::gemm(float*) [clone .kd]",
                            "arch_vgpr_count": 12,
                        }
                    ],
                    "buffer_records": {
                        "kernel_dispatch": dispatches,
                        "memory_copy": [
                            {
                                "kind": 1,
                                "operation": 1,
                                "start_timestamp": 100,
                                "end_timestamp": 200,
                                "dst_agent_id": {"handle": 1},
                                "src_agent_id": {"handle": 37944},
                            }
                        ],
                    },
                }
            ]
        }
    )


def _dispatch(start: object, end: object, kernel: int = 8) -> dict[str, Any]:
    return {
        "start_timestamp": start,
        "end_timestamp": end,
        "stream_id": {"handle": 3},
        "dispatch_info": {
            "agent_id": {"handle": 1},
            "kernel_id": kernel,
            "dispatch_id": start,
            "group_segment_size": 512,
            "workgroup_size": {"x": 256, "y": 1, "z": 1},
            "grid_size": {"x": 1000, "y": 2, "z": 1},
        },
    }


@pytest.mark.parametrize("packed", [False, True])
def test_json_of_rocprofv3(tmp_path, packed):
    path = tmp_path / "908_results.json"
    text = _of_rocprofv3([_dispatch(4000, 4600), _dispatch(300, 400, 9)]).encode()
    path.write_bytes(gzip.compress(text) if packed else text)
    profile = open_profile(path)
    assert (profile.form, profile.gpu, profile.warnings) == ("rocprofv3 JSON", "AMD Instinct MI350X", [])
    assert [
        (span.kind, span.name, span.start_ns, span.process, span.device, span.stream) for span in profile.spans()
    ] == [
        (SpanKind.MEMCPY, "[CUDA memcpy Host-to-Device]", 100, 908, 6, 0),
        (SpanKind.KERNEL, "kernel without a name", 300, 908, 6, 3),
        (SpanKind.KERNEL, "void ck::gemm(float*)", 4000, 908, 6, 3),
    ]
    gemm = profile.launch_shapes()[0]
    assert (gemm.grid, gemm.block, gemm.registers, gemm.shared_bytes) == ((4, 2, 1), (256, 1, 1), 12, 512)


def test_json_of_rocprofv3_with_odd_values(tmp_path):
    path = tmp_path / "908_results.json"
    path.write_text(_of_rocprofv3([_dispatch(None, 5), _dispatch([1], {}), _dispatch(-4, 5), _dispatch(5, 10**70), 7]))
    profile = open_profile(path)
    assert [span.name for span in profile.spans()] == ["[CUDA memcpy Host-to-Device]"]
    assert profile.warnings == ["left out: 4 GPU operations without valid times"]
    path.write_text(path.read_text().replace('"end_timestamp": 5', '"end_timestamp": ' + 5000 * "9"))
    with pytest.raises(DerbyError, match="a number of thousands of digits"):
        open_profile(path)


AVERAGES = """-----  ------------  ------------  ------------
 Name    Self CPU %     Self CUDA    # of Calls
-----  ------------  ------------  ------------
aten::mm         6.40%       6.155ms         10
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"rocprofiler-sdk-tool": [{"buffer_records": {}}]}', "no GPU work in it; record it with `rocprofv3 --kernel"),
        (AVERAGES, "torch.profiler's table of averages"),
    ],
)
def test_what_others_write_is_named(tmp_path, text, told):
    path = tmp_path / "results"
    path.write_text(text)
    with pytest.raises(DerbyError, match=told):
        open_profile(path)


def test_a_number_of_rocprof_beyond_any(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text(DISPATCHED + DISPATCHED.splitlines()[1].replace("4600", 5000 * "9") + "\n")
    assert open_profile(path).warnings == ["left out: 2 GPU operations without valid times"]


_LAUNCH = (
    "dispatch_id, group_segment_size, workgroup_size_x, workgroup_size_y, workgroup_size_z, "
    "grid_size_x, grid_size_y, grid_size_z"
)


def rocpd(path, suffix="_00_1", stamps=False):
    """As rocprofv3 writes it: two GPUs, a host; a GEMM, a fill of the runtime and a copy to the second GPU."""
    where = "track_id, start_id, end_id" if stamps else "pid, agent_id, queue_id, stream_id, start, end"
    tables = {
        "string": "id, string",
        "info_process": "id, pid",
        "info_agent": "id, type, type_index, name, product_name",
        "info_kernel_symbol": "id, kernel_name, display_name, arch_vgpr_count",
        "track": "id, pid, agent_id, queue_id, stream_id",
        "timestamp": "id, value",
        "kernel_dispatch": f"id, kernel_id, {_LAUNCH}, {where}",
        "memory_copy": "id, name_id, pid, start, end, dst_agent_id, src_agent_id, stream_id, size",
    }
    launch = (512, 256, 1, 1, 1000, 2, 1)
    first = (1, 1, 2) if stamps else (1, 7, 1, 3, 4000, 4600)
    second = (2, 3, 4) if stamps else (1, 8, 1, 0, 5000, 5100)
    rows = {
        "string": [(1, "MEMORY_COPY_HOST_TO_DEVICE")],
        "info_process": [(1, 70)],
        "info_agent": [(6, "CPU", 0, "EPYC", ""), (7, "GPU", 0, "gfx942", "MI300X"), (8, "GPU", 1, "gfx942", "MI300X")],
        "info_kernel_symbol": [(1, "_Z4gemm.kd", "void ck::gemm(float*) [clone .kd]", 12), (2, "fill", None, 4)],
        "track": [(1, 1, 7, 1, 3), (2, 1, 8, 1, 0)],
        "timestamp": [(1, 4000), (2, 4600), (3, 5000), (4, 5100)],
        "kernel_dispatch": [(1, 1, 1, *launch, *first), (2, 2, 2, *launch, *second)],
        "memory_copy": [(1, 1, 1, 3000, 3500, 8, 6, 3, 4096)],
    }
    with sqlite3.connect(path) as connection:
        for name, columns in tables.items():
            quoted = ", ".join(f'"{column}"' for column in columns.split(", "))
            connection.execute(f'CREATE TABLE "rocpd_{name}{suffix}" ({quoted})')
            connection.execute(
                f'CREATE VIEW "rocpd_{name}" AS SELECT * FROM "rocpd_{name}{suffix}"'
            ) if suffix else None
            marks = ", ".join("?" * len(columns.split(", ")))
            connection.executemany(f'INSERT INTO "rocpd_{name}{suffix}" VALUES ({marks})', rows[name])
    return path


@pytest.mark.parametrize(("suffix", "stamps"), [("_00_1", False), ("_00_1", True), ("", False)])
def test_the_database_of_rocprofv3(tmp_path, suffix, stamps):
    profile = open_profile(rocpd(tmp_path / "results.db", suffix, stamps))
    assert (profile.form, profile.gpu) == ("rocpd database", "MI300X")
    assert [
        (each.kind, each.name, each.start_ns, each.end_ns, each.process, each.device, each.stream, each.bytes)
        for each in profile.spans()
    ] == [
        (SpanKind.MEMCPY, "[CUDA memcpy Host-to-Device]", 3000, 3500, 70, 1, 3, 4096),
        (SpanKind.KERNEL, "void ck::gemm(float*)", 4000, 4600, 70, 0, 3, 0),
        (SpanKind.KERNEL, "fill", 5000, 5100, 70, 1, 0, 0),
    ]
    [gemm, _] = profile.launch_shapes()
    assert (gemm.grid, gemm.block, gemm.registers, gemm.shared_bytes) == ((4, 2, 1), (256, 1, 1), 12, 512)


def test_a_database_of_rocprofv3_that_lacks_rows_loses_no_dispatch_silently(tmp_path):
    path = rocpd(tmp_path / "results.db", "", True)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM rocpd_timestamp WHERE id = 4")
        connection.execute("UPDATE rocpd_info_kernel_symbol SET display_name = ''")
        connection.execute("DELETE FROM rocpd_string")
    profile = open_profile(path)
    assert [(row.name, row.total_ns) for row in profile.sums()] == [("_Z4gemm", 600), ("[CUDA memcpy Unknown]", 500)]
    assert profile.warnings == ["left out: 1 GPU operation without valid times"]


def test_two_processes_may_have_dispatches_of_the_same_number_and_start(tmp_path):
    path = rocpd(tmp_path / "results.db", "", False)
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO rocpd_info_process VALUES (2, 71)")
        connection.execute(
            f"INSERT INTO rocpd_kernel_dispatch SELECT 9, kernel_id, {_LAUNCH}, 2, agent_id, queue_id, stream_id, "
            'start, "end" FROM rocpd_kernel_dispatch WHERE id = 1'
        )
    spans = [span for span in open_profile(path).spans() if span.name == "void ck::gemm(float*)"]
    assert [(span.process, span.start_ns) for span in spans] == [(70, 4000), (71, 4000)]


def test_the_database_of_rocm_profile_data(tmp_path):
    path = tmp_path / "trace.rpd"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE rocpd_string (id, string)")
        connection.execute('CREATE TABLE rocpd_op (id, gpuId, queueId, start, "end", description_id, opType_id)')
        connection.executemany(
            "INSERT INTO rocpd_string VALUES (?, ?)",
            [(1, "gemm.kd"), (2, "Dispatch"), (3, "CopyHostToDevice"), (4, "")],
        )
        connection.executemany(
            "INSERT INTO rocpd_op VALUES (?, ?, ?, ?, ?, ?, ?)", [(1, 2, 1, 100, 400, 1, 2), (2, 2, 1, 500, 600, 4, 3)]
        )
    profile = open_profile(path)
    assert profile.form == "rpd database"
    assert [(row.name, row.total_ns) for row in profile.sums()] == [
        ("gemm", 300),
        ("[CUDA memcpy Host-to-Device]", 100),
    ]


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("CREATE TABLE rocpd_kernel_dispatch_1 (id INTEGER)", "table rocpd_kernel_dispatch has no column start"),
        ("CREATE TABLE rocpd_string (id INTEGER)", "no GPU work in it; record it again with"),
        (
            'CREATE TABLE rocpd_kernel_dispatch (id, start, "end")',
            "SQLite says: no such table: rocpd_info_kernel_symbol; record it again",
        ),
    ],
)
def test_a_broken_database_of_rocprof(tmp_path, made, told):
    path = tmp_path / "results.db"
    with sqlite3.connect(path) as connection:
        connection.execute(made)
    with pytest.raises(DerbyError, match=told) as error:
        open_profile(path)
    assert "\n" not in str(error.value)


def test_the_kernel_counts_where_a_table_has_operations_too(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("Operation,Kernel,Count,Total (us)\naten::mm,sm90_gemm,2,10\naten::mm,splitk_reduce,2,1\n")
    assert open_profile(path).names() == ["sm90_gemm", "splitk_reduce"]


def test_a_name_may_be_long(tmp_path):
    path = tmp_path / "trace.csv"
    name = "gemm<" + "int, " * 60_000 + "int>"
    path.write_text(GPU + f'3000,300,4,132,1,1,128,1,1,168,0,0,,,,,NVIDIA H200 (0),1,,7,"{name}"\n')
    assert open_profile(path).names()[-1] == name


def test_a_trace_of_the_gpu_alone_has_no_calls(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(GPU)
    profile = open_profile(path)
    assert profile.api_sums() == [] and profile.unlinked_launches == 0
    [gpu] = activity_of(profile).gpus
    assert gpu.idle_ns["unknown"] == 600 and gpu.launch_median_ns is None


@pytest.mark.parametrize(
    "text, said",
    [
        (CALLS, "no GPU work in it"),
        (GPU.replace("gemm<(int)128, float", "gemm<\n", 1), "trace.csv:3: a cell goes on in the next line"),
        (GPU.replace("2000,300", "2000,x"), "trace.csv:3: 'x' is no number"),
        (GPU.replace("2000,300", "2000,"), "trace.csv:3: an operation without a time"),
        (GPU.replace(",7,[CUDA", ",[CUDA"), "trace.csv:2: 20 cells where the header has 21"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, text, said):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(DerbyError, match=said):
        open_profile(path)


def report(path):
    path.write_bytes(b"\x08\x00 a report, whose form only nsys knows \x00")
    return path


def fake_nsys(folder, body):
    tool = folder / "nsys"
    tool.write_text(f"#!/bin/sh\n{body}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IEXEC)
    return folder


def test_a_report_goes_through_nsys(tmp_path, monkeypatch):
    exported = standard(tmp_path / "export.sqlite")
    body = f'while [ "$1" != --output ]; do shift; done; cp {exported} "$2"'
    monkeypatch.setenv("PATH", f"{fake_nsys(tmp_path, body)}:{os.environ['PATH']}")
    path = report(tmp_path / "run.nsys-rep")
    profile = open_profile(path)
    assert profile.path == path  # as the tables show it
    assert [(each.name, each.total_ns) for each in profile.sums()] == [
        (each.name, each.total_ns) for each in open_profile(exported).sums()
    ]
    assert len(list(profile.spans())) == 9


def test_a_report_whose_export_lies_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(report_file, "find_nsys", lambda: None)
    path = report(tmp_path / "run.nsys-rep")
    with pytest.raises(DerbyError, match="no nsys is installed to export it"):
        open_profile(path)
    standard(tmp_path / "run.sqlite")
    assert open_profile(path).path == path


@pytest.fixture
def stuck_nsys(tmp_path):
    """An nsys that never ends, and the ids of its processes."""
    nsys = tmp_path / "nsys"
    nsys.write_text(
        f"#!/bin/sh\nsleep 600 &\necho $! $$ > {tmp_path}/ids.new\nmv {tmp_path}/ids.new {tmp_path}/ids\nwait\n"
    )
    nsys.chmod(0o755)
    (tmp_path / "x.nsys-rep").write_bytes(b"\0")
    yield nsys
    for number in (tmp_path / "ids").read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(number), signal.SIGKILL)


def lives(number):
    try:
        return "State:\tZ" not in Path(f"/proc/{number}/status").read_text()
    except OSError:
        return False


def wait_for_their_end(numbers):
    """A killed process runs on until the kernel gives it a turn."""
    until = time.monotonic() + 60
    while any(map(lives, numbers)):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_an_export_without_end_is_ended_with_all_that_it_started(tmp_path, monkeypatch, stuck_nsys):
    monkeypatch.setattr(report_file, "find_nsys", lambda: str(stuck_nsys))
    monkeypatch.setattr(report_file, "_SECONDS", 1)
    with pytest.raises(DerbyError, match="timed out after 1 seconds"):
        report_file.open_report(tmp_path / "x.nsys-rep")
    wait_for_their_end((tmp_path / "ids").read_text().split())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="others have no such signal")
def test_an_export_ends_with_a_command_that_is_killed(tmp_path, stuck_nsys):
    code = f"from kernelderby.profile.sources import report_file; report_file._run(['{stuck_nsys}'])"
    process = subprocess.Popen([sys.executable, "-c", code])
    while not (tmp_path / "ids").exists():
        time.sleep(0.01)
    process.kill()
    process.wait()
    wait_for_their_end((tmp_path / "ids").read_text().split()[1:])


def test_a_report_that_nsys_cannot_read(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{fake_nsys(tmp_path, 'echo Importer error >&2; exit 1')}:{os.environ['PATH']}")
    with pytest.raises(DerbyError, match="cannot export it .Importer error."):
        open_profile(report(tmp_path / "run.nsys-rep"))


@pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")
def test_the_real_nsys_makes_and_reads_a_report(tmp_path):
    """Without a GPU it has no kernel: the export works, and the command says what is missing."""
    import subprocess

    made = tmp_path / "true"
    words = [
        "nsys",
        "profile",
        "--trace",
        "nvtx",
        "--sample",
        "none",
        "--cpuctxsw",
        "none",
        "--output",
        str(made),
        "true",
    ]
    if (
        subprocess.run(words, capture_output=True, timeout=120).returncode
        or not made.with_suffix(".nsys-rep").is_file()
    ):
        pytest.skip("this nsys makes no report here")
    with pytest.raises(DerbyError, match="no kernels, copies or memsets in it|no export of nsys"):
        open_profile(made.with_suffix(".nsys-rep"))
