"""records: a measurement survives the way to a trace line and back, ours and flashinfer-bench's own."""

import json
import math

import pytest

from kernelderby.rows.measurement import FLASHINFER_BENCH_EVENTS, Correctness, FileLine, Measurement, Status, Timed

WORKLOAD = {"uuid": "u1", "axes": {"rows": 2}, "inputs": {"x": {"type": "random"}}}


def measurement(**changes) -> Measurement:
    fields = {
        "definition": "d",
        "workload": WORKLOAD,
        "solution": "s",
        "status": Status.PASSED,
        "gpu": "NVIDIA H200",
        "protocol": "p1",
        "timestamp": "2026-11-21T02:00:00",
        "latency_us": 8.0,
        "samples_us": ((7.0, 8.0), (8.0, 9.0)),
        "reference_latency_us": 16.0,
        "correctness": Correctness(0.5, 0.25, 0.125, {"contest": 1.0}),
        "solution_hash": "abc",
        "session": "1",
        "message": "log",
        "environment": {"libs": {"torch": "2.13.0"}, "driver": "580"},
    }
    return Measurement(**{**fields, **changes})


@pytest.mark.parametrize("status", list(Status))
def test_every_status_survives_the_round_trip(status):
    latency = 8.0 if status is Status.PASSED else None
    row = measurement(status=status, latency_us=latency)
    assert Measurement.from_trace(json.loads(json.dumps(row.to_trace()))) == row


def test_a_passed_row_carries_flashinfer_benchs_numbers():
    evaluation = measurement().to_trace()["evaluation"]
    assert evaluation["status"] == "PASSED"
    assert evaluation["environment"]["hardware"] == "NVIDIA H200"
    assert evaluation["performance"] == {"latency_ms": 0.008, "reference_latency_ms": 0.016, "speedup_factor": 2.0}
    assert evaluation["correctness"] == {"max_relative_error": 0.25, "max_absolute_error": 0.5}


def test_a_failed_row_carries_neither_performance_nor_correctness():
    evaluation = measurement(status=Status.CRASHED, latency_us=None).to_trace()["evaluation"]
    assert (evaluation["status"], evaluation["performance"], evaluation["correctness"]) == ("RUNTIME_ERROR", None, None)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_no_bare_nan_or_infinity_in_the_json(value):
    row = measurement(status=Status.NOT_A_NUMBER, latency_us=None, correctness=Correctness(value, value, value))
    text = json.dumps(row.to_trace(), allow_nan=False)
    back = Measurement.from_trace(json.loads(text)).correctness.max_absolute_error
    assert back == value or (back != back and value != value)


def test_flashinfer_benchs_own_row_keeps_its_own_protocol():
    trace = measurement().to_trace()
    del trace["measurement"]
    row = Measurement.from_trace(trace)
    assert (row.protocol, row.latency_us, row.status) == (FLASHINFER_BENCH_EVENTS, 8.0, Status.PASSED)
    assert row.uuid == "u1"


def test_a_check_goes_into_json_with_what_json_does_not_have():
    pytest.importorskip("torch")
    from kernelderby.rows.checked import CheckResult

    found = Correctness(math.inf, 0.5, math.nan, {"tight": 0.5})
    own = CheckResult("d", "s", "c", Status.WRONG_VALUES, "", found).to_json()["correctness"]
    assert own["max_absolute_error"] == "inf" and own["relative_error_norm"] == "nan"
    assert (own["max_relative_error"], own["matched_ratio"]) == (0.5, {"tight": 0.5})


def test_a_record_never_changes_and_equals_what_says_the_same():
    found = measurement(place=FileLine("a.jsonl", 3), times={"eager": Timed(8.0, ((8.0,),))})
    for record, name in (
        (found, "status"),
        (found.correctness, "max_absolute_error"),
        (found.place, "line"),
        (found.times["eager"], "median_us"),
    ):
        with pytest.raises(AttributeError, match="immutable"):
            setattr(record, name, 1)
    assert measurement() == measurement(place=FileLine("b.jsonl", 9)) and measurement() != measurement(message="other")
    assert measurement() != "other" and measurement() != measurement().to_trace()
