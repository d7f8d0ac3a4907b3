"""profile/spans.py and rank/pairs.py by worked examples."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kernelderby.profile.spans import Span, SpanKind, is_waiting, sum_spans

sys.path.insert(0, str(Path(__file__).parent.parent))
from rank_rows import ranked, rows, workload

K, C = SpanKind.KERNEL, SpanKind.MEMCPY


def test_sums_of_one_kind_and_name():
    spans = [
        Span(K, "a", 0, 10),
        Span(K, "a", 20, 50),
        Span(K, "a", 60, 161),
        Span(C, "a", 0, 7, bytes=3),
        Span(C, "a", 8, 9, bytes=4),
    ]
    first, second = sum_spans(spans)
    assert (first.kind, first.instances, first.total_ns, first.median_ns) == (K, 3, 141, 30)
    assert (first.min_ns, first.max_ns, first.bytes, first.average_ns) == (10, 101, None, 47.0)
    assert first.stddev_ns == pytest.approx((((10 - 47) ** 2 + (30 - 47) ** 2 + (101 - 47) ** 2) / 2) ** 0.5)
    assert (second.kind, second.instances, second.total_ns, second.median_ns, second.bytes) == (C, 2, 8, 4, 7)
    assert sum_spans([Span(K, "one", 5, 9)])[0].stddev_ns == 0.0


def test_sums_largest_first_then_fewest_then_by_name():
    spans = [Span(K, "z", 0, 4), Span(K, "b", 0, 2), Span(K, "b", 0, 2), Span(K, "a", 0, 4), Span(K, "big", 0, 9)]
    assert [each.name for each in sum_spans(spans)] == ["big", "a", "z", "b"]


def test_calls_that_wait():
    for call in (
        "cudaDeviceSynchronize",
        "cuStreamSynchronize_ptsz",
        "cudaStreamWaitEvent_v3020",
        "hipDeviceSynchronize",
    ):
        assert is_waiting(call) and not is_waiting("my_" + call)
    assert not is_waiting("cudaMemcpy") and not is_waiting("cudaDeviceSynchronizeAsync")


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
