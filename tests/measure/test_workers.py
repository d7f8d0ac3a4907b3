"""The processes of the next operator: they begin while this one is checked, and stand still while it is timed."""

import time
from types import SimpleNamespace

import pytest
from measuring import CPU, DEFINITION, MISBEHAVIOURS, of_process

from kernelderby.catalog import Catalog
from kernelderby.measure.run.plan import Settings
from kernelderby.measure.run.progress import Observer
from kernelderby.measure.run.runner import Runner
from kernelderby.measure.run.workers import Workers


@pytest.fixture
def workers():
    made = Workers(MISBEHAVIOURS, CPU, 30)
    yield made
    made.end_all()


@pytest.fixture
def honest():
    catalog = Catalog.open(MISBEHAVIOURS)
    return catalog.definition(DEFINITION), [catalog.solution("honest")]


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
    runner.machine, runner._end = SimpleNamespace(device="cuda"), budget
    monkeypatch.setattr("kernelderby.catalog.published.importance", lambda *_: {"a": 2.0, "b": 1.0, "c": 9.0})
    asked = []
    monkeypatch.setattr(runner._workers, "start_ahead", asked.append)
    jobs = [
        SimpleNamespace(definition=SimpleNamespace(name=name), solutions=(name, number))
        for name in "abc"
        for number in range(2)
    ]
    for name in order:
        runner._start_ahead(SimpleNamespace(name=name), jobs)
    assert asked == [(order[1], 0), (order[2], 0), ()]
