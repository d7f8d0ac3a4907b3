"""Two profiles: aligned by stage and by kernel. Answers worked out by hand."""

import pytest
from memory_profile import EventProfile, events, sums

from kernelderby.profile.compare import compare_kernels, compare_stages
from kernelderby.profile.spans import Span, SpanKind
from kernelderby.profile.stages.walk import pipeline_of
from kernelderby.trace import Stage

STAGES = (
    Stage("K1", "route", ("^route$",)),
    Stage("K3", "GEMM 1", ("^gemm",)),
    Stage("K4", "act", ("^act$",)),
    Stage("K5", "GEMM 2", ("^gemm",)),
)


def stages(*invocations):
    return pipeline_of(events(*[work for work in invocations]), STAGES, "s")


def verdicts(found):
    return {change.name: change.verdict for change in found.changes}


def by_name(found):
    return {change.name: change for change in found.changes}


def test_by_stage_and_invocation():
    before = stages(*[("route", 10), ("gemm", 100), ("act", 20), ("gemm", 50)] * 2)
    after = stages(*[("route", 10), ("gemm", 60), ("gemm", 55)] * 3)
    found = compare_stages(before, after)
    assert (found.unit, found.before_ns, found.after_ns) == ("invocation", 180, 125)
    assert found.ratio == pytest.approx(125 / 180)
    assert verdicts(found) == {"K3": "sped up", "K4": "vanished", "K5": "slowed down", "K1": "unchanged"}
    assert [change.name for change in found.changes] == ["K3", "K4", "K5", "K1"]
    first = by_name(found)["K3"]
    assert first.ratio == 0.6 and first.change_ns == -40 and first.share_of_change == pytest.approx(40 / 55)
    assert by_name(found)["K4"].ratio is None
    assert sum(change.share_of_change for change in found.changes) == pytest.approx(1)
    assert verdicts(compare_stages(after, before))["K4"] == "appeared"


def test_events_against_a_summary_that_merges_stages():
    before = pipeline_of(sums({"route": (2, 20), "gemm": (4, 400), "act": (2, 40)}), STAGES, "s")
    after = stages(("route", 10), ("gemm", 60), ("act", 20), ("gemm", 40))
    found = compare_stages(before, after)
    assert by_name(found)["K3 / K5"].before_ns == 200 and by_name(found)["K3 / K5"].after_ns == 100
    assert set(verdicts(found)) == {"K1", "K3 / K5", "K4"}


def test_overlapped_time_counts_once_where_both_have_events():
    def at(*times):
        kernels = zip(("route", "gemm", "act", "gemm"), times, strict=True)
        return EventProfile(events=[Span(SpanKind.KERNEL, name, *time) for name, time in kernels])

    before = pipeline_of(at((0, 10), (10, 110), (110, 130), (130, 180)), STAGES, "s")
    after = pipeline_of(at((0, 10), (5, 110), (20, 130), (40, 180)), STAGES, "s")
    found = compare_stages(before, after)
    assert set(verdicts(found).values()) == {"unchanged"} and found.ratio == 1
    assert any("kernels overlap; times are what a stage adds" in warning for warning in found.warnings)
    summary = pipeline_of(sums({"route": (1, 10), "gemm": (2, 150), "act": (1, 20)}), STAGES, "s")
    durations = compare_stages(summary, after)
    assert by_name(durations)["K4"].after_ns == 110
    assert any("has no events, so durations are compared" in warning for warning in durations.warnings)


def test_a_profile_without_invocations_is_compared_by_totals():
    found = compare_stages(stages(("route", 10)), stages(("other", 10)))
    assert found.unit == "profile" and verdicts(found) == {"K1": "vanished"}
    assert any("totals are compared" in warning for warning in found.warnings)


def test_by_kernel():
    before = sums({"a": (2, 100), "b": (2, 50), "gone": (1, 5)})
    after = sums({"a": (2, 80), "b": (2, 50), "new": (1, 7)})
    found = compare_kernels(before, after)
    assert verdicts(found) == {"a": "sped up", "new": "appeared", "gone": "vanished", "b": "unchanged"}
    assert (found.before_ns, found.after_ns) == (155, 137)
    assert by_name(found)["new"].share_of_change == pytest.approx(-7 / 18)
    assert found.warnings == ()


def test_a_longer_run_is_not_a_slower_one():
    before = sums({"a": (2, 100), "b": (4, 50), "c": (1, 10)})
    after = sums({"a": (6, 300), "b": (12, 300), "c": (1, 30)})
    found = compare_kernels(before, after)
    assert verdicts(found) == {"a": "unchanged", "b": "slowed down", "c": "unchanged"}
    assert by_name(found)["b"].after_ns == pytest.approx(100)
    assert "ran 3 x as often in the second profile" in found.warnings[0]
    back = compare_kernels(after, before)
    assert verdicts(back)["b"] == "sped up" and "3 x as often in the first" in back.warnings[0]


def test_one_kernel_under_two_spellings():
    found = compare_kernels(sums({"void ns::f<(int)4, float>(float*)": (1, 10)}), sums({"ns::f<4, float>": (1, 9)}))
    assert [change.verdict for change in found.changes] == ["sped up"]


def test_the_same_profile_twice():
    profile = sums({"a": (2, 100)})
    found = compare_kernels(profile, profile)
    assert verdicts(found) == {"a": "unchanged"} and found.changes[0].share_of_change is None and found.ratio == 1


def test_overlapped_kernels_count_once_by_name():
    """The second kernel waits for the first from 5 to 100: it adds 20, not 115."""

    def profile(*times):
        return EventProfile(events=[Span(SpanKind.KERNEL, name, *time) for name, time in zip("ab", times, strict=True)])

    before, after = profile((0, 100), (100, 120)), profile((0, 100), (5, 120))
    found = compare_kernels(before, after)
    assert (found.before_ns, found.after_ns) == (120, 120) and set(verdicts(found).values()) == {"unchanged"}
    assert any("kernels overlap; times are what a kernel adds" in warning for warning in found.warnings)
    summary = compare_kernels(sums({"a": (1, 100), "b": (1, 20)}), after)
    assert by_name(summary)["b"].after_ns == 115
    assert any("the other profile has no events" in warning for warning in summary.warnings)
