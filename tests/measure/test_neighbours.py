"""Two runs at once, as on two GPUs of one kind: one traces file, no row twice, none lost; rows that no run wrote go."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")
from measuring import CPU, DEFINITION, copied_set, measure

import kernelderby
from kernelderby.api.adhoc import AdHoc
from kernelderby.catalog import Catalog
from kernelderby.errors import DerbyError
from kernelderby.measure.run import runner
from kernelderby.measure.run.neighbours import Neighbours
from kernelderby.measure.run.rows import claim

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(Path(kernelderby.__file__).parents[1]), str(Path(__file__).parent)]),
}
RUN = """
    import sys
    from contextlib import nullcontext
    from pathlib import Path
    from kernelderby.measure.wire import early
    early._import_torch_for_all()  # before anything imports Triton
    from kernelderby.measure.run import runner
    from measuring import measure
    runner.exclusive = lambda *_: nullcontext()  # two GPUs, two locks

    def planned():  # both before one of them begins: a run may take less than the other takes to start
        print("ready", flush=True)
        sys.stdin.readline()

    print(len(measure(Path(sys.argv[1]), ["honest", "raises"], again=True, planned=planned)))
"""


def keys(root):
    path = Catalog.open(root).traces_path(CPU.id, DEFINITION)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [(row["solution"], row["workload"]["uuid"]) for row in rows], [row["measurement"]["session"] for row in rows]


def test_two_runs_share_the_work_and_the_file(misbehaviours):
    both = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(RUN), str(misbehaviours)],
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    assert [run.stdout.readline() for run in both] == ["ready\n", "ready\n"]
    for run in both:
        run.stdin.write("go\n")
        run.stdin.flush()
    told = [run.communicate(timeout=250)[0] for run in both]
    assert [run.returncode for run in both] == [0, 0]
    found, _ = keys(misbehaviours)
    workloads = len(Catalog.open(misbehaviours).workloads(DEFINITION))
    assert len(found) == len(set(found)) == 2 * workloads == sum(map(int, told))
    assert not list((misbehaviours / "traces").rglob("*.foreign"))


def test_rows_written_between_plan_and_run_are_not_measured_again(misbehaviours):
    first = []
    rows = measure(misbehaviours, ["honest"], planned=lambda: first.extend(measure(misbehaviours, ["honest"])))
    assert first and rows == []


def test_a_workload_that_another_run_has_in_hand_is_left_to_it(misbehaviours):
    catalog = Catalog.open(misbehaviours)
    first, second = (workload.uuid for workload in catalog.workloads(DEFINITION)[:2])
    with claim(catalog.traces_path(CPU.id, DEFINITION), first) as is_ours:
        assert is_ours
        with claim(catalog.traces_path(CPU.id, DEFINITION), first) as is_ours:
            assert not is_ours
        rows = measure(misbehaviours, ["honest"], rounds=1)
    assert second in {row.uuid for row in rows} and first not in {row.uuid for row in rows}


def test_a_full_disk_is_told_before_anything_is_measured(misbehaviours, monkeypatch):
    """One line, and no worker was started for a solution."""

    def full(path):
        raise DerbyError(f"{path}: no rows can be written there (No space left on device); make room")

    monkeypatch.setattr("kernelderby.measure.run.rows.expect_writable", full)
    monkeypatch.setattr(runner.Runner, "_run_job", lambda *_: pytest.fail("it measured"))
    with pytest.raises(DerbyError, match="no rows can be written"):
        measure(misbehaviours, ["honest"])


ALREADY_MEASURED = """
    import sys
    from pathlib import Path
    from kernelderby.catalog import Catalog
    from kernelderby.measure.run.ledger import Ledger
    from kernelderby.measure.run.progress import Observer
    from measuring import CPU, DEFINITION

    catalog = Catalog.open(Path(sys.argv[1]))
    ledger = Ledger(catalog, CPU, "a session", {}, Observer())
    with ledger.neighbours:
        ledger.open(catalog.traces_path(CPU.id, DEFINITION))
        print("ready", flush=True)
        sys.stdin.readline()
        ledger.close()
"""


@pytest.mark.parametrize("how", ["merge", "record"])
def test_rows_that_a_command_adds_beside_a_run_are_no_strangers(misbehaviours, tmp_path, derby, how):
    """To an operator that the run has measured before: nobody holds a claim there."""
    other = copied_set(tmp_path / "other")
    measure(other, ["honest"], workloads=("8",), rounds=1)
    run = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(ALREADY_MEASURED), str(misbehaviours)],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout.readline() == "ready\n"
    if how == "merge":
        assert derby("merge", other, "--root", misbehaviours)[0] == 0
    else:
        there, home = Catalog.open(other), Catalog.open(misbehaviours)
        AdHoc(there, home, there.definition(DEFINITION), None, ()).keep_rows(record=True)
    run.communicate("go on\n", timeout=60)
    assert run.returncode == 0 and len(keys(misbehaviours)[0]) == 1
    assert not list((misbehaviours / "traces").rglob("*.foreign"))


OTHER = """
    import sys, time
    from pathlib import Path
    from kernelderby.measure.run.neighbours import Neighbours
    with Neighbours(Path(sys.argv[1])):
        print("there", flush=True)
        time.sleep(60)
"""


def test_a_process_that_a_run_has_started_is_no_neighbour(tmp_path):
    """A solution's that registers itself, say."""
    with Neighbours(tmp_path) as neighbours:
        own = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(OTHER), str(tmp_path)],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            text=True,
        )
        own.stdout.readline()
        assert neighbours.look() == set() and neighbours.seen_at == 0
        own.kill()
        own.communicate()


def test_a_neighbour_is_seen_and_so_is_its_end(tmp_path):
    """Two that neither has started the other."""
    watch = f"""
    import sys, time
    from pathlib import Path
    from kernelderby.measure.run.neighbours import Neighbours
    with Neighbours(Path({str(tmp_path)!r})) as neighbours:
        print("there", flush=True)
        for wanted in (1, 0):
            until = time.monotonic() + 30
            while len(neighbours.look()) != wanted and time.monotonic() < until:
                time.sleep(0.02)
            print(len(neighbours.look()), neighbours.seen_at > 0, flush=True)
    """
    watcher = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(watch)], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    assert watcher.stdout.readline() == "there\n"
    other = subprocess.Popen([sys.executable, "-c", textwrap.dedent(OTHER), str(tmp_path)], env=ENVIRONMENT)
    assert watcher.stdout.readline() == "1 True\n"
    other.kill()
    other.wait()
    assert watcher.communicate(timeout=40)[0] == "0 True\n" and watcher.returncode == 0
