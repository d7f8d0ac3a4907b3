"""FP8 quantization against a naive one in Python floats: a table of all e4m3 codes, nearest code, ties to even."""

import bisect
import math

import pytest
import torch
from operators import CATALOG, close, inputs_at, load, outputs_of, small_variants

from kernelderby.measure.judge.correctness import compare
from kernelderby.rows.measurement import Status

NAMES = ["per_token_group_quant_fp8", "fp8_dynamic_per_token_quant"]


def e4m3(code):
    """Value of a code from 0 to 126: 4 bits of exponent with bias 7, 3 of mantissa."""
    exponent, mantissa = divmod(code, 8)
    return math.ldexp(8 + mantissa, exponent - 10) if exponent else math.ldexp(mantissa, -9)


CODES = [e4m3(code) for code in range(127)]


def nearest(value):
    """The e4m3 value nearest to a float; in the middle the one with the even code."""
    size = min(abs(value), 448.0)
    above = bisect.bisect_left(CODES, size)
    if CODES[above] != size:
        low, high = CODES[above - 1], CODES[above]
        above -= size - low < high - size or (size - low == high - size and above % 2 == 1)
    return math.copysign(CODES[above], value)


def near_middle(value):
    """Whether float32 arithmetic may give either neighbour."""
    return nearest(value * (1 + 1e-6)) != nearest(value * (1 - 1e-6))


def naive_row(row, eps):
    """Codes' values and the scale of one row or group, in Python floats; and which codes are near a middle."""
    scale = max(*map(abs, row), eps) / 448.0
    return [nearest(value / scale) for value in row], scale, [near_middle(value / scale) for value in row]


def assert_as_naive(rows, quantized, scales, eps):
    skipped = 0
    for row, codes, scale in zip(rows.double().tolist(), quantized.double().tolist(), scales.tolist(), strict=True):
        expected, expected_scale, unsure = naive_row(row, eps)
        assert scale == pytest.approx(expected_scale, rel=1e-6)
        assert [code for code, skip in zip(codes, unsure, strict=True) if not skip] == [
            code for code, skip in zip(expected, unsure, strict=True) if not skip
        ]
        skipped += sum(unsure)
    assert skipped <= 0.03 * rows.numel() + 2  # bfloat16 values are often simple fractions of the maximum


def test_the_table_is_e4m3():
    assert torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double().tolist() == CODES
    assert CODES[-1] == 448.0


@pytest.mark.parametrize(("name", "changes"), small_variants(*NAMES))
def test_the_references_agree_with_a_naive_quantization(name, changes):
    inputs = inputs_at(name, **changes)
    quantized, scales = outputs_of(name, inputs)
    group = inputs["hidden_states"].shape[-1]
    rows = inputs["hidden_states"].reshape(-1, group)
    assert_as_naive(rows, quantized.view(-1, group), scales.flatten(), inputs["eps"])


@pytest.mark.parametrize(("name", "changes"), small_variants("fused_rmsnorm_quant"))
def test_fused_as_naive(name, changes):
    inputs = inputs_at(name, **changes)
    quantized, scales, residual_out = outputs_of(name, inputs)
    total = inputs["hidden_states"].double() + inputs["residual"].double()
    close(residual_out, total)
    inverse = 1 / torch.sqrt((total**2).mean(-1, keepdim=True) + inputs["eps"])
    assert_as_naive(total * inverse * inputs["weight"].double(), quantized, scales, inputs["quant_eps"])


@pytest.mark.parametrize("name", [*NAMES, "fused_rmsnorm_quant"])
def test_a_row_of_zeros_has_a_positive_scale_and_codes_of_zero(name):
    inputs = inputs_at(name)
    for key in ("hidden_states", "residual"):
        if key in inputs:
            inputs[key][0] = 0
    quantized, scales, *_ = outputs_of(name, inputs)
    assert (quantized[0].float() == 0).all()
    assert (scales[0] == torch.tensor(1e-10) / 448).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_the_largest_value_is_448_never_nan(name, size):
    """For every mantissa of a bfloat16 maximum, at very small and very large sizes."""
    inputs = inputs_at(name, num_tokens=128)
    rows = inputs["hidden_states"]
    rows.clamp_(-1, 1)
    rows[..., 3] = (torch.arange(128, 256) / 64).to(torch.bfloat16).view(128, *[1] * (rows.ndim - 2))
    inputs["hidden_states"] = (rows.double() * size).to(torch.bfloat16)
    quantized, _ = load(name).run(**{**inputs, "eps": 1e-38})
    assert (quantized[..., 3].float() == 448).all() and quantized.float().isfinite().all()


def test_rows_are_quantized_alike_in_chunks(monkeypatch):
    """The reference takes a chunk of rows at a time: 2 at a time here, 5 rows."""
    module, inputs = load("per_token_group_quant_fp8"), inputs_at("per_token_group_quant_fp8")
    whole = module.run(**inputs)
    monkeypatch.setattr(module, "CHUNK", 2 * 3 * 128)
    for found, expected in zip(module.run(**inputs), whole, strict=True):
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


# The tolerances accept roundings, refuse errors -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        (lambda quantized, scales: (quantized, scales), Status.PASSED),
        (lambda quantized, scales: (quantized, 1.1 * scales), Status.WRONG_VALUES),
        (lambda quantized, scales: (quantized, 0 * scales), Status.WRONG_VALUES),
        (lambda quantized, scales: ((quantized.float() * 0.95).to(quantized.dtype), scales), Status.WRONG_VALUES),
        (lambda quantized, scales: ((quantized.float() * 0.5).to(quantized.dtype), scales), Status.WRONG_VALUES),
    ],
    ids=["right", "scales of codes unlike theirs", "no scales", "codes by 5 %", "codes by half"],
)
@pytest.mark.parametrize("name", [*NAMES, "fused_rmsnorm_quant"])
def test_the_tolerances_tell_wrong_scales_and_values(name, wrong, status):
    outputs = outputs_of(name, inputs_at(name, num_tokens=40))
    names = list(CATALOG.definition(name).outputs)
    spoiled = (*wrong(*outputs[:2]), *outputs[2:])
    verdict = compare(
        CATALOG.definition(name), dict(zip(names, spoiled, strict=True)), dict(zip(names, outputs, strict=True))
    )
    assert verdict.status is status


@pytest.mark.parametrize("name", NAMES)
def test_a_reciprocal_instead_of_a_quotient_passes(name):
    inputs = inputs_at(name, num_tokens=200)
    quantized, scales = outputs_of(name, inputs)
    inverse = (1 / scales).unsqueeze(-1)
    other = (inputs["hidden_states"].float() * inverse).clamp(-448, 448).to(torch.float8_e4m3fn)
    verdict = compare(
        CATALOG.definition(name), {"quantized": other, "scales": scales}, {"quantized": quantized, "scales": scales}
    )
    assert verdict.status is Status.PASSED


def test_rounding_to_bfloat16_on_the_way_passes():
    """As kernels do that run the three operators one after the other."""
    inputs = inputs_at("fused_rmsnorm_quant", num_tokens=64, hidden_size=2048)
    outputs = dict(
        zip(CATALOG.definition("fused_rmsnorm_quant").outputs, outputs_of("fused_rmsnorm_quant", inputs), strict=True)
    )
    total = inputs["hidden_states"] + inputs["residual"]
    x = total.float()
    normalized = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)).to(torch.bfloat16) * inputs["weight"]
    scales = normalized.float().abs().amax(-1) / 448
    codes = (normalized.float() / scales[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    verdict = compare(
        CATALOG.definition("fused_rmsnorm_quant"),
        {"quantized": codes, "scales": scales, "residual_out": total},
        outputs,
    )
    assert verdict.status is Status.PASSED, verdict.message


# Costs, counted by hand -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "flops", "read", "written"),
    [
        ("per_token_group_quant_fp8", 5 * 3 * 129, 5 * 3 * 256, 5 * 3 * (128 + 4)),
        ("fp8_dynamic_per_token_quant", 5 * 100, 5 * 198, 5 * (99 + 4)),
        ("fused_rmsnorm_quant", 5 * (5 * 99 + 2), 2 * 5 * 198 + 198, 5 * (99 + 4 + 198)),
    ],
)
def test_cost_at_small_axes(name, flops, read, written):
    module = load(name)
    assert module.count_cost(module.SMALL_AXES, {}) == {
        "flops": {"float8_e4m3fn": flops},
        "bytes_read": read,
        "bytes_written": written,
    }
    none = module.count_cost({**module.SMALL_AXES, "num_tokens": 0}, {})
    assert none["flops"] == {"float8_e4m3fn": 0} and none["bytes_written"] == 0
