"""The contents that a turn's calls share are generated once a round: who races later gets a copy, which is the same to
the last bit, and is generated again where the memory behind it holds something else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_race import parts, right, with_constant  # noqa: F401

torch = pytest.importorskip("torch")
from measuring import DEFINITION, MISBEHAVIOURS  # noqa: E402

from kernelderby.catalog import Catalog  # noqa: E402
from kernelderby.measure.clock.timing import WallTimer  # noqa: E402
from kernelderby.measure.judge.exchange import Exchange, References  # noqa: E402
from kernelderby.measure.judge.race import Race  # noqa: E402
from kernelderby.measure.worker.executor import CallExecutor  # noqa: E402
from kernelderby.rows.measurement import Status  # noqa: E402


@pytest.fixture
def definition():
    return Catalog.open(MISBEHAVIOURS).definition(DEFINITION)


def race_of(definition, references, number=0, function=right, **calling):
    candidate, module, maker = parts(definition, function, **calling)
    executor = CallExecutor(candidate, WallTimer(), maker.device)
    maker = maker.numbered(number)
    race = Race(Exchange(definition, module, maker, executor, candidate.in_place, False, references))
    race.start()
    return race


def written(race, monkeypatch, number):
    """(own contents, the worker's, the names that were generated) of a turn's first moment."""
    exchange, made = race.exchange, []
    fill = exchange.maker._fill
    monkeypatch.setattr(exchange.maker, "_fill", lambda name, *given: (made.append(name), fill(name, *given)))
    exchange.write_what_stays([f"{number}/{which}" for which in range(2)], whole=False)
    own, shared = ([each["x"].clone() for each in sets] for sets in (exchange._own, [s.inputs for s in exchange.sets]))
    return own, shared, made


def test_who_races_later_gets_the_same_without_generating(with_constant, monkeypatch):  # noqa: F811
    references = References()
    first, second, alone = (race_of(with_constant, each) for each in (references, references, References()))
    for number in (1, 2):
        own, shared, made = written(first, monkeypatch, number)
        again, given, copied = written(second, monkeypatch, number)
        expected, _, _ = written(alone, monkeypatch, number)
        assert made == ["x", "x"] and copied == []
        for which in range(2):
            assert all(torch.equal(each[which], expected[which]) for each in (own, shared, again, given))
        assert first.exchange.stays == second.exchange.stays == alone.exchange.stays
    assert not torch.equal(own[0], own[1])


def test_other_memory_other_secrets_and_other_turns_are_generated(with_constant, monkeypatch):  # noqa: F811
    references = References()
    first, second, third = (race_of(with_constant, references) for _ in range(3))
    other = race_of(with_constant, references, number=1)  # of the same author, in a sealed session
    expected, _, _ = written(first, monkeypatch, 1)
    first.exchange._own[0]["x"][0, 0] += 1  # a reference that writes into its inputs
    own, shared, made = written(second, monkeypatch, 1)
    assert made == ["x"] and torch.equal(own[0], expected[0]) and torch.equal(shared[0], expected[0])
    assert written(third, monkeypatch, 1)[2] == [], "the second one's are sound"
    own, _, made = written(other, monkeypatch, 1)
    assert made == ["x", "x"] and not torch.equal(own[0], expected[0])
    assert written(second, monkeypatch, 2)[2] == ["x", "x"]
    second.exchange.release()
    assert written(first, monkeypatch, 2)[2] == ["x", "x"], "nothing is there any more"
    references.clear()
    assert written(third, monkeypatch, 2)[2] == ["x", "x"]


def test_what_changes_with_every_call_is_no_copy(definition, monkeypatch):
    """x is no constant here: it has other contents once the turn is over."""
    references = References()
    first, second = race_of(definition, references), race_of(definition, references)
    assert first.turn(1, 4).verdict.status is Status.PASSED
    _, _, made = written(second, monkeypatch, 1)
    assert made == ["x", "x"]


def test_two_race_in_turn(with_constant):  # noqa: F811
    references = References()
    seen = [[], []]

    def seeing(x, y, factor, out, which):
        seen[which].append(x.sum().item())
        right(x, y, factor, out)

    races = [
        race_of(with_constant, references, function=lambda *given, which=which: seeing(*given, which))
        for which in range(2)
    ]
    for number in (1, 2, 3):
        for race in races:
            assert race.turn(number, 4).verdict.status is Status.PASSED
    assert set(seen[0]) == set(seen[1]) and len(set(seen[0])) == 6


def test_a_constant_that_is_changed_while_timed_is_found_in_a_copy_too(with_constant):  # noqa: F811
    references, calls = References(), []

    def writes(x, y, factor, out):
        right(x, y, factor, out)
        calls.append(None)
        if len(calls) == 9:
            x[0, 0] += 1

    first, second = race_of(with_constant, references), race_of(with_constant, references, function=writes)
    assert first.turn(1, 4).verdict.status is Status.PASSED
    calls.clear()
    assert second.turn(1, 6).verdict.status is Status.INPUT_CHANGED
    third = race_of(with_constant, references)
    assert third.turn(1, 4).verdict.status is Status.PASSED, "the judge's memory is nobody else's"


def test_the_trial_has_the_contents_of_the_start(with_constant):  # noqa: F811
    seen = []

    def seeing(x, y, factor, out):
        seen.append(x.clone())
        right(x, y, factor, out)

    race = race_of(replace(with_constant), References(), function=seeing)
    started = [each.inputs["x"].clone() for each in race.exchange.sets]
    assert race.turn(0, 2).verdict.status is Status.PASSED
    assert all(any(torch.equal(x, each) for each in started) for x in seen)
    seen.clear()
    assert race.turn(1, 2).verdict.status is Status.PASSED
    assert not any(torch.equal(x, each) for each in started for x in seen)
