"""Stages of a pipeline: attribution by range, name and place; counts; everything else. Answers worked out by hand."""

import random

import pytest
from memory_profile import EventProfile, SumProfile, events, sums, timed

from kernelderby.errors import DerbyError
from kernelderby.profile.spans import ApiSum, KernelSum, Span, SpanKind
from kernelderby.profile.stages.outside import UNATTRIBUTED, purpose
from kernelderby.profile.stages.walk import BETWEEN, NOT_ITEMISED, pipeline_of
from kernelderby.report.profile.notes import invocations_from, stage_notes, told_warnings
from kernelderby.rows.measurement import Stage

GEMM = "void cutlass::device_kernel<GemmUniversal<GroupProblemShape>>"
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>(int)"
STAGES = (
    Stage("K1", "routing", (r"\bgate\b",)),
    Stage("K3", "grouped GEMM 1", ("GemmUniversal",)),
    Stage("K4", "SwiGLU", (r"\bswiglu\b",)),
    Stage("K5", "grouped GEMM 2", ("GemmUniversal",)),
    Stage("K6", "combine", (r"\bcombine\b",)),
)
GLUE = Stage("glue", "torch", ("at::native::", r"(?i)\bmemset\b"))
ONCE = (("gate", 10), (GEMM, 400), ("swiglu", 30), (GEMM, 200), ("combine", 20))


def totals(pipeline):
    return {row.name: (row.instances, row.total_ns) for row in pipeline.stages}


def outside(pipeline):
    return {row.kind: (row.instances, row.total_ns) for row in pipeline.outside}


def notes(pipeline):
    return {row.name: stage_notes(row) for row in pipeline.stages if row.notes}


def assert_adds_up(pipeline, profile):
    everything = sum(row.total_ns for row in profile.sums())
    itemised = [row for row in pipeline.stages if row.name != NOT_ITEMISED]
    attributed = sum(row.total_ns for row in itemised)
    attributed += sum(row.total_ns for row in pipeline.outside if row.kind != UNATTRIBUTED)
    assert attributed + pipeline.unattributed_ns == pytest.approx(everything)
    not_itemised = sum(row.total_ns for row in pipeline.stages) - sum(row.total_ns for row in itemised)
    assert pipeline.total_ns - not_itemised == pytest.approx(everything)
    if pipeline.pipeline_ns:
        assert sum(map(pipeline.share, pipeline.stages)) == pytest.approx(1)
    for row in itemised:
        assert sum(kernel.total_ns for kernel in row.kernels) == pytest.approx(row.total_ns)


def test_stages_that_share_a_kernel_are_told_apart_by_their_place():
    profile = events(*ONCE, *ONCE, *ONCE)
    pipeline = pipeline_of(profile, STAGES, "s")
    assert totals(pipeline) == {"K1": (3, 30), "K3": (3, 1200), "K4": (3, 90), "K5": (3, 600), "K6": (3, 60)}
    assert pipeline.invocations == 3 and notes(pipeline) == {}
    assert pipeline.per_invocation_us(pipeline.stages[1]) == 0.4
    # An invocation spans 660 ns of kernels and four gaps of 5.
    assert pipeline.span_ns == 3 * 680
    assert_adds_up(pipeline, profile)


def test_a_summary_cannot_tell_them_apart():
    profile = sums({"gate": (3, 30), GEMM: (6, 1800), "swiglu": (3, 90), "combine": (3, 60)})
    pipeline = pipeline_of(profile, STAGES, "s")
    assert totals(pipeline) == {"K1": (3, 30), "K3 / K5": (6, 1800), "K4": (3, 90), "K6": (3, 60)}
    assert pipeline.invocations == 3 and pipeline.span_ns is None
    [merged] = [row for row in pipeline.stages if row.is_merged]
    assert "not separable" in stage_notes(merged)[0] and len(stage_notes(merged)) == 1
    assert_adds_up(pipeline, profile)


def test_split_tiles_stay_in_their_stage():
    split = (("gate", 10), (GEMM, 300), (GEMM, 100), ("swiglu", 30), (GEMM, 200), ("combine", 20))
    pipeline = pipeline_of(events(*ONCE, *split), STAGES, "s")
    assert totals(pipeline)["K3"] == (3, 800) and totals(pipeline)["K5"] == (2, 400)
    assert notes(pipeline) == {"K3": ("1 to 2 kernels an invocation",)}


def test_a_skipped_stage_and_a_cut_off_invocation_are_flagged():
    skipped = tuple(work for work in ONCE if work[0] != "swiglu")
    cut = ONCE[:2]
    profile = events(*ONCE, *cut, *ONCE, *ONCE[:4])
    pipeline = pipeline_of(profile, STAGES, "s")
    assert pipeline.invocations == 4
    assert notes(pipeline) == {
        "K4": ("missing in 1 of 4 invocations",),
        "K5": ("missing in 1 of 4 invocations",),
        "K6": ("missing in 2 of 4 invocations",),
    }
    # Without SwiGLU nothing stands between the two GEMMs of that invocation: both go to the first.
    assert totals(pipeline_of(events(*ONCE, *skipped), STAGES, "s"))["K3"] == (3, 1000)


def test_stages_next_to_each_other_take_one_kernel_each():
    stages = (STAGES[0], STAGES[1], STAGES[3])
    pipeline = pipeline_of(events(*[("gate", 1), (GEMM, 40), (GEMM, 20)] * 4), stages, "s")
    assert totals(pipeline) == {"K1": (4, 4), "K3": (4, 160), "K5": (4, 80)}
    only = pipeline_of(events(*[(GEMM, 40), (GEMM, 20)] * 4), stages[1:], "s")
    assert totals(only) == {"K3": (4, 160), "K5": (4, 80)} and only.invocations == 4
    # A stage that never occurs separates nothing: SwiGLU fused into the GEMM, as on another architecture.
    fused = pipeline_of(events(*[("gate", 1), (GEMM, 40), (GEMM, 20), ("combine", 2)] * 4), STAGES, "s")
    assert totals(fused)["K3"] == (4, 160) and totals(fused)["K5"] == (4, 80)
    assert told_warnings(fused.warnings) == (r"stage K4: nothing in the profile fits \bswiglu\b",)


def test_set_up_kernels_alternate_with_the_stages_they_set_up():
    stages = (
        STAGES[0],
        Stage("K3'", "set-up", ("starts",)),
        STAGES[1],
        STAGES[2],
        Stage("K5'", "set-up", ("starts",)),
        STAGES[3],
        STAGES[4],
    )
    work = [("gate", 1), ("starts", 2), (GEMM, 40), ("swiglu", 3), ("starts", 4), (GEMM, 20), ("combine", 5)]
    assert totals(pipeline_of(events(*work * 2), stages, "s")) == {
        "K1": (2, 2),
        "K3'": (2, 4),
        "K3": (2, 80),
        "K4": (2, 6),
        "K5'": (2, 8),
        "K5": (2, 40),
        "K6": (2, 10),
    }


def test_one_stage_of_several_kernels():
    stages = (Stage("all", "everything", ("moe_",)),)
    pipeline = pipeline_of(events(*[("moe_a", 1), ("moe_b", 2)] * 3), stages, "s")
    assert pipeline.invocations == 3 and totals(pipeline) == {"all": (6, 9)}


def test_glue_counts_inside_invocations_only():
    with_glue = (*ONCE[:1], (FILL, 7), *ONCE[1:])
    harness = [(FILL, 50), ("[CUDA memset]", 60)]
    profile = events(*harness, *with_glue, *harness, *with_glue, *harness)
    pipeline = pipeline_of(profile, (*STAGES, GLUE), "s")
    assert totals(pipeline)["glue"] == (2, 14)
    assert outside(pipeline)["memset"] == (3, 180)
    assert sum(instances for instances, _ in outside(pipeline).values()) == 6
    assert_adds_up(pipeline, profile)
    unlisted = pipeline_of(profile, STAGES, "s")
    assert totals(unlisted)[BETWEEN] == (2, 14)
    assert_adds_up(unlisted, profile)


def test_a_summary_counts_glue_outside_and_says_so():
    profile = sums({"gate": (3, 30), FILL: (100, 5000)})
    pipeline = pipeline_of(profile, (STAGES[0], GLUE), "s")
    assert totals(pipeline) == {"K1": (3, 30), "glue": (0, 0)}
    assert any("glue: a summary cannot tell" in warning for warning in told_warnings(pipeline.warnings))
    assert_adds_up(pipeline, profile)


def test_ranges_come_before_names():
    stages = (Stage("A", "by range", (), "first"), Stage("B", "by name", ("work",), "second"))
    profile = events(("work", 10, ["all", "first"]), ("work", 20, ["second"]), ("other", 3, ["first"]), ("work", 40))
    pipeline = pipeline_of(profile, stages, "s")
    assert totals(pipeline) == {"A": (2, 13), "B": (2, 60)}
    assert told_warnings(pipeline_of(events(("work", 10)), stages, "s").warnings) == (
        "stage A: nothing in the profile fits range 'first'",
    )


def test_marked_invocations_are_the_pipeline_and_nothing_else_is():
    def marked(label, *work):
        return [(name, duration, ["pass", label]) for name, duration in work]

    work = [
        *ONCE,
        *marked("invocation 0", (FILL, 9), *ONCE, (FILL, 9)),
        (FILL, 100),
        *marked("invocation 1", (FILL, 9), *ONCE),
        ("stranger", 1000),
    ]
    profile = events(*work)
    pipeline = pipeline_of(profile, (*STAGES, GLUE), "s")
    assert pipeline.invocations == 2
    assert totals(pipeline) == {
        "K1": (2, 20),
        "K3": (2, 800),
        "K4": (2, 60),
        "K5": (2, 400),
        "K6": (2, 40),
        "glue": (3, 27),
    }
    assert outside(pipeline)["same stages outside the marked invocations: kernels"] == (5, 660)
    assert pipeline.unattributed_ns == 1000
    assert_adds_up(pipeline, profile)
    assert invocations_from(pipeline.invocations_from) == "marked by NVTX ranges"
    again = pipeline_of(profile, (*STAGES, GLUE), "s", within="no such range")
    assert again.invocations == 3 and invocations_from(again.invocations_from) == "counted along the events"
    assert_adds_up(again, profile)


def test_a_numbered_range_is_one_invocation_whatever_runs_in_it():
    work = [("combine", 1), ("gate", 1), ("combine", 1), ("gate", 1)]
    numbered = [(name, time, [f"invocation {i}"]) for i in range(2) for name, time in work]
    assert pipeline_of(events(*numbered), STAGES, "s").invocations == 2
    plain = [(name, time, ["invocation"]) for name, time in ONCE * 3]
    assert pipeline_of(events(*plain), STAGES, "s").invocations == 3


def test_marked_invocations_of_something_else():
    profile = events(("stranger", 5, ["invocation 0"]), *ONCE)
    pipeline = pipeline_of(profile, STAGES, "s")
    assert pipeline.invocations == 1 and pipeline.unattributed_ns == 5
    assert_adds_up(pipeline, profile)


def test_processes_and_gpus_are_walked_apart():
    one, two = timed(*ONCE, process=1), timed(*ONCE, start=1003, process=2)
    profile = EventProfile(events=[*one, *two])
    pipeline = pipeline_of(profile, STAGES, "s")
    assert pipeline.invocations == 2 and totals(pipeline)["K3"] == (2, 800) and totals(pipeline)["K5"] == (2, 400)


def test_the_order_of_rows_does_not_matter():
    counts = {"gate": (3, 30), GEMM: (4, 1800), GEMM + "2": (2, 5), "swiglu": (2, 90), FILL: (7, 8), "odd": (1, 1)}
    rows = [KernelSum(SpanKind.KERNEL, name, *row) for name, row in counts.items()]
    expected = pipeline_of(SumProfile(rows=rows), (*STAGES, GLUE), "s")
    for seed in range(5):
        shuffled = random.Random(seed).sample(rows, len(rows))
        assert pipeline_of(SumProfile(rows=shuffled), (*STAGES, GLUE), "s") == expected
    spans = timed(*ONCE, *ONCE)
    mixed = EventProfile(events=random.Random(1).sample(spans, len(spans)))
    assert pipeline_of(mixed, STAGES, "s") == pipeline_of(EventProfile(events=spans), STAGES, "s")


@pytest.mark.parametrize("seed", range(20))
def test_whatever_runs_everything_is_somewhere(seed):
    chance = random.Random(seed)
    names = ["gate", GEMM, "swiglu", "combine", FILL, "[CUDA memset]", "[CUDA memcpy Host-to-Device]", "nobody's"]
    ranges = [(), ("invocation 1",), ("invocation 2", "x"), ("reference",)]
    spans = []
    for _ in range(200):
        start = chance.randrange(10_000)
        spans.append(
            Span(
                SpanKind.KERNEL,
                chance.choice(names),
                start,
                start + chance.randrange(100),
                chance.randrange(2),
                chance.randrange(2),
                chance.randrange(3),
                chance.choice(ranges) if seed % 2 else (),
            )
        )
    profile = EventProfile(events=spans)
    pipeline = pipeline_of(profile, (*STAGES, GLUE), "s")
    assert_adds_up(pipeline, profile)
    assert pipeline.added_ns <= sum(timeline.busy_ns for timeline in pipeline.timelines) * 2  # two processes
    for timeline in pipeline.timelines:
        assert timeline.busy_ns <= min(timeline.sum_ns, timeline.wall_ns)
        assert timeline.busy_ns + timeline.gap_total_ns == timeline.wall_ns
    assert_adds_up(pipeline_of(SumProfile(rows=profile.sums()), (*STAGES, GLUE), "s"), profile)


def test_the_timeline_is_the_union_of_the_streams():
    # Stream 1: 0-100, 300-400. Stream 2: 50-150, 310-320, 500-501. Gaps: 150 and 100.
    spans = [
        Span(SpanKind.KERNEL, "a", *times, stream=stream)
        for stream, times in ((1, (0, 100)), (2, (50, 150)), (1, (300, 400)), (2, (310, 320)), (2, (500, 501)))
    ]
    pipeline = pipeline_of(EventProfile(events=spans), STAGES, "s")
    [timeline] = pipeline.timelines
    assert (timeline.wall_ns, timeline.busy_ns, timeline.sum_ns) == (501, 251, 311)
    assert (timeline.gaps, timeline.gap_total_ns, timeline.gap_median_ns, timeline.gap_largest_ns) == (2, 250, 125, 150)
    assert pipeline.invocations is None and pipeline.pipeline_ns == 0


def test_kernels_that_wait_beside_others_add_little():
    """Programmatic dependent launch: combine starts early, and waits for the GEMM until 500."""

    def at(name, start, end):
        return Span(SpanKind.KERNEL, name, start, end, ranges=("invocation 0",))

    profile = EventProfile(
        events=[
            at("gate", 0, 10),
            at(GEMM, 20, 400),
            at("swiglu", 300, 450),
            at(GEMM, 440, 500),
            at("combine", 410, 520),
            at(FILL, 415, 460),
        ]
    )
    pipeline = pipeline_of(profile, (*STAGES, GLUE), "s")
    # 450 is the latest end when combine starts at 410, so it adds 70; nothing is left for GEMM 2, which starts later.
    assert {row.name: row.added_ns for row in pipeline.stages} == {
        "K1": 10,
        "K3": 380,
        "K4": 50,
        "K5": 0,
        "K6": 70,
        "glue": 0,
    }
    assert pipeline.overlaps and pipeline.added_ns == pipeline.cost_ns == 510 == pipeline.timelines[0].busy_ns
    assert pipeline.pipeline_ns == 10 + 380 + 150 + 60 + 110 + 45
    plain = pipeline_of(events(*ONCE), STAGES, "s")
    assert not plain.overlaps and plain.added_ns == plain.cost_ns == plain.pipeline_ns == 660
    summary = pipeline_of(sums({"gate": (1, 5)}), STAGES, "s")
    assert summary.added_ns is None and not summary.overlaps and summary.cost_ns == 5


@pytest.mark.parametrize("pause", [0, 1, 2])
def test_kernels_that_the_recorder_cut_are_told(pause):
    """nsys ends a kernel a nanosecond before the next one of its stream starts, where the two overlap."""

    def once(number):
        begin = 1000 * number
        for name, start, end in (("gate", 0, 10), (GEMM, 20, 400), ("swiglu", 400 + pause, 450), (GEMM, 460, 500)):
            yield Span(SpanKind.KERNEL, name, begin + start, begin + end)

    def warnings(calls, form="nsys SQLite, schema 3"):
        spans = [span for number in range(calls) for span in once(number)]
        return told_warnings(pipeline_of(EventProfile(events=spans, form=form), STAGES[:4], "s").warnings)

    told = [text for text in warnings(20) if "the recorder cut kernels that overlap" in text]
    assert [text.partition(":")[0] for text in told] == ["K4 (20 of 20 kernels)"] * (pause < 2)
    assert warnings(5) == ()  # may be chance
    assert warnings(20, "Kineto trace") == ()  # cuts nothing, and its clock may be coarse


def test_overlapping_patterns_are_a_warning():
    stages = (*STAGES, Stage("X", "too wide", ("glu", "never there")))
    pipeline = pipeline_of(events(*ONCE), stages, "s")
    assert "swiglu: fits stage K4 and also X; counted as K4; narrow the patterns in solution.toml" in told_warnings(
        pipeline.warnings
    )
    assert totals(pipeline)["K4"] == (1, 30) and totals(pipeline)["X"] == (0, 0)


def test_counts_that_disagree_are_flagged_in_a_summary():
    rows = {"gate": (1949, 1), "sort": (1949, 1), GEMM + "a": (1098, 7), GEMM + "b": (2798, 2), "swiglu": (1948, 1)}
    pipeline = pipeline_of(sums(rows), (*STAGES, Stage("S", "sort", ("sort",))), "s")
    assert (
        pipeline.invocations == 1949
        and invocations_from(pipeline.invocations_from) == "2 of 4 patterns have this count"
    )
    assert notes(pipeline)["K4"] == ("1948 kernels, 1 fewer than 1949",)
    assert notes(pipeline)["K3 / K5"][1:] == (
        "3896 kernels, 2 fewer than 2 x 1949",
        "variants of 1098 + 2798 kernels take turns",
    )


def test_a_stated_total_that_itemises_less():
    profile = sums({"gate": (3, 60e6), "swiglu": (3, 30e6)})
    pipeline = pipeline_of(profile, STAGES, "s", stated_total_ns=100e6)
    assert totals(pipeline)[NOT_ITEMISED] == (0, 10e6) and pipeline.share(pipeline.stages[0]) == 0.6
    assert_adds_up(pipeline, profile)
    less = pipeline_of(profile, STAGES, "s", stated_total_ns=80e6)
    assert (
        NOT_ITEMISED not in totals(less) and "more than the stated total of 80.0 ms" in told_warnings(less.warnings)[-1]
    )


def test_synchronisation_has_its_share_of_the_api_time():
    profile = events(*ONCE)
    profile.calls = [
        ApiSum("cudaStreamSynchronize_v3020", 9, 72.0),
        ApiSum("cudaLaunchKernel_v7000", 9, 20.0),
        ApiSum("cuCtxSynchronize", 1, 3.0),
        ApiSum("cudaMalloc", 1, 5.0),
    ]
    pipeline = pipeline_of(profile, STAGES, "s")
    assert (pipeline.synchronise_ns, pipeline.api_ns) == (75, 100)


def test_what_ranges_say():
    assert purpose(("run", "reference torch")) == "reference"
    assert purpose(("check outputs",)) == "checking"
    assert purpose(("flush L2",)) == "harness"
    assert purpose(("decode",)) == ""


def test_copies_keep_their_direction_and_bytes():
    span = Span(SpanKind.MEMCPY, "[CUDA memcpy Device-to-Host]", 0, 10, bytes=4096)
    pipeline = pipeline_of(EventProfile(events=[span]), STAGES, "s")
    assert [(row.kind, row.bytes) for row in pipeline.outside] == [("memcpy device to host", 4096), (UNATTRIBUTED, 0)]


def test_no_stages_is_an_error():
    with pytest.raises(DerbyError, match="no .*stages"):
        pipeline_of(events(*ONCE), (), "moe_baseline")
    with pytest.raises(DerbyError, match="--within: '.' is no regular expression"):
        pipeline_of(events(*ONCE), STAGES, "s", within="(")
