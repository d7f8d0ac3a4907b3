"""rank/order.py by worked examples."""

import math
import random

import pytest

from kernelderby.rank.order import coverage_class, max_distance, order, order_dependences, slowdowns

TIMES = {"a": {"w1": 2.0, "w2": 8.0}, "b": {"w1": 4.0, "w2": 4.0}, "c": {"w1": 2.0}, "none": {}}


def test_slowdowns_weigh_by_importance():
    """a: 1 and 2, b: 2 and 1, on the fastest of each workload."""
    found = slowdowns(TIMES, {"w1": 1.0, "w2": 1.0})
    assert found == pytest.approx({"a": math.sqrt(2), "b": math.sqrt(2), "c": 1.0})
    found = slowdowns(TIMES, {"w1": 3.0, "w2": 1.0})
    assert found == pytest.approx({"a": 2**0.25, "b": 2**0.75, "c": 1.0})


def test_coverage_comes_first_then_slowdown_then_the_name():
    assert order(TIMES, {"w1": 3.0, "w2": 1.0}) == ("a", "b", "c", "none")
    assert order(TIMES, {"w1": 1.0, "w2": 3.0}) == ("b", "a", "c", "none")
    same = {"b": {"w1": 1.0}, "a": {"w1": 1.0}}
    assert order(same, {"w1": 1.0}) == ("a", "b") == order(dict(reversed(same.items())), {"w1": 1.0})
    assert order(TIMES, {"w1": 1.0, "w2": 1.0}, {"a": 3.0, "b": 2.0, "c": 1.0}) == ("b", "a", "c", "none")
    assert order(TIMES, {"w1": 1.0, "w2": 1.0}, asked={name: {"w1"} for name in TIMES})[0] == "c"


def test_coverage_is_all_some_or_none():
    assert [coverage_class(passed, ["w1", "w2"]) for passed in (TIMES["a"], TIMES["c"], {})] == [0, 1, 2]
    assert coverage_class({"w1": 1.0}, []) == 0


@pytest.mark.parametrize(("solutions", "near"), [(0, 128), (1, 128), (11, 11), (12, 10), (64, 2), (128, 1), (900, 1)])
def test_reach(solutions, near):
    assert max_distance(solutions) == near


def test_one_workload_that_decides():
    """Without w3 a is ahead, without w1 or w2 still b; equal ones do not change places by rounding."""
    times = {"a": {"w1": 1.0, "w2": 1.0, "w3": 8.0}, "b": {"w1": 1.5, "w2": 1.5, "w3": 1.0}, "c": {"w1": 1.0}}
    weights = dict.fromkeys(("w1", "w2", "w3"), 1.0)
    ordered = order(times, weights)
    assert ordered == ("b", "a", "c")
    found = order_dependences(times, weights, ordered)
    assert [
        (each.ahead, each.behind, each.without)
        if hasattr(each, "ahead")
        else tuple(getattr(each, name) for name in type(each).__dataclass_fields__)
        for each in found
    ] == [("b", "a", ("w3",))]
    assert order_dependences(times, {}, ordered) == ()
    twins = {name: dict.fromkeys(weights, 0.1) for name in ("a", "b")}
    assert order_dependences(twins, weights, ("a", "b")) == ()


def test_importance_decides_what_one_workload_can_turn():
    times = {"a": {"w1": 1.0, "w2": 2.0}, "b": {"w1": 1.5, "w2": 1.0}}
    few, many = {"w1": 1.0, "w2": 1.0}, {"w1": 9.0, "w2": 1.0}
    assert order(times, few)[0] == "b" and order(times, many)[0] == "a"
    [found] = order_dependences(times, many, ("a", "b"))
    assert "w1" in str(found) and "w2" not in str(found).replace("w1", "")


def test_no_dependence_across_coverage_classes_or_of_none():
    times = {"a": {"w1": 9.0, "w2": 9.0}, "b": {"w1": 1.0}, "c": {}, "d": {}}
    weights = {"w1": 1.0, "w2": 1.0}
    assert order_dependences(times, weights, order(times, weights)) == ()


def turned(times, importance, ordered, asked):
    """order_dependences by its definition: one pair and one workload at a time."""
    best = {uuid: min(own[uuid] for own in times.values() if uuid in own) for uuid in importance}

    def slowdown(name, left_out):
        kept = [uuid for uuid in times[name] if uuid != left_out]
        total = sum(importance[uuid] for uuid in kept)
        logs = sum(importance[uuid] * math.log(times[name][uuid] / best[uuid]) for uuid in kept)
        return logs / total if kept else math.nan

    found = {}
    for place, first in enumerate(ordered):
        for second in ordered[place + 1 : place + 1 + max_distance(len(ordered))]:
            classes = {coverage_class(times[name], asked.get(name, importance)) for name in (first, second)}
            if len(classes) == 1 and classes != {2}:
                turns = [uuid for uuid in importance if slowdown(first, uuid) > slowdown(second, uuid) + 1e-9]
                if turns:
                    found[first, second] = tuple(turns)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_order_dependences_by_their_definition(seed):
    """Solutions that failed some workloads, or were asked for few; more of them than all pairs are looked at."""
    rng = random.Random(seed)
    uuids = [f"w{number}" for number in range(4)]
    importance = {uuid: rng.choice((0.5, 1.0, 3.0)) for uuid in uuids}
    names = [f"s{number:02}" for number in range((5, 14, 40)[seed % 3])]
    times = {name: {uuid: rng.uniform(1, 3) for uuid in uuids if rng.random() < 0.8} for name in names}
    times["s00"] = dict(zip(uuids, (0.2, 0.9, 0.4, 0.7), strict=True))
    times["s01"] = {}
    asked = {name: tuple(times[name]) if rng.random() < 0.3 else tuple(uuids) for name in names}
    ordered = order(times, importance, asked=asked)
    found = order_dependences(times, importance, ordered, asked)
    expected = turned(times, importance, ordered, asked)
    assert {
        tuple(getattr(each, name) for name in type(each).__dataclass_fields__)[:2]: each for each in found
    }.keys() == (expected.keys())
    assert [tuple(getattr(each, name) for name in type(each).__dataclass_fields__) for each in found] == [
        (*pair, turns) for pair, turns in expected.items()
    ]
    assert len(expected) > 5 or seed % 3 == 0
