"""A real Ray on this machine, on the CPU (protocol cpu-wall). `make test` takes the first run alone; all of it:
DERBY_TESTS_ALL=1 python -m pytest -n0 tests/measure/test_cluster.py. By hand: kill_cluster.py, signal_cluster.py."""

import json
import os
import signal
import subprocess
import sys

import kill_cluster
import pytest
import signal_cluster
from measuring import CPU, copied_set

from kernelderby.catalog import Catalog
from kernelderby.measure.cluster.host import packed, unpack
from kernelderby.measure.fence import landlock
from kernelderby.measure.judge.secret import of_workload
from kernelderby.measure.run.plan import Settings, make_plan

pytest.importorskip("ray")
ESCAPES = """
try:
    print("out", file=open("{}", "w"))
except PermissionError:
    pass
"""
FEW = ["--rounds", "1", "--most-rounds", "1", "--iterations", "2", "--timeout", "60", "--solutions", "honest,raises"]
slow = pytest.mark.skipif("DERBY_TESTS_ALL" not in os.environ, reason="DERBY_TESTS_ALL=1 takes it, see docs/cluster.md")


def derby(*words):
    command = [sys.executable, "-m", "kernelderby.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env={**os.environ, "RAY_ADDRESS": ""})


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of a Ray with one core: one host, which imports torch once."""
    from ray.cluster_utils import Cluster

    before = signal.getsignal(signal.SIGTERM)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80 << 20})
    signal.signal(signal.SIGTERM, before)  # Ray's own is for this process, which runs other tests, too
    yield cluster.address
    cluster.shutdown()


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return copied_set(tmp_path)


def test_rows_come_back_once_and_the_next_run_has_nothing_to_do(address, root, tmp_path):
    for source in (root / "definitions").rglob("*.py"):
        source.write_text(f"{source.read_text()}\n{ESCAPES.format(tmp_path / 'escaped')}")
    done = derby("bench", "--ray", address, "--gpu", "cpu", "--root", root, *FEW)
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "escaped").read_text()  # beneath /tmp an empty file can be made
    assert not (landlock.version() and written), "a definition writes where it likes"
    assert "4 rows written: 2 measured, 2 failed" in done.stdout
    rows = Catalog.open(root).traces()
    assert (
        sorted((row.solution, row.status.value) for row in rows)
        == [("honest", "passed")] * 2 + [("raises", "raised")] * 2
    )
    assert len({row.session for row in rows if row.uuid == rows[0].uuid}) == 1  # one workload, one GPU, in turn
    assert make_plan(Catalog.open(root), CPU, Settings(), ["honest", "raises"]).pairs == 0  # nothing is left to do
    assert set(kill_cluster.keys(root).values()) == {1}
    assert not kill_cluster.matching(str(tmp_path / "cache")), "processes are left"


@slow
def test_the_plan_is_shown_and_nothing_is_written(address, root):
    words = ["bench", "--ray", address, "--gpu", "cpu", "--dry-run", "--root", root, *FEW]
    done = derby(*words)
    assert done.returncode == 0 and "1 x CPU" in done.stdout and not (root / "traces").exists(), done.stderr
    (kind,) = json.loads(derby(*words, "--json").stdout)["kinds"]
    assert (kind["gpu"], kind["hosts"], kind["to_measure"]) == ("CPU", 1, 4)


@slow
def test_check_says_what_passes_and_what_does_not(address, root):
    done = derby("check", "--ray", address, "--device", "cpu", "--root", root, "--solutions", "honest,raises", "--json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    cases = {(each["solution"], each["status"]) for each in found["results"]}
    assert {each for each in cases if each[0] == "honest"} == {("honest", "passed")} and ("raises", "raised") in cases
    assert derby("check", "--ray", address, "--device", "cpu", "--root", root, "--solutions", "honest").returncode == 0


@slow
def test_a_secret_that_is_given_draws_the_inputs_of_every_host(address, root):
    done = derby("bench", "--ray", address, "--gpu", "cpu", "--secret", "5" * 32, "--root", root, *FEW)
    assert done.returncode == 0 and f"secret of the session: {'5' * 32}" in done.stdout, done.stderr
    rows = Catalog.open(root).traces()
    assert {row.environment["secret"] for row in rows} == {of_workload("5" * 32, row.uuid) for row in rows}


@slow
def test_what_the_cluster_does_not_have_is_one_line(address, root):
    done = derby("bench", "--ray", address, "--gpu", "h100,h200", "--root", root, *FEW)
    assert done.returncode == 1 and "no GPU of the cluster can measure" in done.stderr.splitlines()[-1], done.stderr
    done = derby("bench", "--ray", "127.0.0.1:9", "--root", root, *FEW)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("derby:")]
    assert done.returncode == 1 and "no Ray cluster answers" in line and not (root / "traces").exists()


@slow
def test_signals_end_the_driver_and_everything_it_started(tmp_path):
    assert sum(signal_cluster.run(tmp_path, 1, 7).values()) == 3


def test_only_the_asked_solutions_travel_and_the_same_set_has_one_hash(tmp_path):
    root = copied_set(tmp_path)
    data = packed(Catalog.open(root), ["honest"])
    assert data == packed(Catalog.open(root), ["honest"])
    unpack(data, tmp_path / "there")
    there = Catalog.open(tmp_path / "there")
    assert [*there.solutions] == ["honest"]
    assert there.solutions["honest"].hash == Catalog.open(root).solutions["honest"].hash
    assert there.workloads("scaled_add_n16") == Catalog.open(root).workloads("scaled_add_n16")


def test_words_that_do_not_go_together(tmp_path):
    root = copied_set(tmp_path)
    assert "--gpu goes with --ray" in derby("bench", "--gpu", "h100", "--root", root).stderr
