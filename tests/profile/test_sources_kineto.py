"""Traces of torch.profiler, and how files of all kinds are told apart."""

import gzip
import json
import random
import re
import time
import zipfile

import pytest
from make_nsys import standard

from kernelderby.errors import DerbyError
from kernelderby.profile.sources import open_profile
from kernelderby.profile.spans import SpanKind


def event(category, name, start, duration, pid=1, tid=1, **args):
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start,
        "dur": duration,
        "args": args,
    }


def trace(*events, **top):
    flow = {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 0, "cat": "ac2g", "name": "ac2g"}
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}],
        "traceEvents": [{"ph": "M", "name": "process_name", "pid": 1, "args": {}}, flow, *events],
        **top,
    }


WORK = [
    event("cpu_op", "aten::mm", 9, 20),
    event("user_annotation", "attention", 12.5, 10),
    event("user_annotation", "step 1", 10, 30),
    event("cuda_runtime", "cudaLaunchKernel", 13, 2, correlation=5),
    event("cuda_driver", "cuLaunchKernelEx", 30, 2, correlation=6),
    event("cuda_runtime", "cudaMemcpyAsync", 50, 2, correlation=7),
    event("cuda_runtime", "cudaDeviceSynchronize", 60, 100),
    event("kernel", "softmax", 130.25, 10.5, pid=0, tid=7, correlation=6, device=0, stream=7),
    event("kernel", "gemm", 100.001, 20.002, pid=0, tid=7, correlation=5, device=0, stream=7),
    event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 150, 1, 0, 9, correlation=7, device=0, stream=9, bytes=64),
    event("gpu_memset", "Memset (Device)", 155, 1, pid=0, tid=9, correlation=8, device=0, stream=9, bytes=32),
    event("kernel", "gemm", 160, 10, pid=0, tid=7, correlation=99, device=0, stream=7),
    event("gpu_user_annotation", "step 1", 100, 50, pid=0, tid=7),
]


def write(tmp_path, document, name="trace.json"):
    path = tmp_path / name
    path.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
    return path


def test_spans_ranges_and_sums(tmp_path):
    profile = open_profile(write(tmp_path, trace(*WORK)))
    assert [(span.kind.value, span.name, span.start_ns, span.end_ns, span.ranges) for span in profile.spans()] == [
        ("kernel", "gemm", 100_001, 120_003, ("step 1", "attention")),
        ("kernel", "softmax", 130_250, 140_750, ("step 1",)),
        ("memcpy", "[CUDA memcpy Host-to-Device]", 150_000, 151_000, ()),
        ("memset", "[CUDA memset]", 155_000, 156_000, ()),
        ("kernel", "gemm", 160_000, 170_000, ()),
    ]
    assert profile.gpu == "NVIDIA H200" and profile.has_events and profile.unlinked_launches == 1
    gemm = profile.sums()[0]
    assert (gemm.name, gemm.instances, gemm.total_ns, gemm.median_ns) == ("gemm", 2, 30_002, 15_001)
    assert [each.bytes for each in profile.sums() if each.kind != SpanKind.KERNEL] == [64, 32]
    assert [(each.name, each.total_ns) for each in profile.api_sums()] == [
        ("cudaDeviceSynchronize", 100_000),
        ("cudaLaunchKernel", 2000),
        ("cuLaunchKernelEx", 2000),
        ("cudaMemcpyAsync", 2000),
    ]


def test_nanoseconds_survive_times_since_1970(tmp_path):
    text = json.dumps(trace(event("kernel", "k", "TS", "DUR")))
    text = text.replace('"TS"', "1767225600123456.789").replace('"DUR"', "1e-1")
    (span,) = open_profile(write(tmp_path, text)).spans()
    assert (span.start_ns, span.end_ns) == (1767225600123456789, 1767225600123456889)


def test_gzipped_and_as_a_bare_list_and_with_the_categories_of_torch_1(tmp_path):
    events = trace(*WORK)["traceEvents"]
    old = json.dumps(events).replace("gpu_mem", "Mem").replace('"kernel"', '"Kernel"')
    old = old.replace("cuda_runtime", "Runtime")
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(old.encode()))
    profile = open_profile(path)
    expected = open_profile(write(tmp_path, trace(*WORK)))
    assert list(profile.spans()) == list(expected.spans()) and profile.gpu is None


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_encodings(tmp_path, encoding):
    path = tmp_path / "trace.json"
    path.write_bytes(("\ufeff" * encoding.endswith("be") + json.dumps(trace(*WORK))).encode(encoding))
    assert list(open_profile(path).spans()) == list(open_profile(write(tmp_path, trace(*WORK), "b.json")).spans())


def test_gpu_work_in_two_halves_is_left_out_and_counted(tmp_path):
    halves = [{**WORK[7], "ph": "B"}, {**WORK[7], "ph": "E"}, {**WORK[0], "ph": "B"}]
    told = r"left out: 1 GPU operation in two halves \(ph B and E\)"
    profile = open_profile(write(tmp_path, trace(*WORK, *halves)))
    assert re.match(told, profile.warnings[-1]) and len(list(profile.spans())) == 5
    with pytest.raises(DerbyError, match=rf"no GPU work in the trace \({told}"):
        open_profile(write(tmp_path, trace(*halves), "halves.json"))


def test_a_trace_of_the_gpu_alone_has_ranges_by_time(tmp_path):
    gpu = [each for each in WORK if each["cat"].startswith(("gpu_", "kernel"))]
    spans = list(open_profile(write(tmp_path, trace(*gpu))).spans())
    assert [span.ranges for span in spans] == [("step 1",), ("step 1",), (), (), ()]


def test_gpu_work_without_a_duration_is_left_out_and_counted(tmp_path):
    odd = [{key: value for key, value in WORK[7].items() if key != "dur"}, {**WORK[8], "dur": -1}]
    profile = open_profile(write(tmp_path, trace(*WORK, *odd)))
    assert list(profile.spans()) == list(open_profile(write(tmp_path, trace(*WORK), "whole.json")).spans())
    assert profile.warnings == [
        "left out: 2 GPU operations without valid times",
        "1 kernel has no launch in the file, so it is not known in which ranges they ran",
    ]
    with pytest.raises(DerbyError, match="no GPU work in the trace .left out: 1 GPU operation without valid times"):
        open_profile(write(tmp_path, trace(odd[0]), "none.json"))


@pytest.mark.parametrize("odd", [None, True, "soon", float("nan"), float("inf"), 1e300, 10**400, [], {}])
@pytest.mark.parametrize("key", ["ts", "dur"])
def test_times_that_are_none_are_left_out_and_counted(tmp_path, key, odd):
    whole = open_profile(write(tmp_path, trace(*WORK), "whole.json"))
    profile = open_profile(write(tmp_path, trace(*WORK, {**WORK[7], key: odd})))
    assert list(profile.spans()) == list(whole.spans())
    assert "left out: 1 GPU operation without valid times" in profile.warnings
    call = {**next(each for each in WORK if each["cat"] == "cuda_runtime"), "ts": odd}
    assert "left out: 1 call or range without valid times" in open_profile(write(tmp_path, trace(*WORK, call))).warnings


def test_a_trace_of_jax(tmp_path):
    """XLA's profiler: no categories, a GPU is a process, its streams are threads beside others that say the same."""

    def meta(what, named, pid, tid=0):
        return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": named}}

    def work(name, start, duration, tid=14, **args):
        return {"ph": "X", "pid": 1, "tid": tid, "ts": start, "dur": duration, "name": name, "args": args}

    events = [
        *(meta("process_name", "/device:GPU:3", 1), meta("process_name", "/host:CPU", 701)),
        *(meta("thread_name", "Stream #14(Compute,MemcpyD2D)", 1, 14), meta("thread_name", "XLA Ops", 1, 20)),
        {**work("cuLaunchKernel", 1, 2, correlation_id="12"), "pid": 701},
        {**work("python call", 1, 20), "pid": 701},
        work("loop_add_fusion_4", 10.5, 3.25, correlation_id="12", hlo_op="loop_add_fusion_4"),
        work("loop_add_fusion_4", 10.5, 3.25, 20),
        work("MemcpyD2H", 20, 1, memcpy_details="kind_src:device kind_dst:host size:1024 dest:0 async:1"),
        {},
    ]
    profile = open_profile(write(tmp_path, {"displayTimeUnit": "ns", "traceEvents": events}))
    kernel, copy = profile.spans()
    assert profile.form == "JAX trace"
    assert (kernel.name, kernel.start_ns, kernel.end_ns, kernel.device, kernel.stream) == (
        *("loop_add_fusion_4", 10_500, 13_750),
        *(3, 14),
    )
    assert (copy.name, copy.bytes) == ("[CUDA memcpy Device-to-Host]", 1024)
    assert [(call.name, call.calls) for call in profile.api_sums()] == [("cuLaunchKernel", 1)]
    assert profile.unlinked_launches == 0


def test_the_order_of_events_does_not_matter(tmp_path):
    expected = list(open_profile(write(tmp_path, trace(*WORK))).spans())
    for seed in range(5):
        events = random.Random(seed).sample(WORK, len(WORK))
        assert list(open_profile(write(tmp_path, trace(*events))).spans()) == expected


@pytest.mark.parametrize(
    "document,what",
    [
        ('{"traceEvents": [{"ph": "X", ', "no valid JSON .*cut off or damaged"),
        ({"results": []}, "no trace of torch.profiler"),
        ("[1, 2", "no valid JSON"),
        ('{"Type": 80}\n{"Type": 79}\n', "2: several JSON documents in one file; .* of nsys the SQLite export"),
        ([[[]]], "no GPU work"),
        (trace(event("cpu_op", "aten::mm", 1, 2)), "no GPU work"),
        (trace({"ph": "X", "cat": "kernel", "name": "k", "ts": "soon", "dur": 1}), "left out: 1 GPU operation without"),
        (trace({"ph": "X", "cat": "kernel", "ts": 1, "dur": 1}), "an event of the trace is malformed"),
    ],
)
def test_what_is_no_trace(tmp_path, document, what):
    path = write(tmp_path, document)
    with pytest.raises(DerbyError, match=what) as caught:
        open_profile(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


class TestRecognisedByContent:
    """Names say nothing."""

    def test_names_that_lie(self, tmp_path):
        path = write(tmp_path, trace(*WORK), "report.sqlite")
        assert open_profile(path).form == "torch.profiler trace"
        assert open_profile(standard(tmp_path / "trace.json")).form.startswith("nsys SQLite")

    @pytest.mark.parametrize(
        "name,data,what",
        [
            ("a.nsys-rep", b"\x00\x01\x02report", "nsys export --type sqlite"),
            ("a.qdrep", b"\x80\x00\xff" * 30, "nsys export --type sqlite"),
            ("a.qdstrm", b"\x00\x01\x02stream", "full nsys installation"),
            ("a.ncu-rep", b"NVR\x00\x01", "derby profile counters"),
            ("a.csv", b'==PROF== Connected\n"ID","Process ID","Kernel Name"\n', "derby profile counters"),
            ("a.parquet", b"PAR1\x00", "Parquet"),
            ("a.h5", b"\x89HDF\r\n", "HDF5"),
            ("a.zst", b"\x28\xb5\x2f\xfd\x00", "zstd"),
            ("a.csv", b"", "is empty"),
            ("a.json.gz", b"\x1f\x8b\x08\x00broken", "gzip"),
            (
                "b.json.gz",
                gzip.compress(json.dumps(trace(*WORK)).encode(), mtime=0)[:200],
                "cannot be read whole|damaged gzip",
            ),
            ("a.sqlite.gz", gzip.compress(b"SQLite format 3\0" + bytes(200), mtime=0), "gunzip"),
        ],
    )
    def test_what_is_none(self, tmp_path, name, data, what):
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(DerbyError, match=what) as caught:
            open_profile(path)
        assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)

    def test_zip(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr("a", "b")
        with pytest.raises(DerbyError, match="unpack"):
            open_profile(tmp_path / "a.zip")

    def test_no_file_and_a_folder(self, tmp_path):
        with pytest.raises(DerbyError, match="no such file"):
            open_profile(tmp_path / "nothing.sqlite")
        assert not (tmp_path / "nothing.sqlite").exists()
        with pytest.raises(DerbyError, match="is a folder"):
            open_profile(tmp_path)


def test_work_whose_launch_was_not_recorded_belongs_to_the_one_process_that_launched(tmp_path):
    profile = open_profile(write(tmp_path, trace(*WORK)))
    assert {span.process for span in profile.spans()} == {1}
    assert profile.unlinked_launches == 1
    other = event("cuda_runtime", "cudaLaunchKernel", 14, 1, pid=2, correlation=50)
    two = open_profile(write(tmp_path, trace(*WORK, other), "two.json"))
    assert {span.process for span in two.spans()} == {0, 1}  # its owner cannot be found


def step(start, pid, correlation=1):
    """A call in a range, and its kernel 20 us after the call."""
    return [
        event("user_annotation", f"at {start} of {pid}", start, 10, pid),
        event("cuda_runtime", "cudaLaunchKernel", start + 1, 4, pid, correlation=correlation),
        event("cuda_driver", "cuLaunchKernelEx", start + 2, 1, pid, correlation=correlation),
        event("kernel", "k", start + 21, 5, 0, 7, correlation=correlation, device=0, stream=7),
    ]


def test_an_id_that_comes_again_is_that_of_the_last_call_before_the_work(tmp_path):
    profile = open_profile(write(tmp_path, trace(*step(1000, 1), *step(100, 1))))
    assert [(launch, *span.ranges) for span, launch, _ in profile.launched()] == [
        (101_000, "at 100 of 1"),
        (1_001_000, "at 1000 of 1"),
    ]
    assert profile.warnings == []


def test_ids_of_several_processes_lead_to_no_call(tmp_path):
    """Ranks merged into one file: a kernel does not name its process."""
    profile = open_profile(write(tmp_path, trace(*step(100, 1), *step(103, 2), *step(200, 2, 5))))
    assert [(launch, span.ranges) for span, launch, _ in profile.launched()] == [
        *((None, ()), (None, ())),
        (201_000, ("at 200 of 2",)),
    ]
    assert profile.unlinked_launches == 2
    assert "several processes gave the same ids to their launches" in profile.warnings[0]


def test_work_that_the_file_has_twice_counts_once(tmp_path):
    """As in traces merged that overlap. Zero times and work without an id may be equal."""
    once = [*step(100, 1), event("kernel", "z", 300, 0, 0, 7, correlation=9), event("kernel", "n", 400, 5, 0, 7)]
    profile = open_profile(write(tmp_path, trace(*once, *once)))
    assert [(row.name, row.instances) for row in profile.sums()] == [("n", 2), ("k", 1), ("z", 2)]
    assert [call.calls for call in profile.api_sums()] == [1, 1]
    assert "left out: 3 GPU operations and calls that the file has twice" in profile.warnings


def test_one_id_for_all_launches_takes_no_longer(tmp_path):
    events = [each for number in range(5000) for each in step(100 * number, 1) if each["cat"] != "user_annotation"]
    began = time.monotonic()
    launched = list(open_profile(write(tmp_path, trace(*events))).launched())
    assert time.monotonic() - began < 5  # 0.3 s; twenty times as long if every kernel went through all calls
    assert {span.start_ns - launch for span, launch, _ in launched} == {20_000}
