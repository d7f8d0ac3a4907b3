"""The judge's clock of single calls: with real processes on a CPU, and its arithmetic.

What a worker may gain against it stands in test_clock_classes.py, on a simulated GPU."""

from __future__ import annotations

import math
import random
import statistics
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from measuring import CPU

pytest.importorskip("torch")
import torch

from kernelderby.catalog import Catalog
from kernelderby.measure.judge import relay
from kernelderby.measure.judge.doubt import SessionClock
from kernelderby.measure.judge.exchange import ENOUGH_BY_CLOCK
from kernelderby.measure.judge.relay import FEWEST, MOST, Slack, calls_for, calm, of_medians
from kernelderby.measure.judge.table import JudgesTable
from kernelderby.measure.run.pacer import Pacer
from kernelderby.measure.run.plan import Settings
from kernelderby.measure.run.progress import Observer
from kernelderby.measure.run.runner import Runner
from kernelderby.measure.wire.process import WorkerProcess
from kernelderby.measure.wire.remote import RemoteExecutor
from kernelderby.measure.wire.replies import Done, Failed, Wrong
from kernelderby.rows.measurement import Status

DEFINITION = "scaled_add_n16"
MAIN = "import os, signal, time\n\nimport torch\n\n{before}\n\n\ndef run(x, y, factor, out):\n    {body}\n"
HONEST = "torch.add(x, y, alpha=factor, out=out)"
SLOW = "time.sleep(0.02)\n    " + HONEST
# Right in the check and in timed calls, and something else in single calls: it knows them by their executor.
IN_RELAY = """from kernelderby.measure.worker import executor

relayed = []
relay = executor.CallExecutor.relay
executor.CallExecutor.relay = lambda self, *words: (relayed.append(1), relay(self, *words), relayed.clear())
"""
EARLY = """from kernelderby.measure.worker import executor


def relay(self, kind, which, armed):
    self.signals.wait("go", 1)
    self.signals.give("done", 1)
    time.sleep(0.02)
    self.call(which)
    armed()


executor.CallExecutor.relay = relay
"""


@pytest.fixture(scope="module")
def pacer(tmp_path_factory):
    from measuring import copied_set

    root = copied_set(tmp_path_factory.mktemp("relay"))
    made = Pacer(root, CPU, 30)
    yield SimpleNamespace(pace=made.pace({"eager": 5.0}))
    made.end()


@pytest.fixture
def relay_of(misbehaviours):
    """Code of a solution -> its relay, past the check."""
    ended = []

    def made(body: str, before: str = ""):
        folder = misbehaviours / f"solutions/tests/elementwise/{DEFINITION}/tried"
        folder.mkdir(exist_ok=True)
        (folder / "main.py").write_text(MAIN.format(body=body, before=before))
        told = (folder.parent / "honest/solution.toml").read_text().replace('"honest"', '"tried"')
        (folder / "solution.toml").write_text(told)
        catalog = Catalog.open(misbehaviours)
        definition, solution = catalog.definition(DEFINITION), catalog.solution("tried")
        workload = catalog.workloads(DEFINITION)[0]
        table = JudgesTable.of(catalog.root, definition, workload, CPU, "secret")
        worker = WorkerProcess(catalog.root, "cpu", solution_hash=solution.text_hash)
        ended.append(worker.kill)
        worker.ask(Done, "load", 60, definition=DEFINITION, solution="tried", protocol="cpu-wall")
        race = table.race(solution, RemoteExecutor(worker, 5))
        ended.append(race.release)
        assert race.check().status is Status.PASSED
        race.start()
        return race.relay

    yield made
    for end in ended:
        end()


def test_a_drift_of_the_pace_makes_its_clock_unsure():
    theirs, paced = [110.0, 111.0, 109.0, 110.0], [100.0, 101.0, 99.0, 100.0]
    assert of_medians(theirs, paced, 2.0, drift_us=0.5) == of_medians(theirs, paced, 2.0)
    assert of_medians(theirs, paced, 2.0, drift_us=30.0).unsure_us == 30.0


def test_who_makes_fewer_calls_gains_no_uncertainty():
    paced = [100.0 + number % 5 for number in range(64)]
    few, many = ([110.0] * count for count in (8, 64))
    assert of_medians(few, paced, 1.0, wanted=64) == of_medians(many, paced, 1.0)
    assert of_medians(few, paced, 1.0).unsure_us > of_medians(many, paced, 1.0).unsure_us


def test_nothing_waits_for_the_device_between_a_glance_and_its_signal(monkeypatch):
    """The glance's stream waits for the call, which waits for the signal: to wait for the device would never end."""
    seen, tensor = list[str](), torch.ones(4)

    def told(name):
        return lambda *words: seen.append(name)

    for name in ("synchronize", "evict_inputs"):
        monkeypatch.setattr(relay, name, told(name))
    signals = SimpleNamespace(give=told("give"), wait=told("wait"), release=told("release"))
    exchange = SimpleNamespace(
        sets=[SimpleNamespace(inputs={"x": tensor.clone()}, outputs={"out": tensor})],
        maker=SimpleNamespace(device=torch.device("cpu"), steady=()),
        expected_inputs=lambda *words: {"x": tensor},
        ready=told("ready"),
        left=told("left"),
        random=random.Random(1),
    )
    glance = SimpleNamespace(wait_for=told("glance"))
    executor = SimpleNamespace(lives=lambda: True)
    made = relay.Relay(exchange)._single(executor, signals, 0, "relay/eager/1", False, {"out": tensor.clone()}, glance)
    assert made[0] >= 0
    between = seen[seen.index("glance") : seen.index("give")]
    assert "synchronize" not in between and "synchronize" in seen and seen.index("give") < seen.index("wait")


def test_a_slow_call_is_seen_as_slow(relay_of, pacer):
    seen = relay_of(SLOW).relayed(pacer.pace, "eager", 1e6)  # sleeps 20 ms; a busy machine's pace is unsure
    assert 19_000 - seen.unsure_us < seen.call_us < 60_000 and seen.unsure_us < 10_000
    assert pacer.pace.slack["eager"].us < 20_000


@pytest.mark.parametrize(
    ("body", "before", "status"),
    [
        ("torch.add(x, y, alpha=factor + 1e-2 * len(relayed), out=out)", IN_RELAY, Status.WRONG_VALUES),
        (HONEST + "\n    if relayed: x.zero_()", IN_RELAY, Status.INPUT_CHANGED),
        (HONEST, EARLY, None),
    ],
)
def test_what_is_not_right_in_a_single_call_is_found(relay_of, pacer, body, before, status):
    with pytest.raises(Wrong) as wrong:
        relay_of(body, before).relayed(pacer.pace, "eager", 1e6)
    found = wrong.value.verdict.status
    assert found is status if status else found in (Status.NOT_A_NUMBER, Status.WRONG_VALUES)


def test_a_single_call_that_raises_ends_at_once_with_what_it_raised(relay_of, pacer):
    start = time.monotonic()
    with pytest.raises(Failed) as failed:
        relay_of("assert len(relayed) == 0, 'not now'\n    " + HONEST, IN_RELAY).relayed(pacer.pace, "eager", 1e6)
    assert failed.value.status is Status.RAISED and time.monotonic() - start < 4  # of 5 until it would be late


def test_slow_single_calls_end_in_time(relay_of, pacer):
    relay = relay_of("time.sleep(0.1)\n    " + HONEST)
    relay._exchange.executor.seconds = 1
    with pytest.raises(Failed) as failed:
        relay.relayed(pacer.pace, "eager", 1e-3)
    assert failed.value.status is Status.TIMED_OUT and "16 single calls" in str(failed.value)


@pytest.mark.parametrize(
    ("seconds", "said", "least", "most"),
    [
        (0.15, 0.15, FEWEST, 13),  # two seconds of calls, instead of MOST
        (0.02, 0.0, 20, MOST),  # slower than it says: as often as a quick one
    ],
)
def test_a_call_that_says_it_is_slow_is_made_a_few_times(relay_of, pacer, seconds, said, least, most):
    relay, made = relay_of(f"time.sleep({seconds})\n    " + HONEST), []
    us = relay.us
    relay.us = lambda *given: made.append(len(found := us(*given))) or found
    relay.relayed(pacer.pace, "eager", 1e-3, said_us=said * 1e6)
    assert made[1] == 1 and least <= made[2] <= most  # after the pace


# Does nothing from the first long pause between two of FEWEST + 1 calls on: the judge is comparing then.
UNTIL_COMPARED = """from kernelderby.measure.worker import executor

ended, saw = [], []


def relay(self, kind, which, armed):
    self.signals.wait("go", 1)
    if len(ended) % 9 and time.perf_counter() - ended[-1] > 0.05:
        saw.append(1)
    if not saw:
        self.call(which)
    self.signals.give("done", 1)
    ended.append(time.perf_counter())
    armed()


executor.CallExecutor.relay = relay
"""


def test_a_pace_that_is_late_holds_up_nobody_but_once(relay_of, pacer, monkeypatch):
    relay, asked = relay_of(HONEST), []

    def late(self, kind, *words):
        asked.append(self)
        if self is pacer.pace.executor:
            raise Failed(Status.CRASHED, "late")
        return relayed(self, kind, *words)

    relayed = RemoteExecutor.relay
    monkeypatch.setattr(RemoteExecutor, "relay", late)
    monkeypatch.setattr(pacer, "pace", replace(pacer.pace))
    for _ in range(2):
        assert math.isinf(relay.relayed(pacer.pace, "eager", 1e6).unsure_us)
    assert pacer.pace.is_lost and len(asked) == 1


def test_a_lost_pace_ends_with_its_process(misbehaviours):
    runner = Runner(Catalog.open(misbehaviours), CPU, Settings(), Observer())
    made = runner._pacer = Pacer(misbehaviours, CPU, 30)
    pace = made.pace({"eager": 5.0})
    runner._run.clock = SessionClock(pace=pace)
    runner._renew_pacer()
    assert runner._pacer is made and runner._run.clock.pace is pace
    pace.is_lost = True
    runner._renew_pacer()  # a CPU gets no further one, for it has no time of an empty kernel
    assert runner._pacer is runner._run.clock.pace is None
    with pytest.raises(Failed):
        pace.executor.call(0)


def test_which_single_calls_are_compared_shows_nowhere(relay_of, pacer, monkeypatch):
    """A reference so slow that only a few are."""
    relay = relay_of("time.sleep(0.01)\n    " + HONEST, UNTIL_COMPARED)
    exchange, run = relay._exchange, relay._exchange.module.run
    monkeypatch.setattr(exchange.module, "run", lambda *given: (time.sleep(0.1), run(*given))[1])
    exchange.references.seconds = 0.1
    assert FEWEST + 1 == 9  # as UNTIL_COMPARED believes
    for _ in range(4):
        assert relay.relayed(pacer.pace, "eager", 1e6).call_us > 5000
    assert len(exchange.drawn("relay/eager/9", 64, 64, 0.02, ENOUGH_BY_CLOCK)) == ENOUGH_BY_CLOCK


# Makes less than half of its single calls.
HALF = """from kernelderby.measure.worker import executor


def relay(self, kind, which, armed):
    self.signals.wait("go", 1)
    if os.urandom(1)[0] < 115:
        self.call(which)
    self.signals.give("done", 1)
    armed()


executor.CallExecutor.relay = relay
"""


def test_half_of_the_single_calls_are_seen_where_the_reference_is_slow(relay_of, pacer):
    relay = relay_of(HONEST, HALF)
    relay._exchange.affordable = lambda seconds, most: 1
    with pytest.raises(Wrong):
        for _ in range(3):  # of the few that a busy machine lets it make, all that are compared may be done
            relay.relayed(pacer.pace, "eager", 1e6)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("if relayed: raise ValueError\n    " + HONEST, Status.RAISED),
        ("if relayed: os._exit(3)\n    " + HONEST, Status.CRASHED),
        ("if relayed: time.sleep(60)\n    " + HONEST, None),
    ],
)
def test_whoever_ends_in_a_single_call_holds_nobody_up(relay_of, pacer, body, status):
    relay, start = relay_of(body, IN_RELAY), time.monotonic()
    with pytest.raises(Failed) as failed:
        relay.relayed(pacer.pace, "eager", 1e6)
    assert status is None or failed.value.status is status
    assert time.monotonic() - start < 30
    pacer.pace.executor.call(0)  # the pace is none the worse


def test_medians_of_a_noisy_clock():
    """A call of 7 us among 150 us that a GPU takes from one process to the other, with late ones."""
    noise = random.Random(1)

    def times(call_us, count):
        return [150 + call_us + noise.gauss(0, 4) + (500 if noise.random() < 0.1 else 0) for _ in range(count)]

    found = [of_medians(times(7.0, 128), times(1.5, 128), 1.5) for _ in range(200)]
    off = [abs(each.call_us - 7.0) for each in found]
    assert statistics.median(off) < 0.7 and max(off) < 3.0
    # The failure to exclude: an honest claim falls short by more than the clock's uncertainty and the margin.
    assert sum(each.call_us > 7.0 + 2.0 + each.unsure_us for each in found) == 0
    assert max(each.unsure_us for each in found) < 2.0


def test_the_slack_of_a_trusted_copy_is_no_gift():
    assert of_medians([110.0] * 9, [100.0] * 9, 1.0, Slack(-5.0, 11.0)).unsure_us == 0
    assert of_medians([110.0] * 9, [100.0] * 9, 1.0, Slack(3.0, 11.0)).unsure_us == 3.0


def test_a_short_call_gets_a_part_of_the_slack_and_a_long_one_no_more():
    assert [round(Slack(3.0, 30.0).of(us), 3) for us in (0.0, 8.0, 30.0, 300.0)] == [0.0, 0.8, 3.0, 3.0]


def test_a_busy_while_of_the_pace_is_left_out():
    assert calm([100.0] * 16 + [130.0] * 16 + [101.0] * 5) == [100.0] * 16


def test_a_call_is_never_shorter_than_nothing():
    assert of_medians([90.0] * 9, [100.0] * 9, 1.0).call_us == 0


def test_a_noisy_pace_asks_for_more_calls():
    assert calls_for(2.0, [100.0] * 24) == FEWEST
    assert calls_for(2.0, [100.0 + 40 * (number % 5) for number in range(24)]) == MOST
    assert FEWEST < calls_for(20.0, [100.0 + 2 * (number % 7) for number in range(24)]) < MOST


# A thread that has the answer before it is asked, if it sees the contents by then.
AHEAD = """import threading

seen = {}


def look(x):
    known = x.clone()
    while True:
        if not torch.equal(x, known):
            known = x.clone()
            seen[x.data_ptr()] = time.perf_counter()
        time.sleep(1e-3)


def looked_at(x):
    if x.data_ptr() not in seen:
        seen[x.data_ptr()] = 0.0
        threading.Thread(target=look, args=(x,), daemon=True).start()
    time.sleep(0.0 if 0.02 < time.perf_counter() - seen[x.data_ptr()] < 0.08 else 0.1)
"""


def test_no_thread_sees_contents_before_the_clock_runs(relay_of):
    exchange = relay_of("looked_at(x)\n    " + HONEST, AHEAD)._exchange

    def written(number):
        exchange.maker.refresh(exchange.sets[number % 2].inputs, f"ahead/{number}")
        time.sleep(0.05)

    found = exchange.executor.spans("eager", 6, written, lambda number: None)
    assert min(found.spans_us[2:]) > 90_000, "the first ones lay there when it began"
