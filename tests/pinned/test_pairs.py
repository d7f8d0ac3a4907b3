"""rank/pairs.py by worked examples."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parent.parent))
from rank_rows import ranked, rows, workload

from kernelderby.statistics.bootstrap import widening


def only_pair(*arguments):
    [pair] = ranked(*arguments).pairs
    return pair


def test_pairs_of_two_workloads():
    """b takes 2 and 8 times as long as a: 4 by the geomean, 26 / 4 by total time."""
    pair = only_pair(rows(a=[1.0, 3.0], b=[2.0, 24.0]), 2)
    assert pair.geomean.value == pytest.approx(4.0) and (pair.wins, pair.ties, pair.losses) == (2, 0, 0)
    assert pair.geomean.low == pytest.approx(4.0) == pair.geomean.high, "rounds that drift together do not spread"


def test_a_workload_has_its_ratio_over_the_baseline_on_both_sides_of_it():
    found = ranked(rows(a=[1.0, 9.0], b=[2.0, 1.0], c=[6.0, None]), 2, baseline="b")
    assert found.order == ("b", "a", "c")
    assert ratios(found, "w1") == {"a": 0.5, "b": None, "c": 3.0}
    assert ratios(found, "w2") == {"a": 9.0, "b": None, "c": None}
    found = ranked(rows(a=[1.0, 9.0], b=[2.0, None]), 2, baseline="b")
    assert (ratios(found, "w1")["a"], ratios(found, "w2")["a"]) == (0.5, None)


def ratios(found, uuid):
    return {name: cell.ratio and cell.ratio.value for name, cell in found.row(uuid).cells.items()}


def test_importance_weighs_the_geomean_of_a_pair():
    shapes = [workload("w1", importance=3.0), workload("w2", importance=1.0)]
    pair = only_pair(rows(a=[1.0, 1.0], b=[2.0, 32.0]), shapes)
    assert pair.geomean.value == pytest.approx((2**3 * 32) ** 0.25)


def test_a_row_without_interval_ties_only_with_the_same_number():
    """One sample each: nothing is known of the spread."""
    found = rows(a=[1.0, 2.0, 3.0], b=[1.0, 2.5, 2.0])
    pair = only_pair([replace(each, samples_us=((each.latency_us,),)) for each in found], 3)
    assert {pair.wins, pair.losses} == {1} and pair.ties == 1 and pair.geomean.low is None


def noisy(found, spread=(0.9, 1.0, 1.02, 1.3), only="w1"):
    """Rows whose rounds differ on one workload for one solution: an interval that is wider above than below."""
    return [
        replace(each, samples_us=tuple((each.latency_us * (by if each.solution == "b" else 1.0),) * 3 for by in spread))
        if each.uuid == only
        else replace(each, samples_us=((each.latency_us,) * 3,) * len(spread))
        for each in found
    ]


def test_an_uncertain_workload_counts_by_its_importance():
    """The other one has no spread: of a weight of 1 in 10 a fifth of the interval is left that 1 in 2 has."""
    found = noisy(rows(a=[1.0, 1.0], b=[2.0, 2.0]))
    even = only_pair(found, [workload("w1"), workload("w2")]).geomean
    few = only_pair(found, [workload("w1"), workload("w2", importance=9.0)]).geomean
    many = only_pair(found, [workload("w1", importance=9.0), workload("w2")]).geomean
    for end in ("low", "high"):
        wide = math.log(getattr(even, end) / even.value)
        assert math.log(getattr(few, end) / few.value) == pytest.approx(wide / 5)
        assert math.log(getattr(many, end) / many.value) == pytest.approx(wide * 1.8)
    assert math.log(even.high / even.value) > 1.2 * math.log(even.value / even.low), (
        "b's rounds are longer, not shorter"
    )


def test_two_rounds_are_enough_for_an_interval_and_one_is_not():
    pair = only_pair(noisy(rows(a=[1.0], b=[2.0]), (0.99, 1.01)), 1)
    assert pair.geomean.low is not None and pair.wins == 1
    pair = only_pair(noisy(rows(a=[1.0], b=[1.001]), (0.9, 1.1)), 1)
    assert (pair.wins, pair.ties) == (0, 1), "within the noise"
    found = noisy(rows(a=[1.0, 1.0], b=[2.0, 2.0]))
    found = [replace(each, samples_us=((each.latency_us,),)) if each.uuid == "w2" else each for each in found]
    assert only_pair(found, 2).geomean.low is None, "one workload without an interval: the mean has none"


def test_one_workload_of_two_sessions_makes_the_mean_unpaired():
    found = noisy(rows(a=[1.0, 1.0], b=[2.0, 2.0]))
    apart = [replace(each, session=each.solution) if each.uuid == "w2" else each for each in found]
    assert "paired" in vars_of(only_pair(found, 2).geomean)
    assert "unpaired" in vars_of(only_pair(apart, 2).geomean)


def vars_of(record):
    return [getattr(record, name) for name in type(record).__dataclass_fields__]


def test_degrees_of_freedom_add_up():
    """Four rounds that alternated have 3, those of two workloads 6; an importance of 2 is no 1."""
    found = noisy(rows(a=[1.0, 1.0], b=[2.0, 2.0]))
    one = only_pair([each for each in found if each.uuid == "w1"], 1).geomean
    two = only_pair(found, 2).geomean
    wider = widening(np.array([3, 6]))
    assert math.log(two.high / 2) == pytest.approx(math.log(one.high / 2) / 2 * wider[1] / wider[0])
    doubled = only_pair(found, [workload("w1", importance=2.0), workload("w2", importance=2.0)]).geomean
    assert (doubled.low, doubled.high) == pytest.approx((two.low, two.high))
