"""A run that is killed goes on where it stopped: no row lost, none repeated."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from measuring import CPU, DEFINITION, ends, measure, of_process

from kernelderby.catalog import Catalog
from kernelderby.measure.fence import processes
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.run.plan import Settings, make_plan
from kernelderby.measure.run.rows import TRIES
from kernelderby.measure.wire.replies import GpuSeen
from kernelderby.rows.measurement import Status

pytest.importorskip("torch")

SOLUTIONS = ["honest", "not_a_number"]
RUN = """
import sys
from pathlib import Path

from kernelderby.measure.wire import early

early._import_torch_for_all()  # before anything imports Triton
sys.path.insert(0, sys.argv[1])
from measuring import measure

measure(Path(sys.argv[2]), ["honest", "not_a_number"], rounds=int(sys.argv[3]))
"""


def traces(root: Path) -> Path:
    return Catalog.open(root).traces_path("cpu", DEFINITION)


def test_a_killed_run_is_resumed(misbehaviours):
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, str(Path(__file__).parent), str(misbehaviours), "300"], start_new_session=True
    )
    path = traces(misbehaviours)
    # Rows are there when a workload's race has ended; the second one then takes its many turns.
    while not (path.is_file() and b"\n" in path.read_bytes()):
        assert run.poll() is None
        time.sleep(0.02)
    workers = {pid: of_process(pid) for pid in processes.children(run.pid)}
    assert workers and all(workers.values())
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    written = path.read_text()
    assert 1 <= written.count("\n") < 4
    rows = measure(misbehaviours, SOLUTIONS)
    assert path.read_text().startswith(written), "a row was lost"
    counted = Counter((row.solution, row.uuid) for row in Catalog.open(misbehaviours).traces(DEFINITION))
    assert len(counted) == 4 and set(counted.values()) == {1}
    assert len(rows) + written.count("\n") == 4
    assert not measure(misbehaviours, SOLUTIONS), "nothing is left to do"
    assert all(ends(pid, began) for pid, (_, began) in workers.items()), "workers outlived their runner"


def test_a_damaged_last_line_is_moved_aside_and_measured_again(misbehaviours):
    measure(misbehaviours, ["honest"])
    path = traces(misbehaviours)
    whole = path.read_bytes()
    first, second, _ = whole.split(b"\n")
    path.write_bytes(first + b"\n" + second[:100])
    rows = measure(misbehaviours, ["honest"])
    assert len(rows) == 1 and rows[0].status is Status.PASSED
    assert path.with_name(path.name + ".damaged").read_bytes() == second[:100] + b"\n"
    assert path.read_bytes().startswith(first + b"\n")
    assert len(Catalog.open(misbehaviours).traces(DEFINITION)) == 2


def test_a_changed_solution_is_measured_again_and_together_takes_its_competitors_along(misbehaviours):
    measure(misbehaviours, SOLUTIONS, workloads=("8",), rounds=1)
    main = misbehaviours / f"solutions/tests/elementwise/{DEFINITION}/honest/main.py"
    main.write_text(main.read_text() + "\nEDITED = True\n")
    catalog = Catalog.open(misbehaviours)

    def planned(settings):
        plan = make_plan(catalog, CPU, settings, SOLUTIONS, workloads=("8",))
        return [solution.name for job in plan.jobs for solution in job.solutions]

    assert planned(Settings()) == ["honest"]
    assert planned(Settings(together=True)) == SOLUTIONS
    assert planned(Settings(again=True)) == SOLUTIONS


def test_skipped_with_the_reason_and_no_row(misbehaviours):
    plan = make_plan(Catalog.open(misbehaviours), CPU, Settings(), ["honest", "wants_a_library"])
    assert plan.skipped == {"wants_a_library": "module no_such_library is not installed"}
    assert [solution.name for job in plan.jobs for solution in job.solutions] == ["honest", "honest"]


def test_rows_of_another_gpu_of_the_kind_count_unless_asked(small_set):
    solution = Catalog.open(small_set).solution("toy_baseline")
    (path,) = (small_set / "traces").rglob("*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [row for row in rows if row["solution"] == solution.name]
    for row in rows:
        row["measurement"]["solution_hash"] = solution.hash
        row["measurement"]["environment"]["gpu_uuid"] = "GPU-one"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settled = {}
    for uuid in ("GPU-one", "GPU-other"):
        machine = Machine("cuda", gpu=GpuSeen("NVIDIA H200", "9.0", uuid), protocol=rows[0]["measurement"]["protocol"])
        for this_gpu in (False, True):
            plan = make_plan(Catalog.open(small_set), machine, Settings(this_gpu=this_gpu), [solution.name])
            settled[uuid, this_gpu] = plan.settled
    count = len({row["workload"]["uuid"] for row in rows})
    assert count and settled == {
        ("GPU-one", False): count,
        ("GPU-one", True): count,
        ("GPU-other", False): count,
        ("GPU-other", True): 0,
    }


def test_a_crash_counts_after_a_fixed_number_of_tries(misbehaviours):
    """Best of many runs is no row: the third crash stands, and its row says which try it was."""
    found = [measure(misbehaviours, ["kills_its_process"], workloads=("8",)) for _ in range(TRIES + 1)]
    assert [len(rows) for rows in found] == [1] * TRIES + [0]
    told = [rows[0].message.rpartition("(")[2] for rows in found[:TRIES]]
    then = ["the next run tries again"] * (TRIES - 1) + ["it counts"]
    assert told == [f"try {number + 1} of {TRIES}: {each})" for number, each in enumerate(then)]
    assert [rows[0].environment["tries"] for rows in found[:TRIES]] == [1, 2, 3]
    assert len(measure(misbehaviours, ["kills_its_process"], workloads=("8",), again=True)) == 1
