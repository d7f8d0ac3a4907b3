"""Evidence against the spans that a worker claims."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from kernelderby.measure.clock.spans import Spans
from kernelderby.measure.clock.timing import NO_FLUSH
from kernelderby.measure.judge.doubt import contradiction, witnessed
from kernelderby.measure.wire.replies import Wrong
from kernelderby.rows.measurement import Status


def series(span=10.0, busy=9.0, host=5.0, wall=25.0, outside=0, count=8):
    return Spans([span] * count, [], [busy] * count, [host] * count, [wall] * count, [outside] * count)


def against(eager, graph=None, kind="eager", copies=1, has_records=False):
    return contradiction({"eager": [eager], "graph": [graph] if graph else []}, kind, copies, has_records)


@pytest.mark.parametrize(
    "eager",
    [
        series(),
        series(host=400, wall=420),  # the host is slow
        series(span=22_805, host=171, wall=23_213),  # the longest wait beside a span in 2,020 rows of an H200
        series(outside=1),  # it returns its output, which is copied
        Spans([10.0], [], [], [10.0], [10.0]),  # without CUPTI
    ],
)
def test_nothing_speaks_against_what_is_honest(eager):
    assert against(eager, series()) == ""


@pytest.mark.parametrize(
    ("eager", "told"),
    [
        (series(wall=300), "it waits 234 us longer"),
        (series(outside=NO_FLUSH), "no flush"),
        (series(outside=3), "outside of its calls (records there in the median iteration: 3)"),
        (series(busy=0.9), "it claims a busy GPU for 0.9 us, where its graph takes 10.0"),
    ],
)
def test_what_does_not_go_together(eager, told):
    assert told in against(eager, series())


def test_what_happens_now_and_then_is_no_proof():
    mixed = series()
    mixed.wall_us[:5] = [3000.0] * 5
    mixed.outside[:4] = [2, 7, NO_FLUSH, 2]
    assert against(mixed, series()) == ""


def test_who_writes_into_its_outputs_leaves_nothing_behind_its_window():
    assert "records there in the median iteration: 1" in against(series(outside=1), series(), copies=0)
    assert against(series(), series(), copies=0) == ""


def test_a_timer_that_keeps_records_has_some():
    bare = Spans([10.0], [], [], [5.0], [25.0])
    assert against(series(), series(), has_records=True) == ""
    assert "no records" in against(bare, series(), has_records=True)
    assert "no records" in against(series(), bare, kind="graph", has_records=True)


def test_a_call_without_its_witness_has_no_time():
    """Half of the calls do nothing inside of their windows, and the work hides: only the others count."""
    half = series(count=8)
    half.spans_us[:4], half.outside[:2], half.outside[2:4] = [1.0] * 4, [2, 1], [NO_FLUSH] * 2
    kept = witnessed(half, copies=0)
    assert kept.spans_us == [10.0] * 4 and kept.busy_us == [9.0] * 4
    assert kept.notes == ["4 of 8 calls are left out: work outside of their windows"]
    assert witnessed(half, copies=1).spans_us == [1.0] + [10.0] * 4
    assert witnessed(series(), copies=0) == series()


def test_a_round_without_any_witness_ends_the_race():
    with pytest.raises(Wrong, match="whole round") as wrong:
        witnessed(series(outside=3), copies=0)
    assert wrong.value.verdict.status is Status.REWARD_HACK


def test_where_no_timer_keeps_records_all_calls_count():
    bare = Spans([10.0, 11.0], [], [], [5.0] * 2, [25.0] * 2)
    assert witnessed(bare, copies=0) is bare
