"""The trace file: appended row by row, mended after a kill."""

from types import SimpleNamespace

from measuring import CPU, DEFINITION
from msgspec.structs import replace

from kernelderby.catalog import Catalog
from kernelderby.measure.run.ledger import Ledger
from kernelderby.measure.run.plan import Job
from kernelderby.measure.run.progress import Observer
from kernelderby.measure.run.rows import append_row, settled_keys
from kernelderby.rows.measurement import Measurement, Status, Timed
from kernelderby.store.appended import mend_last_line

ROW = Measurement(
    "d",
    {"uuid": "u", "axes": {"n": 1}, "inputs": {}},
    "s",
    Status.PASSED,
    "NVIDIA H200",
    "cupti-span-1",
    "2026-11-21T00:00:00+00:00",
    latency_us=3.0,
    samples_us=((3.0,),),
    solution_hash="h",
)
SOLUTION = SimpleNamespace(name="s", has_code="h".__eq__)
KEY = ("s", "u", "NVIDIA H200", "cupti-span-1")


def test_rows_are_appended_one_a_line(tmp_path):
    path = tmp_path / "h200" / "d.jsonl"
    append_row(path, ROW)
    append_row(path, ROW)
    assert path.read_text().count("\n") == 2
    assert mend_last_line(path) is None


def test_a_row_that_readers_would_leave_out_is_a_crash(misbehaviours):
    """Its solution would be measured again without end."""
    catalog = Catalog.open(misbehaviours)
    ledger, solution = Ledger(catalog, CPU, "a session", {}, Observer()), catalog.solution("honest")
    job = Job(catalog.definition(DEFINITION), catalog.workloads(DEFINITION)[0], (solution,))
    times = {"eager": Timed(2.0, ((2.0,),)), "busy": Timed(6.0, ((6.0,),))}
    with ledger.neighbours:
        ledger.write(job, solution, Status.PASSED, "", times=times, latency_us=2.0, samples_us=((2.0,),))
    [read] = Catalog.open(misbehaviours).traces(DEFINITION)
    assert read.status is Status.CRASHED and "contradict each other" in read.message and read.environment["tries"] == 1


def test_repair_moves_a_cut_line_aside(tmp_path):
    path = tmp_path / "d.jsonl"
    append_row(path, ROW)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:50])
    assert "cut short" in mend_last_line(path)
    assert path.read_bytes() == whole
    assert (tmp_path / "d.jsonl.damaged").read_bytes() == whole[:50] + b"\n"
    path.write_bytes(whole[:40])
    mend_last_line(path)
    assert path.read_bytes() == b""
    assert (tmp_path / "d.jsonl.damaged").read_bytes() == whole[:50] + b"\n" + whole[:40] + b"\n"


def test_repair_only_adds_the_newline_of_a_whole_last_line(tmp_path):
    path = tmp_path / "d.jsonl"
    append_row(path, ROW)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert mend_last_line(path) is None
    assert path.read_bytes() == whole
    assert not (tmp_path / "d.jsonl.damaged").exists()


def test_the_newest_row_settles_a_key():
    hung = replace(ROW, status=Status.TIMED_OUT, latency_us=None, samples_us=())
    assert settled_keys([ROW], [SOLUTION]) == {KEY}
    assert settled_keys([replace(ROW, status=Status.WRONG_VALUES)], [SOLUTION]) == {KEY}
    assert settled_keys([ROW, hung], [SOLUTION]) == set()
    assert settled_keys([hung, ROW], [SOLUTION]) == {KEY}
    assert settled_keys([replace(ROW, solution_hash=None)], [SOLUTION]) == set()
    assert settled_keys([ROW, replace(hung, solution_hash="former")], [SOLUTION]) == {KEY}
    assert settled_keys([ROW], []) == set()
