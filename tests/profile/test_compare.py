"""Two profiles: aligned by stage and by kernel. Answers worked out by hand."""

import pytest
from memory_profile import EventProfile, events, sums

from kernelderby.profile.compare.kernels import compare_kernels
from kernelderby.profile.compare.stages import compare_stages
from kernelderby.profile.spans import Span, SpanKind
from kernelderby.profile.stages.walk import pipeline_of
from kernelderby.report.profile.compare import compare_report
from kernelderby.report.profile.notes import doubt_told, told_warnings
from kernelderby.rows.measurement import Stage

STAGES = (
    Stage("K1", "route", ("^route$",)),
    Stage("K3", "GEMM 1", ("^gemm",)),
    Stage("K4", "act", ("^act$",)),
    Stage("K5", "GEMM 2", ("^gemm",)),
)


def stages(*invocations):
    return pipeline_of(events(*list(invocations)), STAGES, "s")


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
    assert verdicts(found) == {"K3": "not tested", "K4": "vanished", "K5": "not tested", "K1": "unchanged"}
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
    assert any("kernels overlap; times are what a stage adds" in warning for warning in told_warnings(found.warnings))
    summary = pipeline_of(sums({"route": (1, 10), "gemm": (2, 150), "act": (1, 20)}), STAGES, "s")
    durations = compare_stages(summary, after)
    assert by_name(durations)["K4"].after_ns == 110
    assert any("has no events, so durations are compared" in warning for warning in told_warnings(durations.warnings))


def test_a_profile_without_invocations_is_compared_by_totals():
    found = compare_stages(stages(("route", 10)), stages(("other", 10)))
    assert found.unit == "profile" and verdicts(found) == {"K1": "vanished"}
    assert any("totals are compared" in warning for warning in told_warnings(found.warnings))


def test_kernels_are_compared_by_name():
    before = sums({"a": (2, 100), "b": (2, 50), "gone": (1, 5)})
    after = sums({"a": (2, 80), "b": (2, 50), "new": (1, 7)})
    found = compare_kernels(before, after)
    assert verdicts(found) == {"a": "not tested", "new": "appeared", "gone": "vanished", "b": "unchanged"}
    assert (found.before_ns, found.after_ns) == (155, 137)
    assert by_name(found)["new"].share_of_change == pytest.approx(-7 / 18)
    assert told_warnings(found.warnings) == ()


def test_a_longer_run_is_not_a_slower_one():
    before = sums({"a": (2, 100), "b": (4, 50), "c": (1, 10)})
    after = sums({"a": (6, 300), "b": (12, 300), "c": (1, 30)})
    found = compare_kernels(before, after)
    assert verdicts(found) == {"a": "unchanged", "b": "not tested", "c": "not tested"}
    assert {change.name: change.launches for change in found.changes} == {"a": "", "b": "", "c": "fewer launches"}
    assert by_name(found)["b"].after_ns == pytest.approx(100)
    assert "ran 3 x as often in the second profile" in told_warnings(found.warnings)[0]
    back = compare_kernels(after, before)
    assert by_name(back)["b"].launch_ratio == 0.5 and "3 x as often in the first" in told_warnings(back.warnings)[0]


def test_one_kernel_under_two_spellings():
    found = compare_kernels(sums({"void ns::f<(int)4, float>(float*)": (1, 10)}), sums({"ns::f<4, float>": (1, 9)}))
    assert [change.verdict for change in found.changes] == ["not tested"]


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
    assert any("kernels overlap; times are what a kernel adds" in warning for warning in told_warnings(found.warnings))
    summary = compare_kernels(sums({"a": (1, 100), "b": (1, 20)}), after)
    assert by_name(summary)["b"].after_ns == 115
    assert any("the other profile has no events" in warning for warning in told_warnings(summary.warnings))


# --- the time of a launch and the number of launches, each by itself ---


def test_fewer_launches_are_no_speed_up():
    """68 launches of 4.005 ms became 60 of 4.013, and 97,620 small ones 1,502; neither launch is faster."""
    before = sums({"flash_fwd": (68, 68 * 4_005_000), "copy": (97_620, 97_620 * 2_000), "x": (10, 100), "y": (10, 50)})
    after = sums({"flash_fwd": (60, 60 * 4_013_000), "copy": (1_502, 1_502 * 2_010), "x": (10, 101), "y": (10, 50)})
    found = by_name(compare_kernels(before, after))
    assert (found["flash_fwd"].verdict, found["flash_fwd"].launches) == ("unchanged", "fewer launches")
    assert found["flash_fwd"].launch_ratio == pytest.approx(4.013 / 4.005)
    assert (found["copy"].verdict, found["copy"].launches) == ("unchanged", "fewer launches")
    assert found["x"].launches == ""


def launches(name, *times):
    """One kernel after the other, 100 ns apart."""
    spans, now = [], 0
    for time in times:
        spans.append(Span(SpanKind.KERNEL, name, now, now + time))
        now += time + 100
    return EventProfile(events=spans)


def test_a_difference_within_chance_is_none():
    noisy = [1000, 1900, 1100, 1800, 1050, 1700, 1000, 1600]
    found = compare_kernels(launches("k", *noisy), launches("k", *[time + 60 for time in noisy]))
    [change] = found.changes
    assert change.launch_ratio > 1.02 and change.chance > 0.01 and change.verdict == "within chance"
    steady = [1000 + number % 5 for number in range(40)]
    [change] = compare_kernels(launches("k", *steady), launches("k", *[time + 60 for time in steady])).changes
    assert change.chance < 1e-6 and change.verdict == "slowed down"
    [change] = compare_kernels(launches("k", 1000, 1000), launches("k", 1500, 1500)).changes
    assert change.chance is None and change.verdict == "not tested"


def test_mann_whitney_by_hand():
    """U of 1..5 against 6..10 is 0: z = (12.5 - 0.5) / sqrt(25 * 11 / 12) = 2.507, two-sided p = 0.0122."""
    from array import array

    from kernelderby.statistics.rank_test import mann_whitney

    assert mann_whitney(array("q", range(1, 6)), array("q", range(6, 11))) == pytest.approx(0.01219, abs=5e-5)
    assert mann_whitney(array("q", [7] * 9), array("q", [7] * 9)) == 1
    assert mann_whitney(array("q", [1, 2, 3, 4]), array("q", range(9))) is None


def renaming(gemm, other="my_kernel"):
    names = ["void vllm::rms_norm_kernel<float>(int)", gemm, "void vllm::act_and_mul_kernel<float>(int)", other] * 6
    spans = [Span(SpanKind.KERNEL, name, 1000 * place, 1000 * place + 500) for place, name in enumerate(names)]
    return EventProfile(events=spans)


def test_a_renamed_kernel_is_matched_by_role_launches_and_place():
    before = renaming("nvjet_tst_128x64_64x9_2x1_v_bz_TNT")
    after = renaming("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas", "your_thing")
    found = verdicts(compare_kernels(before, after))
    [matched] = [name for name in found if "->" in name]
    assert matched.startswith("nvjet_") and found[matched] == "unchanged"
    # Nothing says what my_kernel and your_thing do, so they are no pair.
    assert found["my_kernel"] == "vanished" and found["your_thing"] == "appeared"


def test_a_kernel_of_another_role_or_number_is_not_the_same():
    before, after = renaming("gemm_one"), renaming("reduce_one")
    assert not any("->" in change.name for change in compare_kernels(before, after).changes)
    twice = sums({"gemm_two": (12, 6000), "my_kernel": (6, 3000), "a": (6, 10), "b": (6, 10)})
    once = sums({"gemm_one": (6, 3000), "my_kernel": (6, 3000), "a": (6, 10), "b": (6, 10)})
    assert not any("->" in change.name for change in compare_kernels(once, twice).changes)
    same = sums({"gemm_two": (6, 2000), "my_kernel": (6, 3000), "a": (6, 10), "b": (6, 10)})
    found = by_name(compare_kernels(once, same))
    assert found["gemm_one -> gemm_two"].verdict == "not tested"  # the only GEMM that either has alone


def test_the_answer_stands_in_a_line():
    before = stages(*[("route", 10), ("gemm", 100), ("act", 20), ("gemm", 50)] * 2)
    after = stages(*[("route", 10), ("gemm", 60), ("gemm", 55)] * 3)
    [_, line] = compare_report(compare_stages(before, after)).facts
    assert line == ("0.18 became 0.12 us an invocation (-30.6%); by stage: not tested 2, vanished 1, unchanged 1")


def sequence(*kernels, times=12):
    """kernels: (name, ns), one after the other, again and again."""
    spans, now = [], 0
    for name, length in kernels * times:
        spans.append(Span(SpanKind.KERNEL, name, now, now + length))
        now += length + 10
    return EventProfile(events=spans)


NORM, ACT = "void vllm::rms_norm_kernel<float>(int)", "void vllm::act_and_mul_kernel<float>(int)"


def test_two_gemms_are_told_apart_by_their_neighbours():
    before = sequence(
        (NORM, 50), ("nvjet_tst_64x8", 500), ("rotary_embedding_kernel", 40), ("nvjet_tst_96x8", 400), (ACT, 60)
    )
    after = sequence((NORM, 50), ("sm90_gemm_a", 410), ("rotary_embedding_kernel", 40), ("sm90_gemm_b", 490), (ACT, 60))
    pairs = {change.name for change in compare_kernels(before, after).changes if "->" in change.name}
    assert pairs == {"nvjet_tst_64x8 -> sm90_gemm_a", "nvjet_tst_96x8 -> sm90_gemm_b"}


def test_beyond_a_factor_of_two_only_neighbours_that_kept_their_names_are_evidence():
    before = sequence((NORM, 50), ("nvjet_tst_64x8", 500), (ACT, 60))
    after = sequence((NORM, 50), ("sm90_gemm_a", 2000), (ACT, 60))
    [found] = [change for change in compare_kernels(before, after).changes if "->" in change.name]
    assert (found.possible, found.verdict) == (None, "slowed down")
    moved = sequence(("their_rms_norm", 50), ("sm90_gemm_a", 2000), ("their_act_and_mul", 60))
    report = compare_kernels(before, moved)
    doubtful = {change.name: change for change in report.changes}["nvjet_tst_64x8 -> sm90_gemm_a"]
    assert doubtful.verdict == "not certain" and "4.0 times as long or short" in doubt_told(doubtful.possible)
    assert any("possibly renamed, not certain" in note for note in compare_report(report).notes)
