"""The steps of a profile, by annotation, range and period; two profiles step by step. Answers worked out by hand."""

import random

import numpy as np
import pytest
from memory_profile import EventProfile, sums

from kernelderby.errors import DerbyError
from kernelderby.profile import intervals
from kernelderby.profile.compare.kernels import compare_kernels
from kernelderby.profile.filters import StepsOfKind
from kernelderby.profile.spans import RangeInstance, Span, SpanKind
from kernelderby.profile.steps.annotations import read_annotation
from kernelderby.profile.steps.find import steps_of
from kernelderby.profile.steps.period import layer_period, step_starts
from kernelderby.report.profile.compare import compare_answer, compare_report
from kernelderby.report.profile.notes import first_warnings, not_comparable, steps_found_by
from kernelderby.report.text import render
from kernelderby.statistics.rank_test import holm

LAYER = ("void vllm::rms_norm_kernel<float>(int)", "gemm_qkv", "flash_fwd_kernel", "gemm_out", "silu_and_mul")


class Annotated(EventProfile):
    """With ranges on the host, and a launch just before each operation's step."""

    def __init__(self, spans, ranges=(), graph=False, whole_graphs=0):
        super().__init__(events=spans)
        self.ranges, self.graph, self.whole_graphs = list(ranges), graph, whole_graphs

    def range_instances(self, pattern=None):
        return [each for each in self.ranges if pattern is None or pattern.search(each.name)]

    def launched(self):
        for span in self.spans():
            inside = [each for each in self.ranges if each.start_ns <= span.start_ns < each.end_ns]
            launch = inside[0].start_ns if self.graph and inside else span.start_ns
            yield span, launch, launch + 1


def serving(steps=12, layers=6, gap=1_000, duration=10_000, between=30_000, jitter=0, name="", seed=0, scale=()):
    """Steps of an embedding, some layers and a sampler; every gap and duration is known. scale: kernel -> factor."""
    generator, now, spans, marks = random.Random(seed), 0, [], []
    for step in range(steps):
        begin = now
        for kernel in ("embedding", *LAYER * layers, "sampling"):
            length = round((duration + generator.randrange(-jitter, jitter + 1)) * dict(scale).get(kernel, 1))
            spans.append(Span(SpanKind.KERNEL, kernel, now, now + length))
            now += length + gap
        now += between - gap
        if name:
            marks.append(RangeInstance(0, begin, now - between + 1, name.format(step)))
    return Annotated(spans, marks)


def test_stretches_by_hand():
    found = intervals.union(np.array([0, 20, 5]), np.array([10, 30, 12]))
    assert found.tolist() == [[0, 12], [20, 30]] and intervals.length(found) == 22
    assert intervals.within(found, np.array([-5, 6, 25, 25, 100])).tolist() == [6, 11, 0, 5]
    assert intervals.common(found, np.array([[8, 24]])) == 8
    assert intervals.within(np.empty((0, 2), np.int64), np.array([0, 5])).tolist() == [0]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("execute_context_1(888_788544)_generation_0(0)", "prefill, 1 request"),
        ("execute_context_0(0)_generation_32(32)", "decode, 32 requests"),
        ("execute_8192_context_9(sq8155sk8430)_generation_37(sq37sk34489)", "prefill and decode, 9 + 37 requests"),
        ("execute_new_0_cached_16", "decode, 16 requests"),
        ("step[DECODE bs=32]", "decode, 32 requests"),
        ("step[EXTEND bs=15 toks=15360]", "prefill, 15 requests"),
        ("step[TARGET_VERIFY bs=4]", "target verify"),
        ("ProfilerStep#7", "ProfilerStep"),
        ("invocation 3", "invocation"),
        ("aten::mm", None),
        ("stepping stone", None),
        ("nccl:all_reduce", None),
    ],
)
def test_what_an_annotation_says(text, title):
    found = read_annotation(text)
    assert (found.title if found else None) == title


def test_steps_by_annotation():
    """A step lasts to the next one's first kernel: 32 kernels of 10 us, 31 gaps of 1 us, 30 us between two steps."""
    found = steps_of(serving(name="step[DECODE bs=32] {}"))
    assert steps_found_by(found.found_by).startswith("annotations like step[DECODE")
    assert found.titles == ["decode, 32 requests"]
    first, last = found.steps[0], found.steps[-1]
    assert (first.wall_ns, first.busy_ns, first.idle_ns, first.operations) == (381_000, 320_000, 61_000, 32)
    assert last.is_last and last.wall_ns == 351_000 and len(found.steps) == 12 and found.before == 0


def test_prefill_and_decode_apart():
    prefill, decode = serving(3, name="step[EXTEND bs=2]"), serving(5, duration=1000, name="step[DECODE bs=2]")
    end = prefill.events[-1].end_ns + 10_000
    late = [Span(each.kind, each.name, each.start_ns + end, each.end_ns + end) for each in decode.events]
    marks = [RangeInstance(0, each.start_ns + end, each.end_ns + end, each.name) for each in decode.ranges]
    both = Annotated([*prefill.events, *late], [*prefill.ranges, *marks])
    found = steps_of(both)
    assert [(title, len(found.of(title))) for title in found.titles] == [
        ("prefill, 2 requests", 3),
        ("decode, 2 requests", 5),
    ]
    told = compare_kernels(both, prefill)
    assert first_warnings(told.said_first) == ("steps of a kind that only A has: decode, 2 requests (5)",)
    assert told.kind == "prefill, 2 requests" and told.unit == "step"
    with pytest.raises(DerbyError, match="--kind: both profiles have no steps of 'decode'"):
        compare_kernels(both, prefill, kind="decode")
    assert compare_kernels(both, both, kind="DECODE").kind == "decode, 2 requests"


def test_steps_by_range_and_an_error_that_says_what_there_is():
    profile = serving(name="my pass {}")
    found = steps_of(profile, "my pass")
    assert len(found.steps) == 12 and steps_found_by(found.found_by) == "ranges that fit my pass"
    with pytest.raises(DerbyError, match="no range fits 'yours'; there are my pass 0"):
        steps_of(profile, "yours")
    with pytest.raises(DerbyError, match="no regular expression"):
        steps_of(profile, "(")


def test_steps_without_names_have_no_kinds():
    with pytest.raises(DerbyError, match="no steps of 'decode'; their steps have no kinds, leave it out"):
        compare_kernels(serving(), serving(), kind="decode")


def test_steps_by_their_period_and_layers_by_theirs():
    profile = serving(jitter=500)
    found = steps_of(profile)
    assert steps_found_by(found.found_by) == "their period (12 found)" and {
        step.operations for step in found.steps
    } == {32}
    numbers = {name: number for number, name in enumerate(dict.fromkeys(span.name for span in profile.spans()))}
    names = np.array([numbers[span.name] for span in profile.spans()])
    assert step_starts(names).tolist() == list(range(0, 384, 32))
    period = layer_period(names)
    assert (period.length, period.repetitions) == (5, 6)
    noise = np.random.default_rng(1).integers(0, 50, 400)
    assert layer_period(noise) is None and step_starts(noise) is None


def test_a_layer_is_found_within_long_steps():
    """80 layers of five kernels, three kernels between steps, four steps."""
    step = [0, *[1, 2, 3, 4, 5] * 80, 6, 7]
    found = layer_period(np.array(step * 4))
    assert (found.length, found.repetitions) == (5, 80) and found.match > 0.99
    assert step_starts(np.array(step * 4)).tolist() == [0, 403, 806, 1209]


def measures(found):
    [steps] = found.steps
    return {row.name: row for row in steps.measures}


def test_longer_gaps_are_seen_though_no_kernel_changed():
    before, after = serving(jitter=200), serving(jitter=200, gap=21_000, seed=1)
    rows = measures(compare_kernels(before, after))
    assert rows["idle"].verdict == rows["wall"].verdict == "slowed down"
    assert rows["busy"].verdict == rows["sum of the kernels"].verdict == "unchanged"
    assert rows["idle"].change_ns == pytest.approx(31 * 20_000)


def test_fewer_steps_with_more_idle_are_no_speed_up():
    """The same window: 12 % fewer steps, each with as much kernel time and more idle."""
    found = compare_kernels(serving(50, jitter=200), serving(44, between=80_000, jitter=200, seed=1))
    assert (found.before_invocations, found.after_invocations, found.unit) == (49, 43, "step")
    assert abs(found.ratio - 1) < 0.01 and measures(found)["idle"].verdict == "slowed down"
    assert not any(change.verdict in ("sped up", "slowed down") for change in found.changes)


@pytest.mark.parametrize("seed", range(6))
def test_the_same_thing_twice_has_no_verdict(seed):
    found = compare_kernels(serving(30, jitter=3000, seed=seed), serving(26, jitter=3000, seed=seed + 100))
    rows = [*found.changes, *(row for each in found.steps for row in each.measures)]
    assert not [row for row in rows if row.verdict in ("sped up", "slowed down")]


def test_a_drifting_clock_is_no_verdict():
    """Kernels of A take 6 % longer in the second half; B is all like the second half."""
    first, second = serving(20, jitter=100), serving(20, jitter=100, duration=10_600, seed=2)
    end = first.events[-1].end_ns + 30_000
    late = [Span(each.kind, each.name, each.start_ns + end, each.end_ns + end) for each in second.events]
    found = compare_kernels(Annotated([*first.events, *late]), serving(40, jitter=100, duration=10_600, seed=3))
    assert {change.verdict for change in found.changes} <= {"within chance", "unchanged"}
    faster = compare_kernels(serving(20, jitter=100), serving(20, jitter=100, scale=[("gemm_qkv", 0.8)], seed=3))
    assert {change.name: change.verdict for change in faster.changes}["gemm_qkv"] == "sped up"


def stretched(profile, factors):
    """With the kernels of its first steps that many times as long, the last factor for all others."""
    spans, shift, step = [], 0, -1
    for each in profile.events:
        step += each.name == "embedding"
        length = each.end_ns - each.start_ns
        longer = round(length * (factors[step] if step < len(factors) else 1))
        spans.append(Span(each.kind, each.name, each.start_ns + shift, each.start_ns + shift + longer))
        shift += longer - length
    return Annotated(spans)


def test_warm_up_is_left_out_and_told():
    """Three slow steps in front of one of two alike profiles: 1.8, 1.5 and 1.3 times as long."""
    cold, warm = stretched(serving(21, jitter=100), (1.8, 1.5, 1.3)), serving(18, jitter=100, seed=1)
    found = compare_kernels(cold, warm)
    assert first_warnings(found.said_first) == (
        "A: the first 3 steps took longer than the rest (warm-up) and are left out",
    )
    assert found.before_invocations == 17 and abs(found.ratio - 1) < 0.01
    assert not {"sped up", "slowed down"} & {row.verdict for row in (*found.changes, *found.steps[0].measures)}


@pytest.mark.parametrize("factors", [(1, 1.5, 1.5), (1.02, 1.01), (1.5,) * 9])
def test_what_is_no_warm_up(factors):
    """Slow steps later on, little differences, and a slow first half: more than a quarter is no warm-up."""
    found = compare_kernels(stretched(serving(21, jitter=100), factors), serving(18, jitter=100, seed=1))
    left_out = 5 if len(factors) == 9 else 0
    assert found.before_invocations == 20 - left_out


def test_another_clock_is_told():
    slower = [(name, 1.1) for name in (*LAYER, "embedding", "sampling")]
    found = compare_kernels(serving(jitter=100), serving(jitter=100, scale=slower, seed=1))
    assert first_warnings(found.said_first)[-1].startswith(
        "most kernels take 1.10 times as long in B: the GPU's clock may"
    )
    one = compare_kernels(serving(jitter=100), serving(jitter=100, scale=[("gemm_qkv", 1.1)], seed=1))
    assert first_warnings(one.said_first) == ()


def test_a_profile_without_work_has_no_steps_to_compare():
    assert compare_kernels(serving(), Annotated([])).steps == ()


def test_what_differs_is_said_before_any_number():
    eager, fused = serving(name="step[DECODE bs=8]"), serving(layers=5, name="step[DECODE bs=8]")
    assert first_warnings(compare_kernels(eager, fused).said_first) == (
        "launches differ: a decode, 8 requests step has 32 in A and 27 in B, so its kernels are not the same ones",
    )
    replayed = serving(name="step[DECODE bs=8]")
    replayed.graph = True
    assert (
        "B replays CUDA graphs, A launches kernel by kernel"
        in first_warnings(compare_kernels(eager, replayed).said_first)[0]
    )
    other = compare_kernels(eager, serving(name="step[DECODE bs=16]"))
    assert (
        first_warnings(other.said_first)[0] == "steps of a kind that only A has: decode, 8 requests (12)"
        and other.kind == ""
    )


def test_graphs_recorded_whole_are_not_comparable():
    eager = serving()
    whole = Annotated([span for span in eager.events if span.name == "sampling"], whole_graphs=12)
    found = compare_kernels(eager, whole)
    assert not_comparable(found.not_comparable).startswith("CUDA graphs were recorded whole (B 12)")
    assert {change.verdict for change in found.changes} == {"not comparable"}
    facts = compare_report(found).facts
    assert facts[0].startswith("NOT COMPARABLE: CUDA graphs") and not any("%" in fact for fact in facts)


def test_lengths_without_a_common_measure_are_not_comparable_in_sum():
    found = compare_kernels(
        sums({"a": (10, 100), "b": (10, 100), "c": (10, 100)}), sums({"a": (13, 130), "b": (27, 270), "c": (31, 310)})
    )
    assert not_comparable(found.not_comparable).startswith("most kernels ran neither equally often")
    assert {change.verdict for change in found.changes} == {"unchanged"}  # a launch still costs the same


def test_changes_that_cancel_out_have_no_percentages():
    found = compare_kernels(sums({"a": (1, 1000), "b": (1, 2000)}), sums({"a": (1, 1500), "b": (1, 1501)}))
    assert {change.share_of_change for change in found.changes} == {None}


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06]) and holm([]) == []


def test_the_tables_fit_eighty_columns_and_every_form_has_the_steps():
    answer = compare_answer(compare_kernels(serving(jitter=200), serving(jitter=200, gap=21_000, seed=1)))
    text = render(compare_report(answer.value), width=80)
    assert max(map(len, text.splitlines())) <= 80 and "wall" in text and "longer" in text
    assert '"wall"' in answer.to_json() and [row["name"] for row in answer.frames["steps"].to_dicts()][:3] == [
        "wall",
        "busy",
        "idle",
    ]
    assert "| wall |" in answer.to_markdown()


def test_steps_of_a_kind_are_no_warning_of_the_profile():
    profile = serving()
    part = StepsOfKind(profile, "", {"0:0": ([0], [50_000])})
    assert profile.warnings == part.warnings == [] and part.form == profile.form
    assert len(list(part.spans())) == 5
