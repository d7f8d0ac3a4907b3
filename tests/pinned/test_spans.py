"""profile/spans.py by worked examples."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from kernelderby.profile import operators
from kernelderby.profile.spans import ApiSum, KernelSum, Profile, Span, SpanKind, is_waiting, sum_spans

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


class Summed(Profile):
    """A source that has sums alone."""

    def sums(self):
        return [KernelSum(K, "a", 2, 10.0), KernelSum(C, "a", 1, 1.0), KernelSum(K, "b", 0, 0.0)]


def test_what_a_source_of_sums_has():
    profile = Summed(Path("p"), "a table", warnings=iter(["one"]))
    assert (profile.has_events, profile.compute_capability, profile.gpu, profile.warnings) == (
        False,
        None,
        None,
        ["one"],
    )
    assert profile.names() == ["a", "b"] and profile.sums()[2].average_ns == 0.0
    assert (
        profile.api_sums()
        == profile.waits()
        == profile.range_instances(re.compile("x"))
        == profile.launch_shapes()
        == []
    )
    assert profile.gpu_of(3, 1) == "3:1" and profile.unlinked_launches == 0 and ApiSum("c", 1, 2.0).calls == 1
    with pytest.raises(NotImplementedError):
        profile.spans()


def test_kernels_without_a_launch_are_told_once():
    profile = Summed(Path("p"), "a table")
    for count in (0, 1234, 1234):
        profile.warn_unlinked(count)
    assert len(profile.warnings) == 1 and profile.warnings[0].startswith("1,234 kernels have no launch")
    for count in (1, 2):
        profile.warn_unlinked(count)
    assert [each.partition(" no")[0] for each in profile.warnings[1:]] == ["1 kernel has", "2 kernels have"]


def test_spans_without_launches():
    class Walked(Summed):
        def spans(self):
            return iter([Span(K, "a", 1, 2)])

    assert [*Walked(Path("p"), "x").launched()] == [(Span(K, "a", 1, 2), None, None)]
    one = Span(K, "a", 1, 2)
    assert (one.process, one.device, one.stream, one.ranges, one.bytes) == (0, 0, 0, (), 0)


def test_the_spread_of_two():
    assert sum_spans([Span(K, "a", 0, 10), Span(K, "a", 10, 24)])[0].stddev_ns == pytest.approx(8**0.5)
    profile = Summed(Path("p"), "a table")
    assert profile.whole_graphs == 0
    assert profile.captured_graphs() == profile.modules() == profile.memory() == []


def test_kernels_that_follow_one_another_in_one_range_are_of_one_call(monkeypatch):
    """A call is the same object for as long as the path of ranges stays the same, in each process for itself."""
    monkeypatch.setattr(operators, "call_of_range", lambda name: None if name == "silent" else [name])
    given = [
        ("a", "b"),
        ("a", "b"),  # the same two calls
        ("a", "c"),  # the same a, another one in it
        ("a", "b"),  # the same a, a new b
        ("a", "b", "b"),
        (),
        ("a", "b"),  # after a gap: new ones
        ("silent", "b"),
        ("b", "b"),
        ("x", "b"),  # the same name at the same depth, in another one
    ]

    class Walked(Summed):
        def spans(self):
            for number, ranges in enumerate(given):
                yield Span(K, "k", number, number + 1, ranges=ranges)
                yield Span(K, "k", number, number + 1, ranges=("a", "other"), process=1)

    found = [issued.chain for issued in Walked(Path("p"), "x").issued()]
    one, other = found[::2], found[1::2]
    assert [[*map("".join, each)] for each in one] == [
        [name for name in ranges if name != "silent"] for ranges in given
    ]
    assert len({id(each) for path in other for each in path}) == 2, "another process has calls of its own"
    same = [[a is b for a, b in zip(first, second, strict=False)] for first, second in pairwise(one)]
    assert same == [[True, True], [True, False], [True, False], [True, True], [], [], [False], [False], [False, False]]
