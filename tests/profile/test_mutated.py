"""Broken and odd files, made from good ones by a seeded generator: an error in one line or a table that adds up, never
a traceback, and nothing dropped without a word."""

import json
import os
import random
import re
import sqlite3
from contextlib import suppress

import pytest
from make_nsys import GENERATIONS, standard

from kernelderby.errors import DerbyError
from kernelderby.profile.activity import activity_of
from kernelderby.profile.compare.kernels import compare_kernels
from kernelderby.profile.kernels.summary import summarise
from kernelderby.profile.layers.draft import draft_of
from kernelderby.profile.perfetto import trace_events
from kernelderby.profile.sources import open_profile
from kernelderby.profile.stages.walk import pipeline_of
from kernelderby.report.profile.activity import activity_report
from kernelderby.report.profile.compare import compare_report
from kernelderby.report.profile.kernels import kernels_report
from kernelderby.report.profile.stages import stages_report
from kernelderby.rows.measurement import Stage

EACH = 110 if "DERBY_TESTS_ALL" in os.environ else 40  # mutants of each of the four kinds
STAGES = (Stage("K1", "gemm", ("gemm",)), Stage("K2", "softmax", ("softmax",)))
ODD = [None, -1, -(1 << 62), 1 << 62, 0, 0.5, 1e300, "", "x", "12", b"\xff\xfe", "\x00", "1,5"]


def everything(path):
    """All results and outputs of every verb of `derby profile`. DerbyError where the file cannot be read."""
    profile = open_profile(path)
    sums = profile.sums()
    table = summarise(profile)
    kernels_report(table, [])
    assert sum(row.total_ns for row in (*table.rows, *table.memory)) == pytest.approx(
        sum(each.total_ns for each in sums)
    )
    assert all(each.total_ns >= 0 and each.instances > 0 for each in sums)
    profile.api_sums()
    found = pipeline_of(profile, STAGES, "solution")
    stages_report(found)
    assert found.total_ns == pytest.approx(sum(each.total_ns for each in sums))  # every ns is in one place
    compare_report(compare_kernels(profile, profile))
    if profile.has_events:
        assert len(list(profile.issued())) == len(list(profile.spans()))  # the operators of derby capture
        assert sum(event["ph"] == "X" and "role" in event["args"] for event in trace_events(profile)) == 3 * sum(
            each.instances for each in sums
        )
        with suppress(DerbyError):  # nothing repeats in most of them
            draft_of(profile).layer_map(path)
        activity = activity_of(profile)
        activity_report([activity])
        assert sum(gpu.operations for gpu in activity.gpus) == sum(each.instances for each in sums)
        for gpu in activity.gpus:
            assert 0 <= gpu.busy_ns <= gpu.wall_ns and sum(gpu.idle_ns.values()) == gpu.wall_ns - gpu.busy_ns


def survives(path, what):
    try:
        everything(path)
    except DerbyError as error:
        assert "\n" not in str(error) and str(path) in str(error), (what, error)
    except Exception as error:
        raise AssertionError(f"{what}: {error!r}") from error


def bytes_flipped(data, generator):
    data = bytearray(data)
    for _ in range(generator.randrange(1, 6)):
        data[generator.randrange(len(data))] = generator.randrange(256)
    cut = generator.random() < 0.2
    return bytes(data[: generator.randrange(len(data))] if cut else data)


@pytest.mark.parametrize("number", range(EACH))
def test_sqlite_values(tmp_path, number):
    generator = random.Random(number)
    path = standard(tmp_path / "a.sqlite", generator.choice(GENERATIONS))
    said = []
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA writable_schema = 1")  # exports of other programs have no NOT NULL
        connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '') WHERE type = 'table'")
    with sqlite3.connect(path) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for _ in range(generator.randrange(1, 4)):
            table = generator.choice(tables)
            columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
            column, value = generator.choice(columns), generator.choice(ODD)
            where = generator.choice(("", "WHERE rowid = (SELECT min(rowid) FROM {t})", "WHERE rowid % 2"))
            change = f'UPDATE OR IGNORE "{table}" SET "{column}" = ? {where.format(t=table)}'
            if generator.random() < 0.15:
                change = generator.choice(
                    (f'DROP TABLE "{table}"', f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO odd')
                )
                tables = [each for each in tables if each != table]
            said.append((change, value))
            with suppress(sqlite3.IntegrityError):  # a key takes no such value
                connection.execute(change, (value,) if "?" in change else ())
            if not tables:
                break
    survives(path, said)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_sqlite_without_a_column_or_a_table(tmp_path, generation):
    """Every column of every table renamed, and every table made one column wide or dropped, one at a time."""
    path = tmp_path / "a.sqlite"
    whole = standard(tmp_path / "whole.sqlite", generation).read_bytes()
    path.write_bytes(whole)
    with sqlite3.connect(path) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {table: [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')] for table in tables}
    changes = [
        [f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO odd'] for table in tables for column in columns[table]
    ]
    for table in tables:
        changes.append([f'DROP TABLE "{table}"'])
        first = columns[table][0]
        changes.append([f'ALTER TABLE "{table}" RENAME TO old', f'CREATE TABLE "{table}" AS SELECT "{first}" FROM old'])
    for change in changes:
        path.write_bytes(whole)
        with sqlite3.connect(path) as connection:
            for statement in change:
                connection.execute(statement)
        survives(path, change)


@pytest.mark.parametrize("number", range(EACH))
def test_sqlite_bytes(tmp_path, number):
    generator = random.Random(number)
    path = standard(tmp_path / "a.sqlite", generator.choice(GENERATIONS))
    path.write_bytes(bytes_flipped(path.read_bytes(), generator))
    survives(path, f"bytes, {number}")


def trace():
    events = [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 2, "ts": 10 + n, "dur": 1}
        | {"args": {"correlation": n + 1}}
        for n in range(4)
    ]
    events += [
        {"ph": "X", "cat": "kernel", "name": f"gemm_{n % 2}", "pid": 0, "tid": 7, "ts": f"{20 + 5 * n}.250", "dur": 3.5}
        | {"args": {"correlation": n + 1, "device": 0, "stream": 7, "grid": [1, 2, 3], "block": [128, 1, 1]}}
        for n in range(4)
    ]
    events.append({"ph": "X", "cat": "user_annotation", "name": "invocation 1", "pid": 1, "tid": 2, "ts": 5, "dur": 30})
    events.append(
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "ts": 1, "dur": 2, "args": {}}
    )
    return {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "traceEvents": events}


@pytest.mark.parametrize("number", range(EACH))
def test_kineto(tmp_path, number):
    generator, document = random.Random(number), trace()
    odd = [value for value in ODD if not isinstance(value, bytes)] + [True, [], {}, [1, 2], {"a": 1}]
    said = []
    for _ in range(generator.randrange(1, 4)):
        place = generator.choice([document, *document["traceEvents"], *document["deviceProperties"]])
        if not isinstance(place, dict):
            continue
        if isinstance(place.get("args"), dict) and generator.random() < 0.4:
            place = place["args"]
        if not place:
            continue
        key = generator.choice(list(place))
        if generator.random() < 0.2:
            said.append(("del", key))
            del place[key]
        else:
            place[key] = generator.choice(odd)
            said.append((key, place[key]))
        if not isinstance(document.get("traceEvents"), list) or not isinstance(document.get("deviceProperties"), list):
            break
    text = json.dumps(document)
    if generator.random() < 0.2:
        text = bytes_flipped(text.encode(), generator).decode(errors="replace")
    path = tmp_path / "trace.json"
    path.write_text(text, encoding="utf-8")
    survives(path, said)


TABLES = """ ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
60.0,600,3,200.0,200.0,100,300,100.0,"void gemm<(int)128, float>(T2 *)"
40.0,400,2,200.0,200.0,150,250,70.7,softmax_kernel

 ** CUDA GPU MemOps Summary (by Time) (cuda_gpu_mem_time_sum):

Time (%),Total Time (ns),Count,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Operation
100.0,50,1,50.0,50.0,50,50,0.0,[CUDA memcpy Host-to-Device]
"""
TRACE = """Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,Bytes (MB),Device,Strm,Name
1000,500,1,,,,,,,,0.004,NVIDIA H200 (0),7,[CUDA memcpy Host-to-Device]
2000,300,2,132,1,1,128,1,1,168,,NVIDIA H200 (0),7,"void gemm<(int)128, float>(T2 *)"
2400,300,3,132,1,1,128,1,1,168,,NVIDIA H200 (0),7,softmax_kernel
"""
DISPATCHES = """"Kind","Agent_Id","Stream_Id","Dispatch_Id","Kernel_Name","Start_Timestamp","End_Timestamp"
"KERNEL_DISPATCH","Agent 4",0,1,"void gemm<float>(float*) [clone .kd]",1000,1500
"KERNEL_DISPATCH","Agent 4",0,2,"softmax_kernel",1600,1700
"Kind","Direction","Source_Agent_Id","Destination_Agent_Id","Start_Timestamp","End_Timestamp"
"MEMORY_COPY","MEMORY_COPY_DEVICE_TO_HOST","Agent 4","Agent 0",1800,1900
"""


@pytest.mark.parametrize("number", range(EACH))
def test_texts(tmp_path, number):
    generator = random.Random(number)
    lines = generator.choice((TABLES, TRACE, DISPATCHES)).splitlines()
    for _ in range(generator.randrange(1, 4)):
        place = generator.randrange(len(lines))
        cells = lines[place].split(",")
        what = generator.randrange(4)
        if what == 0:
            cells[generator.randrange(len(cells))] = str(generator.choice(ODD))
            lines[place] = ",".join(cells)
        elif what == 1:
            del lines[place]
        elif what == 2:
            lines.insert(place, lines[generator.randrange(len(lines))])
        else:
            lines[place] = bytes_flipped(lines[place].encode() or b"x", generator).decode(errors="replace")
        if not lines:
            break
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    survives(path, f"text, {number}")


# --- times that are missing, NULL or negative: counted, and shown ---


@pytest.mark.parametrize("value", ["NULL", "-5", "'x'"])
@pytest.mark.parametrize("column", ["start", "end"])
def test_operations_without_times_are_counted(derby, tmp_path, column, value):
    path = standard(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA writable_schema = 1")
        connection.execute("UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '') WHERE type = 'table'")
    with sqlite3.connect(path) as connection:
        connection.execute(f'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "{column}" = {value} WHERE start < 300')
    for verb in (("kernels",), ("activity",)):
        code, out, err = derby("profile", *verb, path)
        assert code == 0, err
        counted = re.search(r"left out: (\d+) GPU operations? without valid times", out)
        assert counted and int(counted[1]) == 2, out
