"""Ten ways to misbehave, in real processes beside an honest solution: each ends in its own status, the run goes on."""

import json
import re
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from measuring import CPU, DEFINITION, copied_set, ends, measure, said_by

from kernelderby.catalog import Catalog
from kernelderby.measure.run.plan import Settings, make_plan
from kernelderby.rows.measurement import Status

pytest.importorskip("torch")

STATUS_OF = {
    "honest": Status.PASSED,
    "raises": Status.RAISED,
    "kills_its_process": Status.CRASHED,
    "hangs": Status.TIMED_OUT,
    "runs_out_of_memory": Status.OUT_OF_MEMORY,
    "wrong_shape": Status.WRONG_SHAPE,
    "wrong_dtype": Status.WRONG_DTYPE,
    "not_a_number": Status.NOT_A_NUMBER,
    "writes_nothing": Status.UNWRITTEN,
    "changes_an_input": Status.INPUT_CHANGED,
    "cached_output": Status.STALE_OUTPUT,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """All of them on one workload: root of the set, rows by solution."""
    root = copied_set(tmp_path_factory.mktemp("all"))
    rows = measure(root, list(STATUS_OF), workloads=("8",), timeout_seconds=8)
    assert sorted(row.solution for row in rows) == sorted(STATUS_OF)
    return root, {row.solution: row for row in rows}


@pytest.mark.parametrize(("solution", "status"), STATUS_OF.items())
def test_each_ends_in_its_own_status(run, solution, status):
    row = run[1][solution]
    assert row.status is status, row.message
    assert (row.latency_us is None) == (status is not Status.PASSED)
    assert status is Status.PASSED or row.message


def test_the_honest_one_has_its_rounds(run):
    row = run[1]["honest"]
    assert [len(spans) for spans in row.samples_us] == [4, 4]
    assert row.latency_us > 0 and row.reference_latency_us > 0
    assert row.correctness.matched_ratio == {"tight": 1.0}
    assert row.environment["host_cpu"]


def test_what_a_dying_process_printed_is_in_a_log_and_not_in_its_row(run):
    row = run[1]["kills_its_process"]
    assert "SIGKILL" in row.message and "about to go" not in row.message
    assert "about to go" in said_by(row)
    raised = run[1]["raises"].message
    assert re.fullmatch(r"ValueError \(log [0-9a-f]{12}\)", raised), "a known class, and a hash"


def test_the_rows_on_disk_are_the_rows(run):
    root, rows = run
    catalog = Catalog.open(root)
    lines = catalog.traces_path("cpu", DEFINITION).read_text().splitlines()
    assert sorted(lines) == sorted(json.dumps(row.to_trace()) for row in rows.values())
    assert {row.solution: row.status for row in catalog.traces(DEFINITION)} == STATUS_OF


def test_flashinfer_bench_reads_the_rows(run):
    data = pytest.importorskip("flashinfer_bench.data")
    path = Catalog.open(run[0]).traces_path("cpu", DEFINITION)
    for line in path.read_text().splitlines():
        data.Trace.model_validate_json(line)


def test_what_the_machine_may_have_caused_is_tried_again(run):
    plan = make_plan(Catalog.open(run[0]), CPU, Settings(), list(STATUS_OF), workloads=("8",))
    assert [solution.name for job in plan.jobs for solution in job.solutions] == [
        name for name in STATUS_OF if STATUS_OF[name] in (Status.CRASHED, Status.TIMED_OUT, Status.OUT_OF_MEMORY)
    ]
    assert plan.settled == 8


def test_a_killed_worker_takes_its_children_along(misbehaviours):
    main = misbehaviours / f"solutions/tests/elementwise/{DEFINITION}/hangs/main.py"
    # Shared memory is one of the few places that a worker may write to.
    with tempfile.NamedTemporaryFile("r", dir="/dev/shm", prefix="kernelderby-test-") as told:
        main.write_text(
            "import subprocess\n\n\ndef run(x, y, factor, out):\n"
            "    child = subprocess.Popen(['sleep', '300'])\n"
            "    began = open(f'/proc/{child.pid}/stat').read().rpartition(')')[2].split()[19]\n"
            f"    open({told.name!r}, 'w').write(f'{{child.pid}} {{began}}')\n"
            "    child.wait()\n"
        )
        for seconds in (4, 30, 120):  # more where it had not come so far
            rows = measure(misbehaviours, ["hangs"], workloads=("8",), timeout_seconds=seconds)
            assert [row.status for row in rows] == [Status.TIMED_OUT]
            if found := told.read():
                break
    pid, began = found.split()
    assert ends(int(pid), began)


def test_rivals_stand_still_while_a_solution_is_witnessed(tmp_path, monkeypatch):
    """Or they could make the judge's clock over it run long, and its row a false one."""
    from kernelderby.measure.judge.table import JudgesTable
    from kernelderby.measure.wire.process import WorkerProcess

    root = copied_set(tmp_path)
    folder = root / f"solutions/tests/elementwise/{DEFINITION}"
    shutil.copytree(folder / "honest", folder / "rival")
    text = (folder / "rival/solution.toml").read_text()
    (folder / "rival/solution.toml").write_text(text.replace('"honest"', '"rival"'))
    found, doubt = [], JudgesTable.doubt

    def looked(self, race, *given):
        time.sleep(0.05)
        states = {
            pid: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in WorkerProcess._alive
        }
        found.append((states.pop(race.exchange.executor.worker.pid), set(states.values())))
        return doubt(self, race, *given)

    monkeypatch.setattr(JudgesTable, "doubt", looked)
    rows = measure(root, ["honest", "rival"], workloads=("8",))
    assert [row.status for row in rows] == [Status.PASSED] * 2
    assert [own for own, _ in found] == ["S", "S"] and [rivals for _, rivals in found] == [{"T"}, {"T"}]


@pytest.mark.parametrize("name", ["é" * 120, "a" * 250])
def test_a_name_that_fills_a_files_name_is_no_mistake(misbehaviours, name):
    [own] = misbehaviours.glob("solutions/**/honest")
    path = own.rename(own.with_name(name)) / "solution.toml"
    path.write_text(path.read_text().replace('"honest"', f'"{name}"'))
    [row] = measure(misbehaviours, [name], workloads=("8",))
    assert row.status is Status.PASSED, said_by(row)
