"""Turns of made-up entry points: contents change from call to call, what lies in an input is restored, setup runs
once, and a wrong call in the middle of the timed ones is found."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from measuring import DEFINITION, MISBEHAVIOURS

from kernelderby.catalog import Catalog
from kernelderby.measure.judge.cases import Case
from kernelderby.rows.measurement import Status

torch = pytest.importorskip("torch")
from kernelderby.measure.clock.graphs import NotCapturable  # noqa: E402
from kernelderby.measure.clock.timing import Timer, WallTimer  # noqa: E402
from kernelderby.measure.judge import batch, correctness  # noqa: E402
from kernelderby.measure.judge import exchange as exchange_module  # noqa: E402
from kernelderby.measure.judge.exchange import Exchange  # noqa: E402
from kernelderby.measure.judge.inputs import InputMaker  # noqa: E402
from kernelderby.measure.judge.race import WARMUP  # noqa: E402
from kernelderby.measure.judge.table import JudgesTable  # noqa: E402
from kernelderby.measure.machine.probe import Machine  # noqa: E402
from kernelderby.measure.wire.replies import Wrong  # noqa: E402
from kernelderby.measure.worker.candidate import Candidate  # noqa: E402
from kernelderby.measure.worker.executor import CallExecutor, local_check, local_race  # noqa: E402

CPU = torch.device("cpu")
NUMBERS = itertools.count()
MODULE = SimpleNamespace(
    run=lambda x, y, factor: x + factor * y,
    generate_inputs=lambda values, device: {
        "y": torch.randn(values["rows"], 16, generator=torch.Generator().manual_seed(values["seed"]))
    },
)


@pytest.fixture(scope="module")
def definition():
    return Catalog.open(MISBEHAVIOURS).definition(DEFINITION)


@pytest.fixture
def with_constant(definition):
    """The same operator, x marked as a weight."""
    inputs = {**definition.inputs, "x": replace(definition.inputs["x"], constant=True)}
    return replace(definition, inputs=inputs)


def parts(definition, function, module=MODULE, **calling):
    maker = InputMaker(definition, module, Case("", {"rows": 3, "columns": 16}, {"factor": 2.0}, 5), CPU, None)
    return Candidate(function, True, definition, **calling), module, maker


def right(x, y, factor, out, **prepared):
    torch.add(x, y, alpha=factor, out=out)


def test_a_turn_times_what_it_is_asked_for(definition):
    race = local_race(*parts(definition, right), WallTimer())
    turn = race.turn(1, 4, ("graph",))  # none is captured
    assert turn.verdict.status is Status.PASSED and not turn.eager.spans_us and turn.graph is None
    assert len(race.turn(2, 4, ("eager",)).eager.spans_us) == 4
    assert [len(each.spans_us) for each in race.taken["eager"]] == [4]


def test_every_call_of_a_turn_has_contents_of_its_own(definition):
    seen, poison = [], set()

    def run(x, y, factor, out):
        seen.append(x.clone())
        poison.add(out.view(torch.uint8)[0, 0].item())
        right(x, y, factor, out)

    race = local_race(*parts(definition, run), WallTimer())
    seen.clear()
    turn = race.turn(1, 6)
    assert turn.verdict.status is Status.PASSED and len(turn.eager.spans_us) == 6
    assert len({x.sum().item() for x in seen[WARMUP:]}) >= 6
    for _ in range(6):
        race.turn(2, 6)
    assert poison == {0xFF, 0x7F}


def test_other_turns_and_other_secrets_give_other_numbers(definition):
    def contents(secret, number):
        seen = []
        candidate, module, _ = parts(definition, lambda *given: (seen.append(given[0].clone()), right(*given)))
        case = Case("", {"rows": 3, "columns": 16}, {"factor": 2.0}, 5)
        maker = InputMaker(definition, module, case, CPU, None, secret)
        local_race(candidate, module, maker, WallTimer()).turn(number, 2)
        return seen[WARMUP].sum().item()

    assert len({contents("a", 1), contents("a", 2), contents("b", 1)}) == 3


@pytest.mark.parametrize("odd", [lambda x: (x == 0).all(1), lambda x: (x == 1).all(1), lambda x: x.abs().mean(1) > 2])
def test_every_check_has_rows_of_zeros_of_one_value_and_of_large_numbers(definition, odd):
    def run(x, y, factor, out):
        right(x, y, factor, out)
        out[odd(x)] += 1

    verdict = local_check(*parts(definition, run))
    assert verdict.status is Status.WRONG_VALUES and verdict.message.startswith("with rows of zeros, of one value")
    assert local_check(*parts(definition, right)).status is Status.PASSED


def test_an_answer_kept_from_the_call_before_is_wrong(definition):
    kept = {}

    def run(x, y, factor, out):
        out.copy_(kept.setdefault(out.data_ptr(), x + factor * y))

    turn = local_race(*parts(definition, run), WallTimer()).turn(1, 4)
    assert turn.verdict.status is Status.WRONG_VALUES and not turn.eager.spans_us
    assert "after a timed eager call" in turn.verdict.message


def checked(definition, function, monkeypatch):
    """A race that has passed its check, with a reference so slow that one call of a series is compared whole."""
    race = local_race(*parts(definition, function), WallTimer())
    assert race.check().status is Status.PASSED
    race.start()
    monkeypatch.setattr(Exchange, "reference_seconds", 1.0)
    monkeypatch.setattr("kernelderby.measure.judge.series._REPEATING_SECONDS", 10.0)
    return race


def compares(race, monkeypatch, which):
    """In the next series that call is compared whole."""
    monkeypatch.setattr(race.series, "drawn", lambda name, iterations: {which: None})


def test_what_is_compared_goes_into_memory_that_was_there_before_the_first_call(definition, monkeypatch):
    """A worker sees how much its judge holds. By its growth it would see the last call that is compared."""
    seen, kept = [], []
    race = local_race(*parts(definition, lambda *given: (seen.append("call"), right(*given))), WallTimer())
    room = race.exchange.room

    def taken(count):
        found = room(count)
        seen.extend(each["out"].data_ptr() for each in found)
        return found

    monkeypatch.setattr(race.exchange, "room", taken)
    monkeypatch.setattr(race.exchange, "expect_right", lambda said, calls: kept.extend(left for left, *_ in calls))
    monkeypatch.setattr("kernelderby.measure.judge.series._KEPT_BYTES", 0)
    compares(race, monkeypatch, 2)
    seen.clear()
    race.series.timed("1/eager", "eager", 5)
    assert seen[2:] == ["call"] * 5 and len(kept) == 1
    assert kept[0].outputs["out"].data_ptr() in seen[:2]


@pytest.mark.parametrize("room", [1 << 20, 0], ids=["kept", "not kept"])
def test_one_wrong_call_among_those_that_are_not_compared_is_seen(definition, monkeypatch, room):
    calls = []
    monkeypatch.setattr("kernelderby.measure.judge.series._KEPT_BYTES", room)

    def run(x, y, factor, out):
        calls.append(None)
        if len(calls) != turned + WARMUP + 4:
            right(x, y, factor, out)

    turned = 10**9
    race = checked(definition, run, monkeypatch)
    assert race.series.repeats is True
    monkeypatch.setattr(race.exchange.random, "sample", lambda numbers, count: list(numbers)[:count])
    compares(race, monkeypatch, 0)
    turned = len(calls)
    verdict = race.turn(1, 6).verdict
    if room:
        assert verdict.status in (Status.NOT_A_NUMBER, Status.WRONG_VALUES)  # by the poison
        assert "after a timed eager call" in verdict.message
    else:  # what came instead was right, so it may have been rounding: from now on it is looked at longer
        assert verdict.status is Status.PASSED and race.series.repeats is False


def test_a_call_that_is_wrong_once_more_is_found(definition, monkeypatch):
    calls, turned = [], 10**9

    def run(x, y, factor, out):
        calls.append(None)
        if len(calls) <= turned + WARMUP + 1:
            right(x, y, factor, out)
        else:
            out.fill_(len(calls))

    monkeypatch.setattr("kernelderby.measure.judge.series._KEPT_BYTES", 0)
    race = checked(definition, run, monkeypatch)
    monkeypatch.setattr(race.exchange.random, "sample", lambda numbers, count: list(numbers)[:count])
    compares(race, monkeypatch, 0)
    turned = len(calls)
    verdict = race.turn(1, 6).verdict
    assert verdict.status is Status.WRONG_VALUES and "made once more" in verdict.message


def test_calls_that_repeat_their_bits_are_made_once_more_on_the_same_contents(definition, monkeypatch):
    seen = []
    race = checked(definition, lambda *given: (seen.append(given[0].clone()), right(*given)), monkeypatch)
    seen.clear()
    compares(race, monkeypatch, 5)
    assert race.turn(1, 6).verdict.status is Status.PASSED and race.series.repeats is True
    timed, again = seen[WARMUP : WARMUP + 6], seen[WARMUP + 6 :]
    assert len(again) == 6, "the one that was compared, too: a worker that sees the others would know which it was"
    assert all(sum(torch.equal(one, other) for other in timed) == 1 for one in again)


def test_rounding_that_hangs_on_the_order_of_atomics_is_no_fault(definition):
    calls = []

    def run(x, y, factor, out):
        calls.append(None)
        torch.add(x, y, alpha=factor * (1 + 1e-6 * (len(calls) % 2)), out=out)

    race = local_race(*parts(definition, run), WallTimer())
    assert race.check().status is Status.PASSED and race.series.repeats is None
    race.start()
    assert race.turn(1, 6).verdict.status is Status.PASSED


@pytest.mark.parametrize("planned", [5, 10])
def test_enough_calls_are_compared_and_each_is_as_likely(definition, planned):
    """One wrong call of ten is found in 99 of 100 races."""
    race = local_race(*parts(definition, right), WallTimer())
    race.series.planned = planned
    often = [0] * 10
    for _ in range(2000):
        calls = race.series.drawn(f"{next(NUMBERS)}/eager", 10)
        assert 0.9 ** (planned * len(calls)) <= 0.01
        for call in calls:
            often[call] += 1
    assert max(often) < 1.2 * min(often)


def test_a_slow_reference_looks_at_one_call_of_a_series(definition, monkeypatch):
    race = local_race(*parts(definition, right), WallTimer())
    monkeypatch.setattr(Exchange, "reference_seconds", 5.0)
    assert len(race.series.drawn(f"{next(NUMBERS)}/eager", 10)) == 1


def test_where_the_reference_is_slow_other_calls_are_compared_by_some_rows(definition, monkeypatch):
    """A solution that is wrong in all rows of one call of ten is found there, too."""
    module = SimpleNamespace(**vars(MODULE), REFERENCE_ROWS={"x": 0, "y": 0})
    calls = []

    def run(x, y, factor, out):
        right(x, y, factor, out)
        calls.append(None)
        if timing and len(calls) % 10 == 0:
            out.add_(1)

    timing, found = False, 0
    race = local_race(*parts(definition, run, module), WallTimer())
    monkeypatch.setattr(Exchange, "reference_seconds", 0.4)
    race.series.planned = 5
    drawn = race.series.drawn(f"{next(NUMBERS)}/eager", 10)
    assert sorted(map(str, drawn.values())) == ["4", "4", "4", "4", "None"]
    race.turn(1, 10)
    assert len(race.series.drawn(f"{next(NUMBERS)}/eager", 10)) == 9, "now it knows how quick some rows are"
    timing = True
    for number in range(2, 12):
        found += race.turn(number, 10).verdict.status is Status.WRONG_VALUES
    assert found >= 6


@pytest.mark.parametrize("room", [1 << 20, 0], ids=["kept", "not kept"])
def test_calls_are_drawn_before_the_series_and_compared_after_it(definition, monkeypatch, room):
    race, order = local_race(*parts(definition, right), WallTimer()), []
    monkeypatch.setattr("kernelderby.measure.judge.series._KEPT_BYTES", room)
    race.series.planned = 15
    drawn, judged, call = race.series.drawn, race.exchange.judged, race.exchange.executor.candidate.function
    monkeypatch.setattr(race.series, "drawn", lambda *args: order.append("drawn") or drawn(*args))
    monkeypatch.setattr(race.exchange, "judged", lambda *given: order.append("compared") or judged(*given))
    race.exchange.executor.candidate.function = lambda *given: order.append("called") or call(*given)
    race.series.timed("1/eager", "eager", 6)
    assert order.index("drawn") < order.index("called")
    if room:
        assert order[: order.index("compared")].count("called") == 6


def test_between_two_calls_the_judge_does_the_same_for_each(definition, monkeypatch):
    """A worker that waits could tell by the time which calls are compared, and do nothing in the others."""
    race, done = local_race(*parts(definition, right), WallTimer()), []
    check_sum, call = exchange_module.checksum, race.exchange.executor.candidate.function
    race.series.planned = 15  # three of a series
    monkeypatch.setattr(exchange_module, "checksum", lambda given: done.append(sorted(given)) or check_sum(given))
    race.exchange.executor.candidate.function = lambda *given: done.append("called") or call(*given)
    race.series.timed("1/eager", "eager", 6)
    after = " ".join(map(str, done)).split("called")[1:6]
    assert len(set(after)) == 1 and "out" in after[0] and "x" in after[0]


def test_who_waits_to_be_judged_makes_no_reference_slow(definition):
    """Few calls would be compared."""
    race = local_race(*parts(definition, right), WallTimer())
    with correctness._one_at_a_time:
        checking = threading.Thread(target=race.check)
        checking.start()
        time.sleep(0.3)
    checking.join()
    assert 0 < race.exchange.reference_seconds < 0.1


def test_the_reference_reads_what_nobody_else_reaches(definition):
    """Someone writes other contents into the inputs when the call is over, and answers for those."""
    reads = []

    class Module:
        generate_inputs = staticmethod(MODULE.generate_inputs)

        @staticmethod
        def run(x, y, factor):
            reads.append(x.data_ptr())
            return MODULE.run(x, y, factor)

    candidate, module, maker = parts(definition, right, Module)
    race = local_race(candidate, module, maker, WallTimer())
    assert race.check().status is Status.PASSED
    race.start()
    assert race.turn(1, 4).verdict.status is Status.PASSED
    race.batches.sets(4)
    race.batches.us("eager", 4)
    race.reference_latency_us(WallTimer(), 2)
    race.exchange.executor.candidate.function = lambda x, y, factor, out: out.zero_()
    assert race.check(looks_closer=True).status is Status.WRONG_VALUES and race.why
    assert reads and not {each.inputs["x"].data_ptr() for each in race.exchange.every} & set(reads)


def test_what_stays_is_known_from_what_was_written(definition):
    """Something writes into y after the judge has, and before its first look at what lies there."""
    race = local_race(*parts(definition, right), WallTimer())
    write = race.exchange.write_what_stays

    def written(*given, **named):
        write(*given, **named)
        for each in race.exchange.sets:
            each.inputs["y"].zero_()

    race.exchange.write_what_stays = written
    turn = race.turn(1, 4)
    assert turn.verdict.status is Status.INPUT_CHANGED and "y" in turn.verdict.message


def test_what_changes_is_known_from_what_was_written(definition, monkeypatch):
    """Something writes zeros over x as soon as it is there, and answers as if it were zero."""
    race = local_race(*parts(definition, lambda x, y, factor, out: torch.mul(y, factor, out=out)), WallTimer())
    refresh = race.exchange.maker.refresh

    shared = [each.inputs["x"].data_ptr() for each in race.exchange.every]

    def refreshed(inputs, variant):
        refresh(inputs, variant)
        if inputs["x"].data_ptr() in shared:
            inputs["x"].zero_()

    monkeypatch.setattr(race.exchange.maker, "refresh", refreshed)
    assert race.turn(1, 4).verdict.status is Status.INPUT_CHANGED
    with pytest.raises(Wrong) as wrong:
        race.batches.us("eager", 2)
    assert wrong.value.verdict.status is Status.INPUT_CHANGED


def test_every_batch_has_contents_of_its_own(definition):
    seen = []
    race = local_race(
        *parts(definition, lambda *given: (seen.append(given[0].sum().item()), right(*given))), WallTimer()
    )
    assert race.batches.sets(7) == 7
    seen.clear()
    for _ in range(2):
        race.batches.us("eager", 7)
    assert len(set(seen)) == len(seen) == 2 * 6 * (7 + 1)


def test_calls_of_a_batch_side_by_side_gain_nothing(definition):
    """On a CPU each of them takes at least what a call takes that is made alone."""
    count, begun = 7, []

    def run(*given):
        begun.append(threading.Timer(0.02, right, given))
        begun[-1].start()
        if len(begun) == asked[-1]:
            for each in begun:
                each.join()
            begun.clear()

    race = local_race(*parts(definition, right), WallTimer())
    assert race.batches.sets(count) == count
    race.exchange.executor.candidate.function = run
    batch_of, asked = race.exchange.executor.batch, []
    race.exchange.executor.batch = lambda kind, count: (asked.append(count), batch_of(kind, count))
    race.batches.beside = {"eager": batch.Beside(0.0, 0.0)}
    assert race.batches.us("eager", count) > 0.9 * count * 20_000


def test_the_sets_of_a_batch_share_constants_and_nothing_else(with_constant):
    race = local_race(*parts(with_constant, right), WallTimer())
    assert race.batches.sets(5) == 5
    every = race.exchange.every
    assert [each.inputs["x"].data_ptr() for each in every[2:]] == [
        every[n % 2].inputs["x"].data_ptr() for n in (2, 3, 4)
    ]
    assert (
        len({each.inputs["y"].data_ptr() for each in every} | {each.outputs["out"].data_ptr() for each in every}) == 10
    )
    race.batches.us("eager", 5)


def test_setup_is_not_run_again_for_the_sets_of_a_batch(with_constant):
    calls = []

    def setup(**constants):
        calls.append(None)
        return {"doubled": constants["x"] * 2}

    known = parts(with_constant, TestSetup.uses_prepared, setup=setup)
    race = local_race(*known, WallTimer())
    race.batches.sets(5)
    race.batches.us("eager", 5)
    assert len(calls) == 2


@pytest.mark.parametrize("wrong", range(5))
def test_any_call_of_a_batch_that_is_wrong_is_found(definition, wrong):
    calls = []

    def run(x, y, factor, out):
        right(x, y, factor, out)
        calls.append(None)
        if batching and (len(calls) - 1) % 5 == wrong:
            out.mul_(2)

    batching = False
    race = local_race(*parts(definition, run), WallTimer())
    race.batches.sets(5)
    calls.clear()
    batching = True
    with pytest.raises(Wrong, match="after an untimed batch"):
        race.batches.us("eager", 5)


def test_of_the_shortest_batch_enough_calls_are_compared_where_the_reference_is_slow(definition, monkeypatch):
    """It makes half of the calls of one batch, the only one that counts."""
    race = local_race(*parts(definition, lambda *given: (time.sleep(1e-3), right(*given))), WallTimer())
    monkeypatch.setattr(Exchange, "reference_seconds", 1.0)
    monkeypatch.setattr(batch, "BATCHES", 1)
    executor, judged, looks = race.exchange.executor, race.exchange.judged, []
    race.batches.sets(32)
    executor.batch = lambda kind, count: [executor.call(which) for which in range(0, count, 2)]
    monkeypatch.setattr(race.exchange, "judged", lambda *given: looks.append(None) or judged(*given))
    found = 0
    for _ in range(12):
        try:
            race.batches.us("eager", 32)
        except Wrong:
            found += 1
    assert found >= 10 and len(looks) <= 12 * exchange_module.ENOUGH_BY_CLOCK


def test_a_copy_that_somebody_holds_up_takes_nothing_off_a_batch(definition, monkeypatch):
    race = local_race(*parts(definition, lambda *given: (time.sleep(0.01), right(*given))), WallTimer())
    copied, released = batch._copied, []
    call = race.exchange.executor.batch
    race.exchange.executor.batch = lambda *given: (call(*given), released.append(None))

    def held_up(*given):
        if released:
            time.sleep(0.001)
        return copied(*given)

    monkeypatch.setattr(batch, "_copied", held_up)
    assert race.batches.us("eager", 2) > 20_500, "and the copies that were held up"


def test_an_input_written_in_a_timed_call_is_seen(definition):
    def run(x, y, factor, out):
        right(x, y, factor, out)
        y[0, 0] += 1

    assert local_race(*parts(definition, run), WallTimer()).turn(1, 4).verdict.status is Status.INPUT_CHANGED


class TestInPlace:
    @staticmethod
    def adds_into(x, y, factor, out):
        assert out.data_ptr() == x.data_ptr()
        out.add_(y, alpha=factor)

    def test_the_input_is_a_private_copy_that_is_restored(self, definition):
        known = parts(definition, self.adds_into, in_place={"out": "x"})
        assert local_check(*known).status is Status.PASSED
        turn = local_race(*known, WallTimer()).turn(1, 6)
        assert turn.verdict.status is Status.PASSED and len(turn.eager.spans_us) == 6

    def test_writing_nothing_leaves_the_input_and_is_wrong(self, definition):
        known = parts(definition, lambda x, y, factor, out: None, in_place={"out": "x"})
        assert local_check(*known).status is Status.WRONG_VALUES

    def test_another_input_is_still_watched(self, definition):
        def run(x, y, factor, out):
            self.adds_into(x, y, factor, out)
            y.zero_()

        assert local_check(*parts(definition, run, in_place={"out": "x"})).status is Status.INPUT_CHANGED


class TestSetup:
    @staticmethod
    def uses_prepared(x, y, factor, out, **prepared):
        assert set(prepared) == {"doubled"}
        torch.add(prepared["doubled"] / 2, y, alpha=factor, out=out)

    def test_it_gets_the_constants_once_and_its_result_is_passed(self, with_constant):
        calls = []

        def setup(**constants):
            calls.append(set(constants))
            return {"doubled": constants["x"] * 2}

        known = parts(with_constant, self.uses_prepared, setup=setup)
        assert local_check(*known).status is Status.PASSED
        calls.clear()
        race = local_race(*known, WallTimer())
        assert [race.turn(number, 4).verdict.status for number in (1, 2)] == [Status.PASSED] * 2
        assert calls == [{"x"}, {"x"}], "once for each set of inputs"
        assert race.setup.seconds > 0

    @pytest.mark.parametrize("setup", [None, "main.py::setup"])
    def test_what_a_step_shares_stays_for_those_that_set_up(self, definition, setup):
        """Lengths, for example: one plan serves all layers. A solution without `setup` gets others at the same
        addresses."""
        inputs = {**definition.inputs, "y": replace(definition.inputs["y"], constant="step")}
        shared = replace(definition, inputs=inputs)
        assert (shared.constants, shared.of_setup, shared.with_setup().constants) == ((), ("y",), ("y",))
        candidate, module, maker = parts(shared, right, setup=lambda **given: {"kept": [*given]})
        table = JudgesTable(shared, None, maker, module, CPU, Machine("cpu"), "")
        maker = table.race(
            SimpleNamespace(setup=setup, in_place={}), CallExecutor(candidate, WallTimer(), CPU)
        ).exchange.maker
        values = maker.make()
        before = values["y"].clone()
        maker.write(values, 1, constants=False)
        assert torch.equal(values["y"], before) is (setup is not None)
        assert candidate.set_up(values, CPU)[0] == {"kept": ["y"]}

    def test_what_is_no_constant_still_changes(self, with_constant):
        """Both inputs folded at setup: y is generated and no constant, so setup never sees it."""
        with pytest.raises(KeyError):
            local_race(*parts(with_constant, right, setup=lambda **constants: {"sum": constants["y"]}), WallTimer())

    def test_it_must_give_a_dict(self, with_constant):
        with pytest.raises(TypeError, match="must return a dict"):
            local_race(*parts(with_constant, right, setup=lambda **constants: constants["x"]), WallTimer())


class FakeGraphs(Timer):
    """Capture on a CPU: the call itself is the replay, so that the look at replays can be tried."""

    protocol, device = "cpu-wall", CPU

    def __init__(self, frozen=False):
        self.frozen = frozen

    spans = WallTimer.spans

    def capture(self, call, pool=None):
        call()
        if not self.frozen:
            return call
        answer = {name: tensor.clone() for name, tensor in call().items()}
        outputs = call()
        return lambda: [outputs[name].copy_(tensor) for name, tensor in answer.items()]


def test_further_sets_are_captured_whoever_adds_to_the_list_that_was_given(definition):
    """A worker keeps a list of the sets that it has opened, and adds to it before it extends its executor."""
    exchange = local_race(*parts(definition, right), FakeGraphs()).exchange
    executor, opened = exchange.executor, list(exchange.sets)
    executor.attach(opened, exchange.signals)
    executor.capture()
    opened += (more := [exchange.buffers(exchange.maker) for _ in range(3)])
    executor.extend(more)
    executor.batch("graph", len(opened))
    assert len(executor.sets) == len(opened) == 5


def test_a_replay_is_timed_and_looked_at(definition):
    race = local_race(*parts(definition, right), FakeGraphs())
    race.capture()
    turn = race.turn(1, 4)
    assert turn.verdict.status is Status.PASSED
    assert len(turn.graph.spans_us) == len(turn.eager.spans_us) == 4


def test_a_capture_that_freezes_its_answer_has_no_graph(definition):
    race = local_race(*parts(definition, right), FakeGraphs(frozen=True))
    with pytest.raises(NotCapturable, match="froze"):
        race.capture()
    turn = race.turn(1, 4)
    assert turn.verdict.status is Status.PASSED and turn.graph is None


def test_a_cpu_has_no_graphs(definition):
    race = local_race(*parts(definition, right), WallTimer())
    with pytest.raises(NotCapturable, match="CPU"):
        race.capture()
    assert race.turn(1, 2).graph is None


def test_a_large_input_is_refreshed_as_a_whole(definition, monkeypatch):
    from kernelderby.measure.judge import inputs

    monkeypatch.setattr(inputs, "CHUNK", 20)
    _, _, maker = parts(definition, right)
    made = maker.make()
    seen = [made["x"].clone()]
    for number in range(4):
        maker.refresh(made, f"1/{number}")
        assert all((made["x"] != before).all() for before in seen)
        seen.append(made["x"].clone())
    maker.refresh(made, "1/0")
    assert torch.equal(made["x"], seen[1])


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("random", ["nothing", "next to nothing"])
def test_where_next_to_nothing_is_random_every_call_gets_generated_contents_of_its_own(
    definition, monkeypatch, random, slow
):
    """Slow generators make only a few contents."""
    if slow:
        monkeypatch.setattr("kernelderby.measure.judge.inputs._QUICK_SECONDS", 0.0)
    columns = definition.inputs["x"].shape if random == "nothing" else ("one",)
    module = SimpleNamespace(
        run=lambda x, y, factor: factor * y,
        generate_inputs=lambda values, device: {
            **(MODULE.generate_inputs(values, device)),
            **({"x": torch.zeros(3, 16)} if random == "nothing" else {}),
        },
    )
    inputs = {**definition.inputs, "x": replace(definition.inputs["x"], shape=columns)}
    definition = replace(definition, inputs=inputs)
    case = Case("", {"rows": 3, "columns": 16, "one": 1}, {"factor": 2.0}, 5)
    maker = InputMaker(definition, module, case, CPU, None, "secret")
    seen = []

    def run(x, y, factor, out):
        seen.append(y.sum().item())
        torch.mul(y, factor, out=out)

    race = local_race(Candidate(run, True, definition), module, maker, WallTimer())
    seen.clear()
    assert race.turn(1, 20).verdict.status is Status.PASSED
    contents = len(set(seen[WARMUP : WARMUP + 20]))
    assert contents <= 4 if slow else contents == 20


@pytest.fixture
def in_rows(monkeypatch):
    """The module with rows that stand alone, whose reference notes how many it was asked for."""
    monkeypatch.setattr(exchange_module, "_JOINING_SECONDS", 0.0)
    asked = []

    def run(x, y, factor):
        asked.append(len(x))
        return x + factor * y

    return SimpleNamespace(
        run=run, generate_inputs=MODULE.generate_inputs, REFERENCE_ROWS={"x": 0, "y": 0}, asked=asked
    )


def test_calls_of_a_series_are_compared_with_one_reference_of_each_set(definition, in_rows):
    race = local_race(*parts(definition, right, in_rows), WallTimer())
    assert race.turn(1, 12, ("eager",)).verdict.status is Status.PASSED
    assert in_rows.asked == [18, 18], "3 rows of 6 calls each"


def test_a_call_among_those_of_one_reference_is_found_wrong(definition, in_rows):
    calls = []

    def wrong_once(x, y, factor, out):
        right(x, y, factor, out)
        calls.append(None)
        if len(calls) == WARMUP + 5:
            out[2, 3] += 1

    race = local_race(*parts(definition, wrong_once, in_rows), WallTimer())
    verdict = race.turn(1, 12, ("eager",)).verdict
    assert verdict.status is Status.WRONG_VALUES and 18 in in_rows.asked


@pytest.mark.parametrize("joined", ["raises", "gives other rows", "does not fit"])
def test_where_a_joined_reference_fails_each_call_has_its_own(definition, in_rows, monkeypatch, joined):
    run = in_rows.run
    in_rows.run = lambda x, y, factor: (
        run(x, y, factor) if len(x) == 3 else {"raises": None, "gives other rows": x[:3]}[joined]
    )
    if joined == "does not fit":
        monkeypatch.setattr(exchange_module, "_JOINED_BYTES", 1)
    race = local_race(*parts(definition, right, in_rows), WallTimer())
    assert race.turn(1, 12, ("eager",)).verdict.status is Status.PASSED
    assert in_rows.asked == [3] * 12


def test_calls_whose_other_contents_change_are_not_joined(definition, in_rows):
    in_rows.REFERENCE_ROWS = {"y": 0}
    race = local_race(*parts(definition, right, in_rows), WallTimer())
    assert race.turn(1, 12, ("eager",)).verdict.status is Status.PASSED
    assert in_rows.asked == [3] * 12
