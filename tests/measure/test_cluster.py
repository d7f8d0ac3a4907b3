"""A real Ray on this machine, on the CPU (protocol cpu-wall). Kills of its parts: kill_cluster.py, by hand."""

import os
import subprocess
import sys

import kill_cluster
import pytest
from measuring import CPU, copied_set

from kernelderby.catalog import Catalog
from kernelderby.measure.cluster.bundle import packed, unpack
from kernelderby.measure.run.plan import Settings, make_plan

pytest.importorskip("ray")
FEW = ["--rounds", "1", "--most-rounds", "1", "--iterations", "2", "--timeout", "60"]


def derby(*words):
    command = [sys.executable, "-m", "kernelderby.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env={**os.environ, "RAY_ADDRESS": ""})


def test_rows_come_back_once_and_the_next_run_has_nothing_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = copied_set(tmp_path)
    done = derby("bench", "--ray", "local", "--gpu", "cpu", "--root", str(root), *FEW, "--solutions", "honest,raises")
    assert done.returncode == 0, done.stderr
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


def test_only_the_asked_solutions_travel_and_the_same_set_has_one_hash(tmp_path):
    root = copied_set(tmp_path)
    digest, data = packed(Catalog.open(root), ["honest"])
    assert (digest, data) == packed(Catalog.open(root), ["honest"])
    unpack(data, tmp_path / "there")
    there = Catalog.open(tmp_path / "there")
    assert [*there.solutions] == ["honest"]
    assert there.solutions["honest"].hash == Catalog.open(root).solutions["honest"].hash
    assert there.workloads("scaled_add_n16") == Catalog.open(root).workloads("scaled_add_n16")


def test_words_that_do_not_go_together(tmp_path):
    root = copied_set(tmp_path)
    assert "--gpu goes with --ray" in derby("bench", "--gpu", "h100", "--root", str(root)).stderr
