"""Records -> spans, worked out by hand. The clocks themselves are tried in test_gpu.py."""

import pytest

pytest.importorskip("torch")
from kernelderby.measure.timing import TimingFailed, spans_of_records


def test_a_span_is_first_start_to_last_end_in_microseconds():
    records = [(9_000_000, 9_500_000), (10_005_000, 10_007_000), (10_006_000, 10_012_000), (20_001_000, 20_004_500)]
    spans = spans_of_records(records, [(10_000_000, 10_050_000), (20_000_000, 20_050_000)])
    assert spans.spans_us == [7.0, 3.5]
    assert spans.notes == ["iterations launched 1 to 2 kernels and copies"]


def test_the_flush_before_the_window_is_left_out_and_a_slightly_early_clock_is_not():
    records = [(940_000, 999_000), (999_500, 1_004_500)]
    spans = spans_of_records(records, [(1_000_000, 1_010_000)])
    assert spans.spans_us == [5.0] and not spans.notes


def test_streams_may_overlap_and_records_come_in_any_order():
    records = [(1_030_000, 1_031_000), (1_001_000, 1_090_000)]
    assert spans_of_records(records, [(1_000_000, 1_100_000)]).spans_us == [89.0]


def test_an_iteration_without_records_has_no_time():
    with pytest.raises(TimingFailed, match="iteration 1"):
        spans_of_records([(1_001_000, 1_002_000)], [(1_000_000, 1_010_000), (2_000_000, 2_010_000)])


def test_records_without_timestamps_are_noted():
    spans = spans_of_records([(0, 0), (1_001_000, 1_002_000)], [(1_000_000, 1_010_000)])
    assert spans.spans_us == [1.0] and spans.notes == ["1 records without timestamps were left out"]
