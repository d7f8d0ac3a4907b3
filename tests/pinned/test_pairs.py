"""rank/pairs.py by worked examples."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from rank_rows import ranked, rows, workload


def only_pair(*arguments):
    [pair] = ranked(*arguments).pairs
    return pair


def test_pairs_of_two_workloads():
    """b takes 2 and 8 times as long as a: 4 by the geomean, 26 / 4 by total time."""
    pair = only_pair(rows(a=[1.0, 3.0], b=[2.0, 24.0]), 2)
    assert pair.geomean.value == pytest.approx(4.0) and (pair.wins, pair.ties, pair.losses) == (2, 0, 0)
    assert pair.geomean.low == pytest.approx(4.0) == pair.geomean.high, "rounds that drift together do not spread"


def test_importance_weighs_the_geomean_of_a_pair():
    shapes = [workload("w1", importance=3.0), workload("w2", importance=1.0)]
    pair = only_pair(rows(a=[1.0, 1.0], b=[2.0, 32.0]), shapes)
    assert pair.geomean.value == pytest.approx((2**3 * 32) ** 0.25)


def test_a_row_without_interval_ties_only_with_the_same_number():
    """One sample each: nothing is known of the spread."""
    found = rows(a=[1.0, 2.0, 3.0], b=[1.0, 2.5, 2.0])
    pair = only_pair([replace(each, samples_us=((each.latency_us,),)) for each in found], 3)
    assert {pair.wins, pair.losses} == {1} and pair.ties == 1 and pair.geomean.low is None
