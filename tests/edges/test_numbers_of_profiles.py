"""Numbers of a profile that no 64 bits hold, or that are none, are a line or a gap, in every verb."""

import json
import sqlite3
import sys
from pathlib import Path

import pytest
from mutating import run

from kernelderby.profile.sources.recognise import open_profile

sys.path.insert(0, str(Path(__file__).parent.parent / "profile"))
from make_nsys import standard
from test_sources_binary import event, message, metadata
from test_sources_traces import rocpd

VERBS = (("kernels",), ("activity", "--json"), ("timeline", "--out", "out.json"), ("compare",))
BIG = 10**400


def outcomes(path, monkeypatch):
    """Whatever escapes a verb is raised by run()."""
    monkeypatch.chdir(path.parent)
    return [run("profile", verb, *[path] * (1 + (verb == "compare")), *rest) for verb, *rest in VERBS]


def trace(*changes):
    """One kernel and its call; the kernel again with each of the changes."""
    place = {"pid": 0, "tid": 7, "ts": 100, "dur": 50}
    args = {"correlation": 1, "device": 0, "stream": 7, "grid": [1, 1, 1], "block": [1, 1, 1]}
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", **place}
    call = {**kernel, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 90, "args": {"correlation": 1}}
    events = [{**kernel, "args": args}]
    for change in changes:
        events.append({**kernel, **change, "args": {**args, **change.get("args", {})}})
    return {"traceEvents": [call, *events]}


@pytest.mark.parametrize(
    "change",
    [
        {"args": {"stream": BIG}},
        {"args": {"stream": "²", "device": "9" * 5000}},
        {"cat": "gpu_memcpy", "name": "Memcpy HtoD", "args": {"bytes": BIG}},
        {"ts": "1e999999999"},
        {"ts": "1e-999999999", "dur": "1e400000"},
        {"name": "\ud800"},
    ],
    ids=["stream", "digits", "bytes", "time", "times", "name"],
)
def test_an_event_beyond_measure(tmp_path, monkeypatch, change):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(trace(change)))
    assert [each.code for each in outcomes(path, monkeypatch)] == [0] * len(VERBS)


@pytest.mark.parametrize("major", [True, -1, BIG, []])
def test_a_capability_that_is_none(tmp_path, monkeypatch, major):
    path = tmp_path / "t.json"
    path.write_text(json.dumps({**trace(), "deviceProperties": [{"computeMajor": major, "computeMinor": 0}]}))
    outcomes(path, monkeypatch)


def table(start, stop, tmp_path):
    path = tmp_path / "t.csv"
    rows = "".join(f"{start},{stop - start},1,0,gemm\n" for _ in range(50))
    path.write_text(f"Start (ns),Duration (ns),CorrId,Strm,Name\n{rows}")
    return path


def xplane(start, stop, tmp_path):
    path = tmp_path / "t.pb"
    events = [event(1, 0, min(1000 * (stop - start), 2**64 - 1)) for _ in range(500)]
    stream = message((1, 7), (2, "Stream #1"), (3, start), *((4, each) for each in events))
    plane = message((1, 2), (2, "/device:GPU:0"), (3, stream), (4, metadata(1, "gemm")))
    path.write_bytes(message((1, plane)))
    return path


def kineto(start, stop, tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(trace(*[{"ts": start // 1000, "dur": (stop - start) // 1000}] * 50)))
    return path


def database(start, stop, tmp_path):
    with sqlite3.connect(path := standard(tmp_path / "t.sqlite")) as made:
        made.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = ?, [end] = ?", (start, stop))
    return path


@pytest.mark.parametrize("make", [table, xplane, kineto, database])
def test_operations_that_take_longer_together_than_any_clock_counts(tmp_path, monkeypatch, make):
    path = make(1000, (1 << 62) - 1, tmp_path)
    for outcome in outcomes(path, monkeypatch):
        assert outcome.code == 1 and "t." in outcome.err and "years together, so the times are damaged" in outcome.err
    path.unlink()
    assert open_profile(make(1000, 2000, tmp_path)).sums()


@pytest.mark.parametrize("value", [None, "x", b"\xff", 1.5, -(1 << 63)])
@pytest.mark.parametrize(
    ("name", "column"), [("GRAPH_TRACE", "start"), ("KERNEL", "deviceId"), ("KERNEL", "streamId"), ("KERNEL", "gridX")]
)
def test_a_column_of_an_export_with_something_else(tmp_path, name, column, value):
    path = standard(tmp_path / "t.sqlite")
    with sqlite3.connect(path) as made:
        kernels = [row[1] for row in made.execute("PRAGMA table_info(CUPTI_ACTIVITY_KIND_KERNEL)")]
        made.execute(f"CREATE TABLE other ({', '.join(f'[{each}]' for each in kernels)})")
        made.execute("INSERT INTO other SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL")
        made.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
        made.execute("ALTER TABLE other RENAME TO CUPTI_ACTIVITY_KIND_KERNEL")
        made.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET graphNodeId = 6, gridX = 1, blockX = 1")
        made.execute("DROP TABLE IF EXISTS CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
        made.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, [end])")
        made.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1, 2)")
        made.execute(f"UPDATE CUPTI_ACTIVITY_KIND_{name} SET [{column}] = ?", (value,))
    for verb in ("kernels", "activity"):
        assert run("profile", verb, path).code == 0
    run("capture", path)


def test_a_queue_beyond_64_bits(tmp_path, monkeypatch):
    path = rocpd(tmp_path / "t.db")
    with sqlite3.connect(path) as made:
        made.execute("UPDATE rocpd_kernel_dispatch_00_1 SET stream_id = ?", ("9" * 20,))
    assert [each.code for each in outcomes(path, monkeypatch)] == [0] * len(VERBS)


@pytest.mark.parametrize("invoked", ["²", "9" * 5000, "1,000"])
@pytest.mark.parametrize("value", ["1e999", "infinity", "1e305"])
def test_counts_beyond_measure(tmp_path, invoked, value):
    path = tmp_path / "t.csv"
    head = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value","Invocations"'
    path.write_text(f'{head}\n"0","k","Duration","s","{value}","{invoked}"\n"0","k","DRAM Throughput","%","5","1"\n')
    [found] = json.loads(run("profile", "counters", path, "--json").out)["profiles"][0]["rows"]
    assert found["launches"] == (1000 if invoked == "1,000" else 1) and found["duration_ns"] is None


def test_a_path_that_is_no_utf8(tmp_path):
    path = standard(tmp_path / "t.sqlite")
    path = path.rename(tmp_path / "t\udcff.sqlite")
    assert run("profile", "kernels", path).code == 0
