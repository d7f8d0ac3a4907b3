"""rows/measurement.py by worked examples: which row counts, its clock, how many bytes it has to move."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from test_records import measurement

from kernelderby.errors import DerbyError
from kernelderby.rows.measurement import (
    FLASHINFER_BENCH_CUPTI,
    FLASHINFER_BENCH_EVENTS,
    Cost,
    FileLine,
    Measurement,
    Status,
    Timed,
    flashinfer_bench_protocol,
    newest,
)
from kernelderby.rows.row import Row
from kernelderby.store.fields import convert


def test_bytes_that_have_to_be_moved():
    cost = Cost({}, bytes_read=30, bytes_written=12)
    assert cost.needed() == cost.needed(in_place=True) == 42 and cost.counted is False
    cost = Cost({}, 30, 12, bytes_needed=20, bytes_in_place=15)
    assert (cost.needed(), cost.needed(in_place=False), cost.needed(in_place=True)) == (20, 20, 15)
    assert Cost({}, 30, 12, bytes_in_place=0).needed(True) == 0 and Cost({}, 30, 12, bytes_needed=0).needed() == 0


@pytest.mark.parametrize(
    ("moment", "log", "by_author", "found"),
    [
        ("2026-02-24T00:00:00+00:00", "", True, FLASHINFER_BENCH_CUPTI),
        ("2026-02-24T00:00:00", "", True, FLASHINFER_BENCH_CUPTI),  # without a zone: UTC
        ("2026-02-23T23:59:59", "", True, FLASHINFER_BENCH_EVENTS),
        ("2026-02-24T00:30:00+01:00", "", True, FLASHINFER_BENCH_EVENTS),
        ("2026-05-01T00:00:00", "", False, FLASHINFER_BENCH_EVENTS),
        ("2026-05-01T00:00:00", "x Falling back to CUDA events y", True, FLASHINFER_BENCH_EVENTS),
        ("once", "", True, FLASHINFER_BENCH_EVENTS),
    ],
)
def test_flashinfer_benchs_timers(moment, log, by_author, found):
    assert flashinfer_bench_protocol(moment, log, by_author) == found


def test_a_moment_that_is_none_is_the_oldest():
    assert measurement(timestamp="once").moment == datetime.min.replace(tzinfo=UTC)


def test_a_row_that_did_not_pass_has_no_time():
    times = {"graph": Timed(3.0, ((3.0,),))}
    assert measurement(times=times).time("graph").median_us == 3.0 and measurement().time("graph") is None
    assert measurement(times=times).time("eager") == Timed(8.0, ((7.0, 8.0), (8.0, 9.0)))
    failed = measurement(status=Status.CRASHED, times=times)
    assert failed.time("graph") is None and failed.time("eager") is None
    assert measurement(latency_us=None).time("eager") is None


def row(latency_us, hour, path=None):
    place = None if path is None else FileLine(path, 1)
    return measurement(latency_us=latency_us, timestamp=f"2026-01-01T{hour:02}:00:00", place=place)


@pytest.mark.parametrize(
    ("rows", "counts"),
    [
        ([row(1.0, 5, "a"), row(2.0, 3, "a")], 2.0),  # of one file the last line, whatever the clock said
        ([row(1.0, 5, "a"), row(2.0, 3, "b")], 1.0),  # of two the later
        ([row(1.0, 3, "a"), row(2.0, 3, "b")], 2.0),  # at the same moment the last
        ([row(1.0, 3, "a"), row(2.0, 9, "a"), row(3.0, 4, "a"), row(4.0, 5, "b")], 4.0),
        ([row(1.0, 5), row(2.0, 3)], 1.0),  # not read: the later
        ([row(1.0, 5), row(2.0, 5)], 2.0),
        ([row(1.0, 5), row(2.0, 4, "a")], 1.0),
    ],
)
def test_which_row_counts(rows, counts):
    assert newest(rows, lambda each: each.uuid)["u1"].latency_us == counts
    assert newest([], lambda each: each.uuid) == {}


def test_where_it_was_read_makes_no_other_row():
    assert measurement(place=FileLine("a", 1)) == measurement(place=FileLine("b", 2))


def test_numbers_of_flashinfer_bench():
    trace = measurement().to_trace()
    del trace["measurement"]
    trace["evaluation"]["performance"].update(latency_ms=0.25, reference_latency_ms=0.5)
    trace["evaluation"]["log"] = None
    found = convert("the row", trace, Row)
    one = Measurement.from_row(found, "x:1", by_author=True)
    assert (one.latency_us, one.reference_latency_us, one.message) == (250.0, 500.0, "")
    assert one.protocol == FLASHINFER_BENCH_CUPTI
    trace["evaluation"]["log"] = "Falling back to CUDA events"
    one = Measurement.from_row(convert("the row", trace, Row), "x:1", by_author=True)
    assert one.protocol == FLASHINFER_BENCH_EVENTS == Measurement.from_row(found, "x:1").protocol
    trace["evaluation"] |= {"status": "RUNTIME_ERROR", "performance": None, "correctness": None}
    one = Measurement.from_row(convert("the row", trace, Row), "x:1")
    assert one.latency_us is one.reference_latency_us is None


def test_a_workload_that_was_not_read_is_looked_at():
    trace = measurement().to_trace()
    trace["workload"] = {"uuid": "u1", "axes": "none", "inputs": {}}
    found = convert("the row", trace, Row)
    with pytest.raises(DerbyError, match="x:1: workload"):
        Measurement.from_row(found, "x:1")
    assert Measurement.from_row(found, "x:1", is_known=True).uuid == "u1"


def test_without_a_time_the_speedup_is_none():
    without = measurement(latency_us=None, reference_latency_us=None).to_trace()["evaluation"]["performance"]
    assert without == {"latency_ms": 0.0, "reference_latency_ms": 0.0, "speedup_factor": 0.0}


def test_infinities_as_words():
    from kernelderby.rows.measurement import Correctness

    own = measurement(correctness=Correctness(float("inf"), float("-inf"), float("nan"))).to_trace()["measurement"]
    found = [
        own["correctness"][f"{name}"] for name in ("max_absolute_error", "max_relative_error", "relative_error_norm")
    ]
    assert json.loads(json.dumps(found)) == ["Infinity", "-Infinity", "NaN"]


def test_the_eager_time_stands_once():
    times = {"eager": Timed(1.5, ((1.0,), (2.0,))), "graph": Timed(3.0, ((3.0,),))}
    own = (trace := measurement(times=times, graph_missing="", latency_us=1.5).to_trace())["measurement"]
    assert "samples_us" not in own and own["times"]["eager"]["samples_us"] == ((1.0,), (2.0,))
    assert not {"graph_missing", "host_us", "wall_us", "setup", "shape"} & own.keys()
    assert [*map(list, Measurement.from_trace(json.loads(json.dumps(trace))).samples_us)] == [[1.0], [2.0]]
    own["graph_missing"] = None
    assert Measurement.from_trace(json.loads(json.dumps(trace))).graph_missing == ""


def test_a_row_in_a_notebook():
    assert repr(measurement()) == "Measurement('s', u1, NVIDIA H200, passed, 8 us)"
    assert repr(measurement(latency_us=None, status=Status.CRASHED)) == "Measurement('s', u1, NVIDIA H200, crashed)"
