"""A cluster's tasks when hosts die, come late, hang or are busy: a Ray in this process whose hosts do as told."""

import json
import signal
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest

pytest.importorskip("ray")
from fake_ray import NEVER, FakeRay
from measuring import CPU, DEFINITION, copied_set

from kernelderby.catalog import Catalog
from kernelderby.catalog.columns.parts import code_digest
from kernelderby.errors import DerbyError
from kernelderby.measure.cluster import pool
from kernelderby.measure.cluster.bench import ClusterBench
from kernelderby.measure.cluster.messages import Hello, TaskAnswered
from kernelderby.measure.run.plan import Settings, make_plan
from kernelderby.measure.run.progress import Observer
from kernelderby.measure.run.rows import claim
from kernelderby.measure.wire.replies import GpuSeen
from kernelderby.rows.measurement import Measurement, Status
from kernelderby.store.appended import append_line

HELLO = Hello(CPU, {}, code_digest())


def line(solution, solution_hash, workload, session="of a host", tries=None):
    """A row as a host sends it; tries: of one that crashed."""
    status, environment = (Status.RAISED, {}) if tries is None else (Status.CRASHED, {"tries": tries})
    own = {"solution_hash": solution_hash, "session": session, "environment": environment, "message": "it raised"}
    moment = "2026-11-23T10:00:00+00:00"
    return Measurement(DEFINITION, workload, solution, status, "CPU", "cpu-wall", moment, **own).to_trace()


class Told(Observer):
    def __init__(self):
        self.lines = []

    def note(self, line):
        self.lines.append(line)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """(answer, kinds, **cores) -> a ClusterBench of two solutions on two workloads, its Ray, and what it told."""
    root = copied_set(tmp_path)
    monkeypatch.setattr(pool, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(pool, "_ALONE_SECONDS", 0.5)
    monkeypatch.setattr(pool, "NodeAffinitySchedulingStrategy", SimpleNamespace)

    def made(answer, kinds=("cpu",), settings=None, **cores):
        catalog, told = Catalog.open(root), Told()
        settings, ray = settings or Settings(timeout_seconds=30), FakeRay(answer, **(cores or {"one": 1}))
        monkeypatch.setattr(pool, "ray", ray)
        names = ("honest", "raises")

        def planned(machine, skipped):
            return make_plan(catalog, machine, settings, names, skipped=skipped)

        return ClusterBench(catalog, settings, kinds, planned, names, told), ray, told.lines

    made.root = root
    return made


def rows_of(root):
    path = Catalog.open(root).traces_path("cpu", DEFINITION)
    return [json.loads(text) for text in path.read_text().splitlines()] if path.is_file() else []


def keys(root):
    return sorted((row["solution"], row["workload"]["uuid"]) for row in rows_of(root))


def honest_answer(root):
    solutions = Catalog.open(root).solutions

    def answer(node, asked):
        if asked is None:
            return HELLO
        return TaskAnswered(
            tuple(line(name, solutions[name].hash, asked.workload["workload"]) for name in asked.solutions)
        )

    return answer


def failing(root, how, times=1):
    """Answers honestly, but to its first tasks with what `how` says."""
    honest, left = honest_answer(root), [times]

    def answer(node, asked):
        if asked is None or left[0] == 0:
            return honest(node, asked)
        left[0] -= 1
        return how

    return answer


def test_a_host_that_dies_before_it_answers_costs_nothing_and_doubles_nothing(bench):
    run, ray, told = bench(failing(bench.root, RuntimeError("the actor died"), times=2))
    assert run.run() == 0
    assert len(keys(bench.root)) == len(set(keys(bench.root))) == 4
    assert len(told) == 2 and all("failed (the actor died); tried again" in line for line in told)
    assert ray.killed == ["one", "one"]  # their contents are unknown


def test_a_task_that_always_fails_is_given_up_after_three_tries_and_said(bench):
    run, ray, told = bench(failing(bench.root, RuntimeError("no such luck"), times=99), one=1, two=1)
    left = run.run()
    assert left == 4 and rows_of(bench.root) == []
    assert len(ray.asked) <= 6 and any("failed 3 times (no such luck); left out" in line for line in told)


def test_a_host_that_never_answers_ends_at_its_deadline_and_another_one_takes_its_task(bench, monkeypatch):
    monkeypatch.setattr(pool, "_LATE_SECONDS", -719.5)  # of deadlines of 720 s
    run, ray, told = bench(failing(bench.root, NEVER))
    assert run.run() == 0 and len(set(keys(bench.root))) == len(keys(bench.root)) == 4
    assert any("it has not answered by its deadline" in line for line in told) and ray.killed == ["one"]


def test_hosts_of_another_version_take_no_part(bench):
    honest = honest_answer(bench.root)

    def answer(node, asked):
        return b'{"code": "of another day", "machine": 3}' if node == "old" and not asked else honest(node, asked)

    run, ray, told = bench(answer, old=2, new=1)
    assert run.run() == 0 and {node for node, _ in ray.asked} == {"new"}
    assert told == ["host old: has another version of kernelderby; install the same one there; left out"]


def test_a_host_that_comes_late_takes_part(bench, monkeypatch):
    monkeypatch.setattr(pool, "_LATE_SECONDS", -719.5)
    honest = honest_answer(bench.root)

    def answer(node, asked):
        if asked and node == "early":
            ray.cores["late"] = 1  # from now on
            return NEVER
        return honest(node, asked)

    run, ray, _ = bench(answer, early=1)
    assert run.run() == 0 and len(set(keys(bench.root))) == len(keys(bench.root)) == 4
    assert {node for node, _ in ray.asked} == {"early", "late"}


def test_a_gpu_that_another_program_holds_is_asked_again_later(bench, monkeypatch):
    honest, greetings = honest_answer(bench.root), []

    def answer(node, asked):
        if asked is None and node == "held":
            greetings.append(node)
            return msgspec.structs.replace(HELLO, busy="another `derby bench` works on this CPU")
        return honest(node, asked)

    run, ray, told = bench(answer, held=1, free=1)
    assert run.run() == 0 and {node for node, _ in ray.asked} == {"free"}
    assert greetings == ["held"] and "asked again in 60 s" in told[0]
    monkeypatch.setattr(pool, "_PAUSE_SECONDS", 0.0)
    run, ray, told = bench(answer, settings=Settings(again=True), held=1, free=1)
    run.run()
    assert len(greetings) > 2 and len(told) == 1  # said once


def test_a_kind_that_no_host_has_is_said_before_anything_runs(bench):
    gpu = GpuSeen("NVIDIA H200", "9.0", "GPU-1")
    hello = Hello(replace(CPU, device="cuda", gpu=gpu), {}, code_digest())
    with pytest.raises(DerbyError, match="--gpu h100: no host that can measure has one; there is h200"):
        bench(lambda node, asked: hello, kinds=("h200", "h100"))


def test_rows_that_others_write_meanwhile_are_not_measured_again(bench):
    """Between the plan and the task, and by a run that has the workload in hand."""
    run, ray, told = bench(honest_answer(bench.root))
    catalog = Catalog.open(bench.root)
    first, second = (each for each in catalog.workloads(DEFINITION)[:2])
    path = catalog.traces_path("cpu", DEFINITION)
    other = line("honest", catalog.solutions["honest"].hash, first.raw["workload"], session="of another run")
    append_line(path, json.dumps(other))
    with claim(path, second.uuid):
        assert run.run() == 0
    assert keys(bench.root) == sorted([("honest", first.uuid), ("raises", first.uuid)])
    assert [(asked.workload["workload"]["uuid"], asked.solutions) for _, asked in ray.asked] == [
        (first.uuid, ("raises",))
    ]
    assert told == [f"{second.uuid}: another run measures it; left to that one"]


def test_a_crash_counts_after_three_runs_and_is_then_left_alone(bench):
    """A host's report of a crash continues the count of former rows."""
    solutions = Catalog.open(bench.root).solutions

    def answer(node, asked):
        if asked is None:
            return HELLO
        return TaskAnswered(
            tuple(
                line(name, solutions[name].hash, asked.workload["workload"], tries=asked.tries[name] + 1)
                for name in asked.solutions
            )
        )

    for number in range(3):
        run, ray, _ = bench(answer)
        run.run()
        run.close()
        assert [asked.tries for _, asked in ray.asked] == [{"honest": number, "raises": number}] * 2
    assert bench(answer)[0].pairs == 0


def test_a_write_that_a_kill_cut_anywhere_leaves_each_key_once(bench):
    """At every 397th byte of the file, at the ends of its lines, and with a whole row whose newline is missing."""
    run, _, _ = bench(honest_answer(bench.root))
    run.run()
    run.close()
    whole, path = keys(bench.root), Catalog.open(bench.root).traces_path("cpu", DEFINITION)
    data = path.read_bytes()
    ends = [at for at, byte in enumerate(data) if byte == 10]
    for length in sorted({*range(0, len(data), 397), *ends, *(end + 1 for end in ends)}):
        path.write_bytes(data[:length])
        run, _, _ = bench(honest_answer(bench.root))
        assert run.run() == 0
        run.close()
        assert keys(bench.root) == whole, f"cut after {length} bytes"


def test_a_ray_that_does_not_start_is_one_line(monkeypatch):
    """Ray's own error of a raylet that starts too slowly is a bare Exception."""

    def init(**_):
        raise Exception("The current node timed out during startup.\nMore of it")

    monkeypatch.setattr(pool, "ray", SimpleNamespace(init=init))
    monkeypatch.setattr(pool, "_expect_listener", lambda address: None)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    with (
        pytest.raises(DerbyError, match="--ray here:6379: no Ray cluster answers") as raised,
        pool.cluster("here:6379"),
    ):
        pass
    assert "\n" not in str(raised.value) and "RAY_AUTH_MODE=token" in str(raised.value)


@pytest.mark.parametrize("address", ["127.0.0.1:9", "[::1]:9", "127.0.0.1:99999"])
def test_a_dead_address_is_said_before_ray_tries_for_minutes(monkeypatch, address):
    monkeypatch.setattr(pool, "ray", None)  # it gets no request
    with pytest.raises(DerbyError, match="no Ray cluster answers"), pool.cluster(address):
        pass
    monkeypatch.setenv("RAY_ADDRESS", address)  # and no cluster of this machine is started instead
    with pytest.raises(DerbyError, match="no Ray cluster answers"), pool.cluster("auto"):
        pass


def test_a_signal_that_comes_out_of_ray_as_something_else_is_what_its_handler_raised(monkeypatch):
    def leave(number, frame):
        raise SystemExit(143)

    def init(**_):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as Ray does

    before = signal.signal(signal.SIGTERM, leave)
    monkeypatch.setattr(pool, "ray", SimpleNamespace(init=init, shutdown=lambda: None))
    monkeypatch.setattr(pool, "_expect_listener", lambda address: None)
    try:
        with pytest.raises(SystemExit) as raised, pool.cluster("here:6379"):
            try:
                signal.raise_signal(signal.SIGTERM)
            except SystemExit:
                raise RuntimeError("what Ray makes of it") from None
        assert raised.value.code == 143
    finally:
        signal.signal(signal.SIGTERM, before)
