"""Amdahl's law over stages, and the figures of the 2026-02-02 document on triton_fused_v2."""

import pytest
from memory_profile import EventProfile, events, sums

from kernelderby.errors import DerbyError
from kernelderby.profile.sources import open_profile
from kernelderby.profile.spans import Span, SpanKind
from kernelderby.profile.stages.walk import pipeline_of
from kernelderby.profile.stages.whatif import amdahl, rows_of_role, time_saved, whatif
from kernelderby.rows.measurement import Stage

STAGES = (Stage("A", "small", ("^a$",)), Stage("B", "GEMM", ("^b$",)), Stage("C", "other", ("^c$",)))


def pipeline():
    """Ten invocations of 10 + 80 + 10 us."""
    return pipeline_of(sums({"a": (10, 100e3), "b": (10, 800e3), "c": (10, 100e3)}), STAGES, "s")


def by_stage(found):
    return {one.stage: one for one in found.stages}


def test_amdahls_law_at_its_ends():
    assert amdahl(0.5, 2) == pytest.approx(4 / 3)
    assert amdahl(0.5, float("inf")) == 2
    assert amdahl(0.3, 1) == 1
    assert amdahl(1.0, float("inf")) == float("inf")
    assert time_saved(2) == 0.5 and time_saved(float("inf")) == 1


def test_stages_are_chosen_by_their_role_whatever_their_title():
    stages = (
        Stage("A", "GEMM", ("^a$",)),
        Stage("B", "first", ("^b$",), role="gemm"),
        Stage("C", "second", ("^b$",), role="gemm"),
        Stage("D", "third", ("^d$",), role="gemm"),
        Stage("E", "fourth", ("^e$",), role="gemm"),
        Stage("F", "fifth", ("^e$",)),
    )
    found = pipeline_of(sums({"a": (10, 100e3), "b": (20, 800e3), "e": (20, 100e3)}), stages, "s")
    assert {"A", "B / C", "E / F"} <= {row.name for row in found.stages}
    assert rows_of_role(found, stages, "gemm") == ["B / C"]  # D took no time, half of E / F multiplies


def test_each_stage_has_its_gain_at_each_factor():
    found = whatif(pipeline())
    assert found.factors == (1.2, 2.0) and [one.stage for one in found.stages] == ["B", "A", "C"]
    big = by_stage(found)["B"]
    assert big.share == pytest.approx(0.8)
    assert big.speedups == pytest.approx((1 / (0.2 + 0.8 / 1.2), 1 / 0.6))
    assert big.gone == pytest.approx(5) and big.at_floor is None
    assert (found.largest, found.bound) == ("B", pytest.approx(1.25))


def test_overlapped_time_counts_once():
    """C runs beside B from 50 on and adds 20 of its 150."""
    spans = [Span(SpanKind.KERNEL, "b", 0, 180), Span(SpanKind.KERNEL, "c", 50, 200)]
    found = whatif(pipeline_of(EventProfile(events=spans), STAGES, "s"))
    assert {one.stage: (one.time_ns, one.share) for one in found.stages} == {"B": (180, 0.9), "C": (20, 0.1)}
    assert found.bound == pytest.approx(200 / 180)


def test_floors_decide_the_order():
    # B is at its floor but for 1 us of 80; A could lose 9 of its 10 us.
    found = whatif(pipeline(), floors_us={"A": 1.0, "B": 79.0})
    assert [one.stage for one in found.stages] == ["A", "C", "B"]
    small = by_stage(found)["A"]
    assert small.floor_share == pytest.approx(0.1) and small.at_floor == pytest.approx(100 / 91)
    assert by_stage(found)["B"].at_floor == pytest.approx(100 / 99)
    assert by_stage(found)["C"].floor_us is None


def test_a_floor_of_several_stages_is_a_row_of_its_own():
    found = whatif(pipeline(), floors_us={"A / B": 45.0})
    together = by_stage(found)["A / B"]
    assert together.share == pytest.approx(0.9) and together.at_floor == pytest.approx(100 / 55)
    assert len(found.stages) == 4 and found.largest == "B"


def test_a_floor_above_the_measurement_gains_nothing():
    slow = by_stage(whatif(pipeline(), floors_us={"B": 160.0}))["B"]
    assert slow.floor_share == pytest.approx(2) and slow.at_floor == 1


def test_a_floor_of_no_stage_is_an_error():
    with pytest.raises(DerbyError, match="no stage D to give a floor; there are A, B, C"):
        whatif(pipeline(), floors_us={"D": 1.0})


def test_nothing_to_speed_up():
    found = whatif(pipeline_of(events(("x", 5)), STAGES, "s"))
    assert found.stages == () and found.largest is None and found.bound is None


def test_the_claims_of_the_document(checkout):
    """Its shares are of ~3310 ms; see docs/profiling.md for what follows."""
    from kernelderby.catalog import Catalog

    stages = Catalog.open(checkout).solution("triton_fused_v2").stages
    profile = open_profile(checkout / "profiles" / "triton_fused_v2_b200.csv")
    found = by_stage(whatif(pipeline_of(profile, stages, "triton_fused_v2", stated_total_ns=3310e6)))
    # "even a Triton kernel twice as fast gives about 4 %": 4.5 % more speed, 4.3 % less time.
    assert found["K4"].speedups[1] == pytest.approx(1.0452, abs=5e-5)
    assert time_saved(found["K4"].speedups[1]) == pytest.approx(0.0432, abs=5e-5)
    assert found["K4"].gone == pytest.approx(1.0946, abs=5e-5)
    # 78.6 % in the GEMMs: everything else free would make the pipeline 1.27 times as fast.
    assert found["K3 / K5"].share == pytest.approx(0.7863, abs=5e-5)
    assert found["K3 / K5"].speedups[1] == pytest.approx(1.648, abs=5e-4)
    # "scatter/gather about 10 %": 10.9 %.
    moving = ("K2a", "K2b", "K2c", "K2d", "K2e", "K6")
    assert sum(found[name].share for name in moving) == pytest.approx(0.1087, abs=5e-5)
