"""roofline against numbers worked out by hand."""

import pytest

from kernelderby.hardware import Gpu, find_gpu
from kernelderby.roofline.floors import (
    OperatorShare,
    arithmetic_intensity,
    floors,
    operator_regime,
    operator_share,
    share_of_floor,
    weighted_share,
)
from kernelderby.rows.measurement import Cost

# 1 TB/s and 100 TFLOP/s fp8, 50 TFLOP/s bf16: the ridge for fp8 lies at 100 flops per byte.
GPU = Gpu("toy", ("Toy",), "1.0", 1e12, {"float8_e4m3fn": 100e12, "bfloat16": 50e12}, None, "by hand", "2026-11")


def test_a_floor_bound_by_memory():
    """3e6 + 1e6 bytes at 1e12 B/s = 4 us; 1e8 flops at 1e14 = 1 us."""
    cost = Cost({"float8_e4m3fn": 100_000_000}, 3_000_000, 1_000_000)
    found = floors(cost, GPU)
    assert (found.memory_us, found.compute_us, found.floor_us) == pytest.approx((4, 1, 4))
    assert found.regime == "memory"
    assert arithmetic_intensity(cost) == pytest.approx(25)


def test_compute_bound_with_two_dtypes_one_after_another():
    """1e9 fp8 flops = 10 us, 1e9 bf16 flops = 20 us: together 30 us over 4 us of memory."""
    found = floors(Cost({"float8_e4m3fn": 10**9, "bfloat16": 10**9}, 4_000_000, 0), GPU)
    assert (found.memory_us, found.compute_us, found.floor_us) == pytest.approx((4, 30, 30))
    assert found.regime == "compute"


def test_on_the_ridge_memory_is_named():
    found = floors(Cost({"float8_e4m3fn": 100 * 10**6}, 10**6, 0), GPU)
    assert found.memory_us == pytest.approx(found.compute_us) == pytest.approx(1)
    assert found.regime == "memory"


@pytest.mark.parametrize("flops", [{}, {"float8_e4m3fn": 0}, {"int32": 0}])
def test_no_arithmetic_is_indexing(flops):
    found = floors(Cost(flops, 10**6, 10**6), GPU)
    assert (found.memory_us, found.compute_us, found.regime) == (pytest.approx(2), 0, "indexing")


def test_a_dtype_without_a_peak_is_none_and_never_a_guess():
    assert floors(Cost({"float32": 1}, 10**6, 0), GPU) is None
    assert floors(Cost({"float8_e4m3fn": 1}, 1, 1), find_gpu("a100")) is None


def test_nothing_to_do_takes_no_time():
    assert floors(Cost({}, 0, 0), GPU).floor_us == 0
    assert arithmetic_intensity(Cost({}, 0, 0)) == 0


def test_share_of_floor():
    assert share_of_floor(4.0, 8.0) == 0.5


def test_one_expert_of_the_moe_on_an_h200():
    """One active expert reads 4096*7168 + 7168*2048 = 44,040,192 bytes of weights: 9.175 us at 4.8 TB/s. One token
    there takes 2 * 44,040,192 flops: 0.0445 us at 1979 TFLOP/s."""
    weights = 4096 * 7168 + 7168 * 2048
    found = floors(Cost({"float8_e4m3fn": 2 * weights}, weights, 0), find_gpu("h200"))
    assert found.memory_us == pytest.approx(9.175, abs=0.001)
    assert found.compute_us == pytest.approx(0.0445, abs=0.0001)


@pytest.mark.parametrize(
    ("intensities", "regime"),
    [([0, 0], "I"), ([0, 0.5, 0], "M"), ([10, 10], "M"), ([0.4, 10.1], "C"), ([100, 4, 3], "M")],
)
def test_regime_of_an_operator(intensities, regime):
    """The middle of 0.4 and 10.1 is 10.1, above 10; that of 3, 4 and 100 is 4."""
    assert operator_regime(intensities) == regime


def test_share_of_an_operator_with_and_without_the_missing_shapes():
    """0.2 and 0.6 were measured: the upper is 0.6. With two zeros the third of 0, 0, 0.2, 0.6 is 0.2."""
    assert operator_share([0.6, None, 0.2, None]) == OperatorShare(0.6, 0.2, 2, 4)
    assert operator_share([None, None]) == OperatorShare(None, 0.0, 0, 2)


def test_the_share_is_weighted_by_importance():
    """Weights 6, 3, 1; b has no time and c no definition: (6 x 0.5) / 6 measured, 6 x 0.4 / 10 everywhere."""
    operators = {
        "a": OperatorShare(0.5, 0.4, 1, 2),
        "b": OperatorShare(None, 0.0, 0, 2),
        "unweighted": OperatorShare(1.0, 1.0, 1, 1),
    }
    found = weighted_share(operators, {"a": 6, "b": 3, "c": 1})
    assert (found.measured, found.everywhere, found.weight) == pytest.approx((0.5, 0.24, 0.6))
    assert (found.operators, found.of_operators) == (1, 3)
    both = weighted_share(operators | {"b": OperatorShare(0.2, 0.2, 2, 2)}, {"a": 6, "b": 3, "c": 1})
    assert both.measured == pytest.approx((6 * 0.5 + 3 * 0.2) / 9)
    assert weighted_share({}, {"a": 1}).measured is None
