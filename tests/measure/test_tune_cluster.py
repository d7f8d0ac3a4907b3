"""derby tune over a cluster: tables from hosts that do as told, then a host's own process on the CPU."""

import json
from types import SimpleNamespace

import msgspec
import pytest

pytest.importorskip("ray")
from fake_ray import FakeRay
from measuring import CPU, DEFINITION, copied_set
from test_tune import tunable

from kernelderby.catalog import Catalog
from kernelderby.catalog.columns.parts import code_digest
from kernelderby.measure.cluster import pool
from kernelderby.measure.cluster.host import Host, packed
from kernelderby.measure.cluster.messages import Hello, TaskAnswered, TaskAsked
from kernelderby.measure.cluster.tune import ClusterTune
from kernelderby.measure.tune import table
from kernelderby.measure.tune.pick import Measured, config_text
from kernelderby.measure.tune.turns import TuneSettings

FAST, SLOW = {"ms": 1, "how": "add"}, {"ms": 80, "how": "add"}


def jobs(root):
    catalog = Catalog.open(root)
    return catalog, [(catalog.solution("sleeper"), catalog.workloads(DEFINITION))]


def test_tables_are_written_once_all_workloads_of_a_kind_are_back(tmp_path, monkeypatch):
    """The first host dies once; the other workload takes a candidate that fails."""
    root = copied_set(tmp_path)
    folder = tunable(root)
    monkeypatch.setattr(pool, "NodeAffinitySchedulingStrategy", SimpleNamespace)
    dies = [True]

    def answer(node, asked):
        if asked is None:
            return Hello(CPU, {}, code_digest())
        if dies and dies.pop():
            return RuntimeError("the actor died")
        rows = asked.workload["workload"]["axes"]["rows"]
        times = {config_text(FAST): 1.0, config_text(SLOW): 80.0}
        failed = ("sleeper rows=8: raised",) if rows == 8 else ()
        return TaskAnswered(
            tuned=Measured(f"rows={rows}", f"rows {rows}", times, config_text(SLOW)),
            log=(json.dumps({"workload": asked.workload["workload"]["uuid"]}),),
            failed=failed,
        )

    monkeypatch.setattr(pool, "ray", FakeRay(answer, one=1, two=1))
    told, shown = [], []
    catalog, asked = jobs(root)
    run = ClusterTune(catalog, TuneSettings(timeout_seconds=30), asked, told.append, shown.append)
    ((machine, result),) = run.run(["cpu"])
    assert machine == CPU and result.path == folder / "tuned.py" and run.left == []
    found = table.read(folder / "tuned.py")["CPU"]
    axes = [workload.axes["rows"] for workload in asked[0][1]]
    assert found["table"] == {f"rows {rows}": FAST for rows in sorted(axes, key=lambda rows: f"rows {rows}")}
    assert [choice.gain for choice in result.choices] == [pytest.approx(80.0)] * len(axes) and len(shown) == len(axes)
    logged = [json.loads(line)["workload"] for line in result.log.read_text().splitlines()]
    assert sorted(logged) == sorted(workload.uuid for workload in asked[0][1])
    assert len(told) == 1 and "try 1 of 3 failed (the actor died); tried again" in told[0]


def test_a_run_that_was_killed_goes_on_behind_what_it_has(tmp_path, monkeypatch):
    """The first run loses its only host for good behind one workload; of other settings nothing counts."""
    root = copied_set(tmp_path)
    tunable(root)
    monkeypatch.setattr(pool, "NodeAffinitySchedulingStrategy", SimpleNamespace)
    asked_of, ends = [], [1]

    def answer(node, asked):
        if asked is None:
            return Hello(CPU, {}, code_digest())
        if len(asked_of) == ends[0]:
            raise KeyboardInterrupt  # as a driver that is killed, at any moment
        rows = asked.workload["workload"]["axes"]["rows"]
        asked_of.append(rows)
        times = {config_text(FAST): 1.0, config_text(SLOW): 80.0}
        return TaskAnswered(tuned=Measured(f"rows={rows}", f"rows {rows}", times, config_text(SLOW)))

    def run(**settings):
        monkeypatch.setattr(pool, "ray", FakeRay(answer, one=1))
        catalog, asked = jobs(root)
        told = []
        ClusterTune(catalog, TuneSettings(timeout_seconds=30, **settings), asked, told.append).run(["cpu"])
        return told

    with pytest.raises(KeyboardInterrupt):
        run()
    first = asked_of.copy()
    (unfinished,) = (root / "reports/tune").glob("*.unfinished.jsonl")
    unfinished.write_bytes(unfinished.read_bytes() + b'{"key": "cut')
    ends[0] = 99
    assert run() == ["sleeper: a run that did not end has tuned 1 of 2 workloads"]
    assert len(first) == 1 and len(asked_of) == len(set(asked_of)) == 2 and not unfinished.exists()
    assert len(table.read(next(root.rglob("tuned.py")))["CPU"]["table"]) == 2
    assert run() == [] and len(asked_of) == 4  # the next one begins anew
    ends[0] = 5
    with pytest.raises(KeyboardInterrupt):
        run()
    ends[0] = 99
    assert run(rounds=3) == [] and len(asked_of) == 7


def test_a_hosts_process_times_the_candidates_of_a_workload(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = copied_set(tmp_path)
    tunable(root, extra=[{"ms": 1, "how": "raise"}])
    catalog, ((solution, workloads),) = jobs(root)
    host = Host(packed(catalog, ["sleeper"]), "cpu")
    try:
        hello = msgspec.json.decode(host.ask(b"", 200), type=Hello)
        assert hello.machine.protocol == "cpu-wall" and hello.skipped == {} and hello.busy == ""
        settings = msgspec.to_builtins(TuneSettings(rounds=1, iterations=2, timeout_seconds=60))
        asked = TaskAsked("tune", DEFINITION, ("sleeper",), workloads[0].raw, settings)
        found = msgspec.json.decode(host.ask(msgspec.json.encode(asked), 200), type=TaskAnswered)
    finally:
        host.close()
    assert found.error == "" and set(found.tuned.times_us) == {config_text(FAST), config_text(SLOW)}
    assert found.tuned.times_us[config_text(FAST)] < found.tuned.times_us[config_text(SLOW)]
    assert len(found.failed) == 1 and "no such tile" in found.failed[0]
    assert [json.loads(line)["hash"] for line in found.log] == [solution.hash] * 3
