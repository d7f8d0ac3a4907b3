"""Profiling without a GPU: finding nsys, its fallback, bounded processes, and errors in one line."""

from __future__ import annotations

import json
import os
import select
import signal
import sqlite3
import stat
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from kernelderby.catalog import Catalog
from kernelderby.errors import DerbyError
from kernelderby.measure.machine import tools
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.record import ncu, nsys
from kernelderby.measure.record.run import (
    OuterProfiler,
    ProcessFailed,
    ProfileJob,
    count_kernels,
    plan_profiles,
    run_bounded,
    run_profiles,
)
from kernelderby.measure.wire.process import worker_environment
from kernelderby.measure.wire.replies import GpuSeen
from kernelderby.rows.measurement import Status

# Stands in for nsys: makes what its first line says, from the words after --output.
FAKE = """#!{python}
import pathlib, subprocess, sys
words, makes = sys.argv[1:], {makes!r}
output = pathlib.Path(words[words.index("--output") + 1])
if words[0] == "profile":
    print(*words)
    command = words[words.index("--output") + 2:]
    if command != ["true"]:
        subprocess.run(command, check=True)
    if makes:
        output.with_name(output.name + makes).write_text("report")
else:
    output.write_text("sqlite of " + pathlib.Path(words[-1]).read_text())
"""


def only_on_path(monkeypatch):
    """No tool of this machine is found, except on PATH."""
    monkeypatch.setattr(tools, "PLACES", {})
    monkeypatch.setattr(tools, "TOOLKIT", "/nonexistent")
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def fake_nsys(tmp_path, monkeypatch):
    """fake_nsys(suffix of its report) puts one on PATH, the only nsys there."""
    only_on_path(monkeypatch)

    def make(makes: str, folder: str = "bin") -> Path:
        file = tmp_path / folder / "nsys"
        file.parent.mkdir(exist_ok=True)
        file.write_text(FAKE.format(python=sys.executable, makes=makes))
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{file.parent}{os.pathsep}{os.environ['PATH']}")
        return file

    return make


def test_an_nsys_that_makes_reports_is_taken(fake_nsys):
    file = fake_nsys(".nsys-rep")
    assert nsys.find_working() == (file, [])


def test_an_nsys_that_cannot_import_its_stream_is_passed_over_with_the_reason(fake_nsys):
    file = fake_nsys(".qdstrm")
    found, problems = nsys.find_working()
    assert found is None and problems == [f"{file}: leaves a .qdstrm that it cannot import, so it makes no report"]


def test_the_usual_places_come_after_the_path_newest_first(fake_nsys, tmp_path, monkeypatch):
    broken = fake_nsys("")
    for version in ("2025.9.1", "2025.10.1"):
        fake_nsys(".nsys-rep", folder=f"nsight-systems-{version}")
    monkeypatch.setenv("PATH", str(broken.parent))
    monkeypatch.setattr(tools, "PLACES", {"nsys": (f"{tmp_path}/nsight-systems-*/nsys",)})
    assert [file.parent.name for file in tools.find_tools("nsys")] == [
        "bin",
        "nsight-systems-2025.10.1",
        "nsight-systems-2025.9.1",
    ]
    found, problems = nsys.find_working()
    assert found.parent.name == "nsight-systems-2025.10.1" and len(problems) == 1


def test_no_nsys_at_all(monkeypatch):
    only_on_path(monkeypatch)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert nsys.find_working() == (None, ["nsys is neither on PATH nor in the usual places"])


def test_a_recording_is_exported_and_the_report_kept_beside_it(fake_nsys, tmp_path):
    file, out = fake_nsys(".nsys-rep"), tmp_path / "out"
    out.mkdir()
    nsys.record(file, [sys.executable, "-c", "pass"], dict(os.environ), 30, out / "p.sqlite")
    assert (out / "p.sqlite").read_text() == "sqlite of report"
    assert sorted(entry.name for entry in out.iterdir()) == ["p.nsys-rep", "p.sqlite"]


def test_a_recording_without_a_report_says_so_and_leaves_nothing(fake_nsys, tmp_path):
    file, out = fake_nsys(".qdstrm"), tmp_path / "out"
    out.mkdir()
    with pytest.raises(ProcessFailed, match=r"left no report, only report\.qdstrm"):
        nsys.record(file, [sys.executable, "-c", "pass"], dict(os.environ), 30, out / "p.sqlite")
    assert list(out.iterdir()) == []


def test_a_stream_that_grows_without_end_is_stopped(fake_nsys, tmp_path, monkeypatch):
    monkeypatch.setattr(nsys, "STREAM_LIMIT_BYTES", 1 << 20)
    grow = "import os, time; open(os.environ['TMPDIR'] + '/stream', 'wb').write(bytes(2 << 20)); time.sleep(60)"
    with pytest.raises(ProcessFailed, match="grew past 1 MiB"):
        nsys.record(fake_nsys(".nsys-rep"), [sys.executable, "-c", grow], dict(os.environ), 50, tmp_path / "p.sqlite")


def test_a_bounded_process_and_its_children_end_in_time(tmp_path):
    """The child holds a pipe open while it lives; neither would end within an hour."""
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    child = f"import time; held = open({str(pipe)!r}, 'wb', 0); held.write(b'1'); time.sleep(3600)"
    code = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(3600)"
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for seconds in (1, 10, 100):  # more where the child had not begun
        with pytest.raises(ProcessFailed, match=f"no end within {seconds} s") as ended:
            run_bounded([sys.executable, "-c", code], dict(os.environ), seconds)
        assert ended.value.status is Status.TIMED_OUT
        if select.select([reading], [], [], 0)[0] and os.read(reading, 1):
            break
    else:
        pytest.fail("the child never began")
    os.set_blocking(reading, True)
    assert os.read(reading, 1) == b"", "its end closes the pipe"
    os.close(reading)


def test_a_bounded_process_that_fails_shows_the_end_of_its_output():
    with pytest.raises(ProcessFailed, match="ended with code 3\nlast words"):
        run_bounded([sys.executable, "-c", "print('last words'); raise SystemExit(3)"], dict(os.environ), 30)


def test_under_nohup_a_hangup_ends_nothing():
    code = "import os, signal, sys; from kernelderby.measure.record.run import run_bounded; "
    code += "signal.signal(signal.SIGHUP, signal.SIG_IGN); kill = f'kill -HUP {os.getpid()}'; "
    code += "run_bounded(['sh', '-c', kill], dict(os.environ), 60); print('still here')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "still here\n"


def test_what_was_started_ends_when_this_process_is_told_to(tmp_path):
    """SIGTERM, as of `timeout` or a batch system: the command, in a session of its own, would not get it."""
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    command = f"import time; held = open({str(pipe)!r}, 'wb', 0); held.write(b'1'); time.sleep(3600)"
    code = "import os, sys; from kernelderby.measure.record.run import run_bounded; "
    code += f"run_bounded([sys.executable, '-c', {command!r}], dict(os.environ), 3600)"
    process = subprocess.Popen([sys.executable, "-c", code])
    with open(pipe, "rb", 0) as reading:
        assert reading.read(1) == b"1", "the command has begun"
        process.terminate()
        assert reading.read(1) == b"", "its end closes the pipe"
    assert process.wait() == -signal.SIGTERM


# Stands in for ncu: writes its CSV, or only the error that it gives where counters are not for everybody.
FAKE_NCU = """#!{python}
import pathlib, subprocess, sys
words = sys.argv[1:]
log = pathlib.Path(words[words.index("--log-file") + 1])
subprocess.run(words[words.index("--metrics") + 2:], check=True)
log.write_text({text!r})
"""
TABLE = (
    '==PROF== Connected\n"ID","Kernel Name","Block Size","Grid Size"\n"","","",""\n"0","a","(1, 1, 1)","(1, 1, 1)"\n'
)


@pytest.mark.parametrize("text, found", [(TABLE, 1), ("==ERROR== ERR_NVGPUCTRPERM - no permission\n", None)])
def test_a_fake_ncu_is_asked_for_each_call_and_its_error_is_the_reason(tmp_path, text, found):
    tool, path = tmp_path / "ncu", tmp_path / "a.ncu.csv"
    tool.write_text(FAKE_NCU.format(python=sys.executable, text=text))
    tool.chmod(0o755)
    words = [sys.executable, "-c", "pass"]
    if found is None:
        with pytest.raises(ProcessFailed, match="counted nothing: ==ERROR== ERR_NVGPUCTRPERM"):
            ncu.record(tool, words, dict(os.environ), 30, path)
        assert not path.exists()
    else:
        ncu.record(tool, words, dict(os.environ), 30, path)
        assert ncu.count_kernels(path) == found


def test_the_worker_is_told_to_start_and_stop_the_profiler_at_each_call(checkout, tmp_path):
    catalog = Catalog.open(checkout)
    pair = plan_profiles(catalog, GPU, ["triton_compact"], [], ["seq_len=1"])[0][0]

    def counts(words: list[str], environment: dict[str, str], timeout: float, path: Path) -> None:
        request = json.loads(Path(words[-1]).read_text())
        assert request["call_by_call"] is True and request["output"] is None
        path.write_text(TABLE)
        done = {"ok": True, "status": "passed", "message": "", "correctness": None, "iterations": 3}
        Path(request["reply"]).write_text(json.dumps(done))

    around = OuterProfiler(counts, ncu.SUFFIX, ncu.count_kernels, call_by_call=True)
    (result,) = run_profiles(catalog, GPU, [pair], tmp_path, 3, 30, around)
    assert result.path == tmp_path / f"{pair.stem}.ncu.csv" and (result.kernels, result.iterations) == (1, 3)


def test_flashinfer_bench_gets_a_view_of_the_set_with_one_workload(small_set, tmp_path):
    catalog, folder = Catalog.open(small_set), tmp_path / "view"
    folder.mkdir()
    definition = next(iter(catalog.definitions.values()))
    chosen = catalog.workloads(definition.name)[1]
    nsys.view_of_set(small_set, folder, definition, [chosen])
    view = Catalog.open(folder)
    assert [workload.uuid for workload in view.workloads(definition.name)] == [chosen.uuid]
    assert view.solutions.keys() == catalog.solutions.keys()
    assert not (folder / "traces").exists()
    bench = pytest.importorskip("flashinfer_bench.data")
    seen = bench.TraceSet.from_path(str(folder))
    assert seen.definitions.keys() == {definition.name}
    assert [trace.workload.uuid for trace in seen.workloads[definition.name]] == [chosen.uuid]


# A lock of its own: one run at a time has a GPU, and these tests may run twice on a machine.
GPU = Machine("cuda", GpuSeen("NVIDIA H200", "9.0", f"GPU-{uuid.uuid4()}"))


def test_each_pair_has_a_file_named_for_people(checkout):
    pairs, skipped = plan_profiles(Catalog.open(checkout), GPU, ["triton_compact"], [], ["901", "seq_len=56"])
    assert [pair.stem for pair in pairs] == ["triton_compact_seq_len56_d1506003", "triton_compact_seq_len901_cd5fd1a5"]
    assert skipped == {}


def test_a_worker_that_cannot_record_is_one_line(checkout, tmp_path, monkeypatch):
    """Here the real worker runs: there is no cupti-python on this machine, or no GPU for it."""
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    pairs, _ = plan_profiles(Catalog.open(checkout), GPU, ["triton_compact"], [], ["seq_len=1"])
    with pytest.raises(DerbyError) as error:
        list(run_profiles(Catalog.open(checkout), GPU, pairs, tmp_path, 3, 120))
    assert "cupti" in str(error.value).lower() and "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_dies_is_a_result_with_its_last_words(checkout, tmp_path):
    catalog = Catalog.open(checkout)
    pair = plan_profiles(catalog, GPU, ["triton_compact"], [], ["seq_len=1"])[0][0]

    def dies(words: list[str], environment: dict[str, str], timeout: float, path: Path) -> None:
        run_bounded([sys.executable, "-c", "print('out of luck'); raise SystemExit(9)"], environment, timeout)

    (result,) = run_profiles(catalog, GPU, [pair], tmp_path, 3, 30, OuterProfiler(dies, ".sqlite", count_kernels))
    assert result.path is None and result.status == Status.CRASHED and "out of luck" in result.message


def test_what_the_worker_answers_becomes_the_result(checkout, tmp_path):
    catalog = Catalog.open(checkout)
    pair = plan_profiles(catalog, GPU, ["triton_compact"], [], ["seq_len=1"])[0][0]
    assert isinstance(pair, ProfileJob)

    def answers(words: list[str], environment: dict[str, str], timeout: float, path: Path) -> None:
        request = json.loads(Path(words[-1]).read_text())
        assert request["output"] is None and request["case"]["sizes"]["seq_len"] == 1
        Path(request["reply"]).write_text(
            json.dumps(
                {"ok": True, "status": "wrong_values", "message": "0.5 of the elements match", "correctness": None}
            )
        )

    (result,) = run_profiles(catalog, GPU, [pair], tmp_path, 3, 30, OuterProfiler(answers, ".sqlite", count_kernels))
    assert result.path is None and result.status == "wrong_values" and "0.5" in result.message


def test_flashinfer_bench_without_a_kernel_in_the_report_is_a_result_and_the_next_pair_goes_on(
    checkout, tmp_path, monkeypatch
):
    catalog = Catalog.open(checkout)
    pairs = plan_profiles(catalog, GPU, ["triton_compact"], [], ["seq_len=1", "seq_len=56"])[0]
    tables = iter(["NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_KERNEL"])
    switches, evaluations = [], iter([{"status": "PASSED"}, {"status": "INCORRECT_NUMERICAL"}])

    def exports(nsys_path, words, environment, timeout, path, capture):
        switches.append(capture)
        assert words[-6:] == ["--atol", "1", "--rtol", "0.3", "--required-matched-ratio", "0.85"]
        rows = Path(words[words.index("--local") + 1], "traces", "moe", "rows.jsonl")
        rows.parent.mkdir(parents=True)
        rows.write_text(json.dumps({"evaluation": next(evaluations)}) + "\n")
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(f"CREATE TABLE {next(tables)} (start INT)")

    monkeypatch.setattr(nsys, "record", exports)
    monkeypatch.setattr(nsys, "missing_inputs", lambda root, workload: None)
    first, second = nsys.flashinfer_bench_profiles(Path("nsys"), catalog, GPU, pairs, tmp_path, 30)
    assert first.path is None and first.status == Status.CRASHED and "nsys saw no kernel" in first.message
    assert second.path is not None and second.status == Status.PASSED
    assert second.warnings == ["flashinfer-bench says INCORRECT_NUMERICAL: the file holds its checks and no timed call"]
    assert switches == [nsys.SAVE_OFTEN] * 2, "its processes may end before what nsys holds of them is saved"


def test_flashinfer_bench_is_not_started_without_the_inputs(checkout, tmp_path, monkeypatch):
    """It would say so in its log, run nothing, and end with code 0."""
    catalog = Catalog.open(checkout)
    pairs = plan_profiles(catalog, GPU, ["triton_compact"], [], ["seq_len=56"])[0]
    monkeypatch.setattr(catalog, "root", tmp_path)
    monkeypatch.setattr(nsys, "record", None)
    (result,) = nsys.flashinfer_bench_profiles(Path("nsys"), catalog, GPU, pairs, tmp_path, 30)
    assert result.path is None and "d1506003" in result.message and "derby pack" in result.message


def test_the_workers_environment_finds_this_package(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("MY_TOKEN", "secret")
    environment = worker_environment()
    assert environment.keys().isdisjoint({"TRITON_INTERPRET", "MY_TOKEN"})
    assert (Path(environment["PYTHONPATH"].split(os.pathsep)[0]) / "kernelderby" / "measure").is_dir()


def test_without_a_gpu_the_command_is_one_line_and_makes_no_folder(small_set, derby, monkeypatch):
    monkeypatch.setattr(
        "kernelderby.measure.machine.probe.find_machine",
        lambda root, device: Machine("cuda", gpu_missing="no CUDA GPU can be used"),
    )
    code, out, error = derby("profile", "run", "--root", small_set)
    assert (code, out) == (1, "") and error.startswith("derby: no CUDA GPU can be used") and error.count("\n") == 1
    assert not (small_set / "reports").exists()


def test_flashinfer_benchs_processes_cannot_be_recorded_with_cupti(small_set, derby):
    code, _, error = derby("profile", "run", "--harness", "flashinfer-bench", "--root", small_set)
    assert code == 1 and "--with nsys" in error


def test_out_must_have_a_parent(small_set, derby, tmp_path):
    code, _, error = derby("profile", "run", "--out", tmp_path / "no" / "such", "--root", small_set)
    assert code == 1 and "does not exist; create it first" in error
