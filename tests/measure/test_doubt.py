"""A claimed time beside the judge's own clock."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")
from kernelderby.measure.clock.graphs import NotCapturable
from kernelderby.measure.judge import doubt
from kernelderby.measure.judge.batch import Beside, Clocked, held_against, sets_for
from kernelderby.measure.judge.doubt import Claims, Judged, SecondLook, SessionClock
from kernelderby.measure.judge.relay import MOST, MOST_AGAIN, Pacemaker, Relayed
from kernelderby.rows.measurement import Status

BESIDE = Beside(300.0, 3.0)  # of an H200's order: two messages, the launch of a graph


@pytest.mark.parametrize("real", [2.0, 5.0, 12.0, 40.0, 120.0, 400.0, 1500.0, 20_000.0])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.94])
def test_whoever_claims_too_little_gets_what_the_judge_has_seen(real, share):
    """Whatever is claimed, the recorded time is short of the real one by at most 5 % or 2 us, and the launch."""
    claimed = real * share
    count = sets_for(claimed, "cuda")
    clocked = held_against(claimed, BESIDE.batch_us + count * (real + 1.0), count, BESIDE, 0.0, "cuda")
    counts = claimed + clocked.short_us
    assert counts >= real - max(2 * 2.0 + 3.0, 0.06 * real)
    assert counts <= real + 2.0


@pytest.mark.parametrize("real", [2.0, 5.0, 40.0, 400.0, 20_000.0])
@pytest.mark.parametrize("held_up", [0.0, 50.0])
def test_an_honest_claim_stands_though_something_holds_the_batch_up(real, held_up):
    count = sets_for(real, "cuda")
    total = BESIDE.batch_us + held_up + count * max(BESIDE.call_us, real + 1.0)
    assert held_against(real, total, count, BESIDE, 0.0, "cuda").short_us == 0


def test_small_calls_come_in_large_batches():
    assert [sets_for(us, "cuda") for us in (0.0, 5.0, 100.0, 400.0, 10_000.0)] == [64, 64, 26, 7, 2]


class Batches:
    def __init__(self, per_call, refuses=False):
        self.per_call, self.refuses, self.asked = per_call, refuses, []

    def sets(self, wanted):
        if self.refuses:
            raise NotCapturable("not again")
        return wanted

    def us(self, kind, count):
        self.asked.append(kind)
        return BESIDE.batch_us + count * self.per_call[kind]

    def copy_us(self, kind):
        return 5.0


class Singles:
    """The relay: what single calls take by it, and how unsure it is: always, or, of a list, the next time."""

    def __init__(self, per_call, unsure_us=0.5, wakes_us=0.0):
        self.per_call, self.unsure_us, self.wakes_us = per_call, unsure_us, wakes_us
        self.most = []

    def relayed(self, pace, kind, margin_us, copy_us=0.0, most=0, said_us=0.0):
        self.most.append(most)
        unsure_us = self.unsure_us.pop(0) if isinstance(self.unsure_us, list) else self.unsure_us
        return Relayed(self.per_call[kind] - copy_us, unsure_us, self.wakes_us)


class Seen:
    def __init__(self, judged, batches, most):
        self.verdict, self.clocked, self.relayed = judged.verdict, judged.clocked, judged.relayed
        self.graph_missing, self.batches, self.most = judged.graph_missing, batches, most


PACE = Pacemaker(None, None, {"eager": 1.5, "graph": 1.5})


def looked(
    per_call,
    claims,
    host_us=5.0,
    refuses=False,
    returns_outputs=False,
    singly=None,
    unsure_us=0.5,
    wakes_us=0.0,
):
    """per_call: in batches. singly: by the relay; without it there is no pace."""
    session = SessionClock(beside={"eager": BESIDE, "graph": BESIDE}, pace=PACE if singly else None)
    batches = Batches(per_call, refuses)
    singles = Singles(singly, unsure_us, wakes_us)
    look = SecondLook(singles, batches, "cuda", session, returns_outputs)
    return Seen(look.at(Claims(claims, host_us), Judged()), batches.asked, singles.most)


def test_a_single_call_decides_where_the_pace_is_certain():
    """A batch of a host-bound solution says 300 us; its call alone takes 10."""
    judged = looked({"eager": 300.0, "graph": 300.0}, {"eager": 10.0, "graph": 9.0}, singly={"eager": 10.5, "graph": 9})
    assert judged.verdict.status is Status.PASSED and judged.batches == []
    assert {kind: each.short_us for kind, each in judged.clocked.items()} == {"eager": 0, "graph": 0}


@pytest.mark.parametrize("real", [3.0, 10.0, 40.0, 300.0])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_claim_short_of_the_single_call_is_replaced_by_it(real, share):
    judged = looked({}, {"graph": real * share}, singly={"graph": real}, unsure_us=0.0)
    counts = real * share + judged.clocked["graph"].short_us
    assert counts == pytest.approx(real) or real - counts <= max(2.0, 0.05 * real)


def test_what_no_single_call_can_take_by_accident_ends_the_race():
    judged = looked({}, {"graph": 10.0}, singly={"graph": 900.0})
    assert judged.verdict.status is Status.REWARD_HACK and judged.verdict.message.startswith("graph: ")


def test_where_the_pace_is_not_certain_batches_decide():
    judged = looked({"eager": 10.0}, {"eager": 10.0}, singly={"eager": 900.0}, unsure_us=30.0)
    assert judged.batches == ["eager"] and judged.clocked["eager"].short_us == 0
    assert judged.relayed["eager"].unsure_us == 30.0


def test_a_busy_host_lengthens_no_batch_beyond_what_a_single_call_may_take():
    """As measured on an H200: 3.7 us, of which a batch says 18 and an unsure relay at most 6.4."""
    judged = looked({"graph": 18.0}, {"graph": 3.7}, singly={"graph": 0.0}, unsure_us=[12.0, 9.0])
    assert judged.clocked["graph"] == Clocked(9.0, pytest.approx(5.3)) and judged.verdict.status is Status.PASSED
    judged = looked({"graph": 18.0}, {"graph": 17.0}, singly={"graph": 9.0}, unsure_us=[12.0, 9.0])
    assert judged.clocked["graph"].short_us == 0
    judged = looked({"graph": 18.0}, {"graph": 3.7}, singly={"graph": 30.0}, unsure_us=[12.0, 9.0])
    assert judged.clocked["graph"].call_us == pytest.approx(18.0, abs=2.0)  # the batch says less


def test_a_user_learns_that_the_host_is_too_busy():
    claims = Claims({"eager": 10.0, "graph": 200.0}, 5.0)
    unsure = {"eager": Relayed(10.0, 23.6), "graph": Relayed(200.0, 19.0)}  # less than a tenth is certain enough
    told = doubt.told_of_noise(claims, Judged(relayed=unsure))
    assert told.startswith(
        "the judge's clock is unsure by 24 us, so short calls may come out too long: this machine is"
    )
    assert doubt.told_of_noise(claims, Judged(relayed={"graph": unsure["graph"]})) == ""


def test_a_disturbed_pace_is_taken_again_before_a_batch_decides():
    """On a busy machine a batch of an honest solution says 17 us instead of 10."""
    judged = looked({"graph": 17.0}, {"graph": 10.0}, singly={"graph": 10.2}, unsure_us=[25.0, 1.5])
    assert judged.most == [MOST, MOST_AGAIN]
    assert judged.batches == [] and judged.clocked["graph"].short_us == 0 and judged.relayed["graph"].unsure_us == 1.5


@pytest.mark.parametrize("hidden_us", [0.0, 2080.0])
def test_who_keeps_the_gpu_busy_after_a_try_is_not_rid_of_it(hidden_us):
    """Neither of a claim that falls short, nor of a call that seems to hold a time slice: no batch decides then."""
    judged = looked({}, {"graph": 3.0}, singly={"graph": 9.0 + hidden_us}, unsure_us=[0.5, math.inf])
    assert judged.batches == [] and judged.clocked["graph"].call_us == 9.0 + hidden_us
    assert (judged.verdict.status is Status.REWARD_HACK) == bool(hidden_us)


def test_who_is_slow_on_its_host_gets_one_certain_try(monkeypatch):
    monkeypatch.setattr(doubt, "_LONG_SECONDS", -1.0)
    assert looked({}, {"graph": 3.0}, singly={"graph": 9.0}).most == [MOST]
    judged = looked({}, {"graph": 3.0}, singly={"graph": 9.0}, unsure_us=[25.0, 0.5])
    assert judged.most == [MOST, MOST_AGAIN] and judged.clocked["graph"].call_us == 9.0


def test_where_the_gpu_does_not_come_to_rest_batches_decide_and_nobody_is_accused():
    judged = looked({"eager": 10.0}, {"eager": 10.0}, singly={"eager": 0.0}, unsure_us=math.inf)
    assert judged.batches == ["eager"] and judged.relayed == {} and judged.verdict.status is Status.PASSED


def test_a_call_that_waits_on_its_host_may_wake_up():
    assert Relayed(40.0, 1.0, wakes_us=60.0).short_of(10.0, 2.0) < 0 < Relayed(40.0, 1.0).short_of(10.0, 2.0)


def test_whoever_has_a_graph_does_not_wait_on_its_host():
    """It would only have to say so, and an eager call might take a host's waking less than it does."""
    both = looked({}, {"eager": 10.0, "graph": 9.0}, singly={"eager": 40.0, "graph": 9.0}, wakes_us=60.0)
    assert both.clocked["eager"].short_us == 30.0 and both.clocked["graph"].short_us == 0
    assert looked({}, {"eager": 10.0}, singly={"eager": 40.0}, wakes_us=60.0).clocked["eager"].short_us == 0


def test_copies_that_its_worker_makes_are_not_the_calls():
    judged = looked({}, {"eager": 10.0}, singly={"eager": 16.0}, returns_outputs=True)
    assert judged.clocked["eager"].short_us == 0


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(doubt, "_PATIENCE", (0.0,))


def test_long_python_in_a_call_is_a_long_eager_time_and_no_accusation():
    judged = looked({"eager": 3000.0, "graph": 9.0}, {"eager": 10.0, "graph": 9.0}, host_us=2990.0)
    assert judged.verdict.status is Status.PASSED
    assert judged.clocked["eager"].short_us == pytest.approx(2990.0) and judged.clocked["graph"].short_us == 0


def test_a_host_time_that_is_claimed_makes_no_eager_time_shorter():
    for host_us in (0.0, 1000.0, 1e6):
        judged = looked({"eager": 300.0}, {"eager": 10.0}, host_us=host_us)
        assert judged.clocked["eager"].short_us == pytest.approx(290.0)


def test_a_host_time_explains_nothing_of_a_graph():
    judged = looked({"eager": 3000.0, "graph": 3000.0}, {"eager": 10.0, "graph": 10.0}, host_us=2990.0)
    assert judged.verdict.status is Status.REWARD_HACK and judged.verdict.message.startswith("graph: ")


def test_what_is_no_accident_ends_the_race():
    assert looked({"eager": 30_000.0}, {"eager": 10.0}).verdict.status is Status.REWARD_HACK


def test_whoever_is_not_captured_again_has_no_graph_time():
    judged = looked({"eager": 10.0, "graph": 1.0}, {"eager": 10.0, "graph": 1.0}, refuses=True)
    assert "not again" in judged.graph_missing and set(judged.clocked) == {"eager"}


def test_copies_of_outputs_are_the_workers():
    assert looked({"eager": 16.0}, {"eager": 10.0}, returns_outputs=True).clocked["eager"].short_us == 0
    assert looked({"eager": 16.0}, {"eager": 10.0}).clocked["eager"].short_us == pytest.approx(6.0)
