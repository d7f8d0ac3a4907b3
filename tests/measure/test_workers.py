"""The processes of the next operator: they begin while this one is checked, and stand still while it is timed."""

import time
from types import SimpleNamespace

import pytest
from measuring import CPU, DEFINITION, MISBEHAVIOURS, copied_set, measure, of_process

from kernelderby.catalog import Catalog
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.run.plan import Settings
from kernelderby.measure.run.progress import Observer
from kernelderby.measure.run.runner import Runner
from kernelderby.measure.run.workers import Workers
from kernelderby.measure.wire.process import WorkerProcess
from kernelderby.rows.measurement import Status


@pytest.fixture
def workers():
    made = Workers(MISBEHAVIOURS, CPU, 30)
    yield made
    made.end_all()


@pytest.fixture
def honest():
    catalog = Catalog.open(MISBEHAVIOURS)
    return catalog.definition(DEFINITION), [catalog.solution("honest")]


def test_workers_stand_still_while_the_time_of_generating_is_measured(tmp_path, monkeypatch):
    """Who slowed it down would get contents that come again."""
    states, places = [], InputMaker.places

    def looked(self):
        if not hasattr(self, "steady"):
            states.append({of_process(pid)[0] for pid in list(WorkerProcess._alive)})
        return places(self)

    monkeypatch.setattr(InputMaker, "places", looked)
    rows = measure(copied_set(tmp_path), ["honest"])
    assert [row.status for row in rows] == [Status.PASSED] * 2
    assert states == [set(), {"T"}]


def begun(workers):
    return [each.pid for each in workers._ahead.values()]


def soon(holds):
    """A signal takes a moment."""
    until = time.monotonic() + 10
    while not holds() and time.monotonic() < until:
        time.sleep(0.01)
    return holds()


def test_what_was_begun_ahead_is_what_loads(workers, honest):
    definition, solutions = honest
    workers.start_ahead(solutions)
    (pid,) = begun(workers)
    assert workers.on_gpu == workers.beside, "it is on no GPU yet"
    workers.end()
    assert begun(workers) == [pid], "an operator ends, the next one's processes stay"
    ((_, worker),) = workers.load(solutions)
    assert worker.pid == pid and not begun(workers)


def test_it_stands_still_while_another_is_timed(workers, honest):
    workers.start_ahead(honest[1])
    (pid,) = begun(workers)
    assert workers._ahead["honest"].has_answered(30)
    with workers.alone():
        assert soon(lambda: of_process(pid)[0] == "T")
    assert soon(lambda: of_process(pid)[0] != "T")


def test_one_that_has_died_meanwhile_is_replaced(workers, honest):
    definition, solutions = honest
    workers.start_ahead(solutions)
    (pid,) = begun(workers)
    workers._ahead["honest"].stop()
    workers._ahead["honest"]._signal(9)
    ((_, worker),) = workers.load(solutions)
    assert worker.pid != pid


def test_what_is_not_wanted_after_all_ends(workers, honest):
    workers.start_ahead(honest[1])
    (pid,) = begun(workers)
    workers.start_ahead(())
    assert not begun(workers) and of_process(pid) is None


@pytest.mark.parametrize(("budget", "order"), [(None, "abc"), (60.0, "cab")])
def test_the_next_operator_is_that_of_the_plan_or_of_a_budget(budget, order, monkeypatch):
    runner = Runner(Catalog.open(MISBEHAVIOURS), CPU, Settings(), Observer())
    runner._starts_ahead, runner._end = True, budget
    monkeypatch.setattr("kernelderby.catalog.published.importance", lambda *_: {"a": 2.0, "b": 1.0, "c": 9.0})
    asked = []
    monkeypatch.setattr(runner._workers, "start_ahead", asked.append)
    jobs = [
        SimpleNamespace(definition=SimpleNamespace(name=name), solutions=(name, number))
        for name in "abc"
        for number in range(2)
    ]
    runner._start_ahead(jobs)
    for name in order:
        runner._start_ahead(jobs, SimpleNamespace(name=name))
    first, second, third = ([name, 0] for name in order)
    assert asked == [first, first + second, second + third, third]


def test_what_was_begun_for_an_operator_is_not_ended_as_it_comes(workers, honest, monkeypatch):
    """The runner ends the former operator's processes, and begins those of the next one."""
    definition, solutions = honest
    runner = Runner(Catalog.open(MISBEHAVIOURS), CPU, Settings(), Observer())
    runner._starts_ahead, runner._workers = True, workers
    jobs = [SimpleNamespace(definition=definition, solutions=solutions)]
    runner._start_ahead(jobs)
    (pid,) = begun(workers)
    workers.end()
    runner._start_ahead(jobs, definition)
    ((_, worker),) = workers.load(solutions)
    assert worker.pid == pid


@pytest.mark.parametrize("sealed", [False, True])
def test_a_run_that_starts_ahead_as_on_a_gpu(misbehaviours, monkeypatch, sealed):
    """A whole run: the clock is timed while the first operator's processes stand still, and these then load."""
    started, init, process = [], Runner.__init__, Workers._process

    def ahead(self, *given):
        init(self, *given)
        self._starts_ahead = True

    def counted(self, solution):
        started.append(solution.name)
        return process(self, solution)

    monkeypatch.setattr(Runner, "__init__", ahead)
    monkeypatch.setattr(Workers, "_process", counted)
    rows = measure(misbehaviours, ["honest", "wrong_shape"], sealed=sealed)
    assert {row.solution: str(row.status) for row in rows} == {"honest": "passed", "wrong_shape": "wrong_shape"}
    assert sorted(started) == ["honest", "wrong_shape"], "each process is started once"
