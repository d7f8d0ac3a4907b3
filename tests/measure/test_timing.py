"""Records -> spans, worked out by hand. The clocks themselves are tried in test_gpu.py."""

import enum
import sys
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from kernelderby.measure.clock import timing  # noqa: E402
from kernelderby.measure.clock.timing import (  # noqa: E402
    NO_FLUSH,
    CuptiTimer,
    TimingFailed,
    outside_of_windows,
    spans_of_records,
)
from kernelderby.measure.wire import remote  # noqa: E402


def test_a_span_is_first_start_to_last_end_in_microseconds():
    records = [(9_000_000, 9_500_000), (10_005_000, 10_007_000), (10_006_000, 10_012_000), (20_001_000, 20_004_500)]
    spans = spans_of_records(records, [(10_000_000, 10_050_000), (20_000_000, 20_050_000)])
    assert spans.spans_us == [7.0, 3.5]
    assert spans.notes == ["iterations launched 1 to 2 kernels and copies"]


def test_the_judge_knows_the_timer_s_own_notes():
    """Other words of a worker are quoted, and no row has them."""
    records = [(0, 0), (10_005_000, 10_007_000), (10_006_000, 10_012_000), (20_001_000, 20_004_500)]
    notes = spans_of_records(records, [(10_000_000, 10_050_000), (20_000_000, 20_050_000)]).notes
    assert len(notes) == 2 and remote.noted(notes) == notes
    assert remote.noted(["left out: all"]) != ["left out: all"]
    off = ["the clock of the records was off, and set by the flushes"]
    assert remote.noted(off) == off
    many = [f"left out: {number} records without timestamps" for number in (294_025, 148_375)]
    assert remote.noted([*many, "one", notes[1], "another"]) == [
        "left out: 290000 records without timestamps",
        *remote.noted(["one"]),
        notes[1],
    ]


def test_the_flush_before_the_window_is_left_out_and_a_slightly_early_clock_is_not():
    records = [(940_000, 999_000), (999_500, 1_004_500)]
    spans = spans_of_records(records, [(1_000_000, 1_010_000)])
    assert spans.spans_us == [5.0] and not spans.notes


def test_the_next_flush_is_left_out_even_when_the_records_clock_is_slow():
    records = [(1_000_500, 1_006_000), (1_009_000, 1_070_000), (1_095_000, 1_100_000)]  # 8 us early, all of them
    spans = spans_of_records(records, [(1_000_000, 1_010_000), (1_090_000, 1_110_000)])
    assert spans.spans_us == [5.5, 5.0] and not spans.notes


def test_a_record_may_end_a_little_after_its_window():
    assert spans_of_records([(1_002_000, 1_015_000)], [(1_000_000, 1_010_000)]).spans_us == [13.0]


def test_streams_may_overlap_and_records_come_in_any_order():
    records = [(1_030_000, 1_031_000), (1_001_000, 1_090_000)]
    assert spans_of_records(records, [(1_000_000, 1_100_000)]).spans_us == [89.0]


def test_an_iteration_without_records_has_no_time():
    with pytest.raises(TimingFailed, match="iteration 1"):
        spans_of_records([(1_001_000, 1_002_000)], [(1_000_000, 1_010_000), (2_000_000, 2_010_000)])


def test_records_without_timestamps_are_noted():
    spans = spans_of_records([(0, 0), (1_001_000, 1_002_000)], [(1_000_000, 1_010_000)])
    assert spans.spans_us == [1.0] and spans.notes == ["left out: 1 record without timestamps"]


class FakeCupti(ModuleType):
    """The part of cupti-python 13 that CuptiTimer uses, with a clock that ticks 1 us at each look."""

    class ActivityKind(enum.IntEnum):
        MEMCPY = 1
        MEMSET = 2
        CONCURRENT_KERNEL = 10

    def __init__(self):
        super().__init__("cupti")
        self.cupti, self.now, self.enabled, self.records = self, 10**9, set(), []
        self.activity_enable, self.activity_disable = self.enabled.add, self.enabled.discard

    def activity_register_callbacks(self, requested, completed):
        assert requested() == (8 << 20, 0)
        self.completed = completed

    def get_timestamp(self):
        self.now += 1000
        return self.now

    def synchronize(self, device):
        self.now += 60_000  # the flush before a call takes over 50 us

    def activity_flush_all(self, flag):
        self.completed(self.records)
        self.records = []

    def record(self, kind, microseconds):
        start = self.get_timestamp()
        self.now += 1000 * microseconds
        self.records.append(SimpleNamespace(kind=kind, start=start, end=self.now, name="kernel", bytes=0))


@pytest.fixture
def cupti(monkeypatch):
    fake = FakeCupti()
    monkeypatch.setitem(sys.modules, "cupti", fake)
    monkeypatch.setattr(timing.torch.cuda, "synchronize", fake.synchronize)
    monkeypatch.setattr(timing, "flush_bytes", lambda device: 1024)
    return fake


def test_the_timer_collects_kernels_copies_and_fills_and_switches_cupti_off(cupti):
    kinds = cupti.ActivityKind

    def call(iteration):
        assert cupti.enabled == set(kinds)
        cupti.record(kinds.MEMSET, 2)
        cupti.record(kinds.CONCURRENT_KERNEL, 5)  # 1 us after the fill
        cupti.record(5, 500)  # a driver call

    timer = CuptiTimer(torch.device("cpu"))
    assert timer.spans(call, 3).spans_us == [8.0, 8.0, 8.0]
    assert timer.spans(call, 1).spans_us == [8.0]
    assert not cupti.enabled


def test_the_timer_survives_a_call_that_raises(cupti):
    timer = CuptiTimer(torch.device("cpu"))
    with pytest.raises(ZeroDivisionError):
        timer.spans(lambda iteration: 1 / 0, 1)
    assert not cupti.enabled
    assert timer.spans(lambda iteration: cupti.record(10, 3), 2).spans_us == [3.0, 3.0]


def test_what_lies_outside_of_the_windows():
    """Two iterations: the flush (100 us) from 1 ms on, the window from 1.2 ms to 1.25 ms; the next one 2 ms later."""
    us = 1000
    flushes, windows = [1000 * us, 3000 * us], [(1200 * us, 1250 * us), (3200 * us, 3250 * us)]
    flush = [(1010 * us, 1110 * us), (3010 * us, 3110 * us)]
    calls = [(1210 * us, 1220 * us), (3210 * us, 3215 * us)]

    def outside(*records):
        return outside_of_windows([*flush, *calls, *records], windows, flushes, 256 << 20)

    assert outside() == [0, 0]
    assert outside((1120 * us, 1140 * us)) == [1, 0], "between flush and window"
    assert outside((3400 * us, 3410 * us)) == [0, 1], "behind the window: a copy of what was returned"
    assert outside((1500 * us, 1510 * us), (2500 * us, 2510 * us)) == [2, 0], "before the next flush"
    assert outside((1185 * us, 1190 * us)) == [0, 0], "the clocks' error: it counts in the span"
    assert outside_of_windows(calls, windows, flushes, 256 << 20) == [NO_FLUSH, NO_FLUSH]
    assert outside_of_windows([flush[0], *calls, (3010 * us, 3012 * us)], windows, flushes, 256 << 20) == [0, NO_FLUSH]
