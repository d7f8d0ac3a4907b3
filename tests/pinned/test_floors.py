"""roofline/floors.py by worked examples: a GPU of 1 TB/s and 1 Tflop/s, at ceilings of half of both."""

import pytest
from msgspec.structs import replace

from kernelderby.hardware import Ceilings, Gpu
from kernelderby.roofline import floors as f
from kernelderby.rows.measurement import Cost

GPU = Gpu(
    "g", ("G",), None, 1e12, {"float32": 1e12, "float16": 4e12}, None, "", "", Ceilings(5e11, {"float32": 5e11}, "", "")
)
COST = Cost({"float32": 3_000_000}, bytes_read=1_000_000, bytes_written=500_000)


def test_the_larger_floor_counts():
    found = f.floors(COST, GPU)
    assert (found.memory_us, found.compute_us, found.floor_us, found.regime) == (1.5, 3.0, 3.0, "compute")
    found = f.floors(replace(COST, flops={"float32": 1_500_000}), GPU)
    assert (found.compute_us, found.floor_us, found.regime) == (1.5, 1.5, "memory"), "of equal ones memory"
    assert f.floors(replace(COST, flops={"float32": 0}), GPU).regime == "indexing"
    assert f.floors(replace(COST, flops={"float32": 1_000_000, "float16": 4_000_000}), GPU).compute_us == 2.0
    assert f.floors(replace(COST, flops={"int8": 1}), GPU) is None
    assert f.floors(replace(COST, flops={"int8": 0}), GPU).compute_us == 0


def test_intensity_and_regime_of_an_operator():
    assert f.arithmetic_intensity(COST) == 2.0
    assert f.arithmetic_intensity(Cost({"float32": 5}, 0, 0)) == 0.0
    assert f.arithmetic_intensity(Cost({"float32": 5, "float16": 1}, 1, 1)) == 3.0
    assert [f.operator_regime(each) for each in ([0, 0], [0, 5], [10.0], [10.1], [1, 20], [1, 2, 20])] == list("IMMCCM")


def test_an_operator_without_costs_has_no_regime():
    assert f.operator_regime([]) == ""


def test_a_share_needs_a_gpu_a_cost_and_a_peak():
    assert f.share_of_floor(3.0, 6.0) == 0.5 == f.share_on(GPU, COST, 6.0)
    assert f.share_on(None, COST, 6.0) is None is f.share_on(GPU, None, 6.0)
    assert f.share_on(GPU, replace(COST, flops={"int8": 1}), 6.0) is None


def test_the_fair_floor_is_the_largest_of_three():
    """At ceilings: 6 us of flops; 3 us of all bytes, 1 us of the needed ones, 0.5 us in place."""
    cost = replace(COST, bytes_needed=500_000, bytes_in_place=250_000)
    light = replace(cost, flops={})
    assert f.fair_floor_us(GPU, cost, 2.0) == 6.0
    assert f.fair_floor_us(GPU, light, 0.1) == 1.0 and f.fair_floor_us(GPU, light, 0.1, in_place=True) == 0.5
    assert f.fair_floor_us(GPU, light, 7.0) == 7.0
    assert f.fair_floor_us(GPU, replace(light, bytes_needed=None), 0.1) == 3.0
    for gpu, of, empty in (
        (None, cost, 1.0),
        (GPU, None, 1.0),
        (GPU, cost, None),
        (replace(GPU, measured=None), cost, 1.0),
    ):
        assert f.fair_floor_us(gpu, of, empty) is None
    assert f.fair_floor_us(GPU, replace(cost, flops={"int8": 1}), 1.0) is None


def test_the_fair_share_is_one_at_most():
    assert [f.fair_share(*each) for each in ((2.0, 4.0), (4.0, 2.0), (None, 2.0), (2.0, None), (2.0, 0.0))] == [
        0.5, 1.0, None, None, None
    ]  # fmt: skip
    assert f.operator_fair_share([0.5, None, 0.125, None]) == f.FairShare(pytest.approx(0.25), pytest.approx(0.125))
    assert f.operator_fair_share([None]) == f.operator_fair_share([]) == f.FairShare(None, 0.0)


def test_the_share_of_an_operator_is_the_upper_median():
    assert f.operator_share([0.1, None, 0.4, 0.3]) == f.OperatorShare(0.3, 0.3, 3, 4)
    assert f.operator_share([0.1, None, None]) == f.OperatorShare(0.1, 0.0, 1, 3)
    assert f.operator_share([None]) == f.OperatorShare(None, 0.0, 0, 1)
    assert f.operator_share([]) == f.OperatorShare(None, 0.0, 0, 0)


def test_shares_over_operators_by_importance():
    shares = {
        "a": f.OperatorShare(0.5, 0.25, 1, 2),
        "b": f.OperatorShare(1.0, 1.0, 1, 1),
        "n": f.OperatorShare(None, 0.0, 0, 1),
    }
    found = f.weighted_share(shares, {"a": 3.0, "b": 1.0, "n": 4.0, "gone": 2.0})
    assert (found.measured, found.everywhere) == pytest.approx(((3 * 0.5 + 1) / 4, (3 * 0.25 + 1) / 10))
    assert (found.operators, found.of_operators, found.weight) == (2, 4, 0.4)
    assert f.weighted_share(shares, {"b": 1.0}).measured == 1.0, "an operator without importance does not count"
    assert f.weighted_share({}, {}) == f.WeightedShare(None, 0.0, 0, 0, 0.0)
    assert f.weighted_share(shares, {"n": 1.0}) == f.WeightedShare(None, 0.0, 0, 1, 0.0)
