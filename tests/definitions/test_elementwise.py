"""silu_and_mul, moe_sum_reduce, topk_filter and linear_sigmoid_mul against naive loops in float64."""

import math

import pytest
import torch
from operators import CATALOG, close, inputs_at, load, outputs_of, small_variants

from kernelderby.measure.judge.correctness import compare
from kernelderby.rows.measurement import Status


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize(("name", "changes"), small_variants("silu_and_mul"))
def test_silu_and_mul(name, changes):
    inputs = inputs_at(name, **changes)
    (output,) = outputs_of(name, inputs)
    flat = inputs["gate_up"].reshape(len(output), 2 * output.shape[1])  # the usual layout, the same memory
    assert flat.data_ptr() == inputs["gate_up"].data_ptr()
    half = output.shape[1]
    expected = [
        [gate * sigmoid(gate) * up for gate, up in zip(row[:half], row[half:], strict=True)]
        for row in flat.double().tolist()
    ]
    close(output, torch.tensor(expected, dtype=torch.float64).view(output.shape))


def test_silu_of_large_values_is_finite():
    inputs = inputs_at("silu_and_mul", num_tokens=1, intermediate_size=4)
    inputs["gate_up"][0, 0] = torch.tensor([-1e30, 1e30, -100.0, 0.0])
    inputs["gate_up"][0, 1] = 2.0
    ((zero, large, small, none),) = load("silu_and_mul").run(**inputs).double().tolist()
    assert zero == 0 and large == pytest.approx(2e30, rel=2**-8) and abs(small) < 1e-40 and none == 0


@pytest.mark.parametrize(("name", "changes"), small_variants("moe_sum_reduce"))
def test_moe_sum_reduce(name, changes):
    inputs = inputs_at(name, **changes)
    (output,) = outputs_of(name, inputs)
    expected = torch.zeros(output.shape, dtype=torch.float64)
    for expert in range(8):
        expected += inputs["expert_outputs"][:, expert].double() * inputs["routed_scaling_factor"]
    close(output, expected)


def test_moe_sum_in_bfloat16_fails():
    inputs = inputs_at("moe_sum_reduce", num_tokens=64, hidden_size=512)
    (expected,) = outputs_of("moe_sum_reduce", inputs)
    total = torch.zeros_like(expected)
    for expert in range(8):
        total += inputs["expert_outputs"][:, expert]
    total *= inputs["routed_scaling_factor"]
    verdict = compare(CATALOG.definition("moe_sum_reduce"), {"output": total}, {"output": expected})
    assert verdict.status is Status.WRONG_VALUES


@pytest.mark.parametrize(("name", "changes"), small_variants("topk_filter"))
def test_topk_filter_keeps_the_largest_and_their_equals(name, changes):
    inputs = inputs_at(name, **changes)
    (output,) = outputs_of(name, inputs)
    for row, found in zip(inputs["logits"].tolist(), output.tolist(), strict=True):
        kept = sorted(range(len(row)), key=lambda column: -row[column])[: inputs["top_k"]]
        lowest = min(row[column] for column in kept)
        assert found == [value if value >= lowest else inputs["filter_value"] for value in row]


def test_values_equal_to_the_kth_all_stay():
    inputs = inputs_at("topk_filter", num_tokens=1, vocab_size=6, top_k=2)
    inputs["logits"][0] = torch.tensor([3.0, 1.0, 2.0, 2.0, -5.0, 2.0])
    (output,) = outputs_of("topk_filter", inputs)
    low = inputs["filter_value"]
    assert output.tolist() == [[3.0, low, 2.0, 2.0, low, 2.0]]
    assert torch.softmax(output, -1)[0, [1, 4]].tolist() == [0.0, 0.0]


def test_one_wrong_place_in_the_filter_fails():
    inputs = inputs_at("topk_filter", num_tokens=2, vocab_size=4000)
    (output,) = outputs_of("topk_filter", inputs)
    wrong = output.clone()
    wrong[1, output[1].argmax()] = inputs["filter_value"]
    verdict = compare(CATALOG.definition("topk_filter"), {"output": wrong}, {"output": output})
    assert verdict.status is Status.WRONG_VALUES


@pytest.mark.parametrize(("name", "changes"), small_variants("linear_sigmoid_mul"))
def test_linear_sigmoid_mul(name, changes):
    inputs = inputs_at(name, **changes)
    (output,) = outputs_of(name, inputs)
    tokens, weight = inputs["hidden_states"].double(), inputs["weight"].double()
    for row in range(len(output)):
        gate = (weight * tokens[row]).sum(1) + inputs["bias"].double()
        expected = torch.tensor([sigmoid(value) for value in gate.tolist()], dtype=torch.float64)
        torch.testing.assert_close(
            output[row].double(), expected * inputs["multiplier"][row].double(), rtol=1.2 * 2**-8, atol=1e-6
        )  # the exponential multiplies float32's error by 20


@pytest.mark.parametrize(
    ("spoil", "status"),
    [
        (lambda gate, bias, multiplier: torch.sigmoid((gate + bias).to(torch.bfloat16)) * multiplier, Status.PASSED),
        (lambda gate, bias, multiplier: torch.sigmoid(gate) * multiplier, Status.WRONG_VALUES),
        (lambda gate, bias, multiplier: torch.sigmoid(gate + bias), Status.WRONG_VALUES),
        (lambda gate, bias, multiplier: (gate + bias > 0) * multiplier, Status.WRONG_VALUES),
    ],
    ids=["bfloat16 between", "no bias", "no product", "a step"],
)
def test_the_tolerance_of_the_gate_at_the_largest_hidden_size(spoil, status):
    """At 4096, where most of the gates of random operands are flat."""
    inputs = inputs_at("linear_sigmoid_mul", num_tokens=32, hidden_size=4096, out_features=512)
    (output,) = outputs_of("linear_sigmoid_mul", inputs)
    gate = inputs["hidden_states"].float() @ inputs["weight"].float().t()
    other = spoil(gate, inputs["bias"].float(), inputs["multiplier"]).to(torch.bfloat16)
    verdict = compare(CATALOG.definition("linear_sigmoid_mul"), {"output": other}, {"output": output})
    assert verdict.status is status


# Costs, counted by hand -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype", "flops", "read", "written"),
    [
        ("silu_and_mul", "bfloat16", 5 * 5 * 99, 5 * 2 * 198, 5 * 198),
        ("moe_sum_reduce", "bfloat16", 5 * 8 * 99, 5 * 8 * 198, 5 * 198),
        ("topk_filter", "float32", 0, 5 * 4 * 99, 5 * 4 * 99),
        ("gemm_bf16", "bfloat16", 5 * 99 * (2 * 64 + 1), 5 * 128 + 99 * 128 + 198, 5 * 198),
        ("linear_sigmoid_mul", "bfloat16", 5 * 99 * (2 * 64 + 1), 5 * 128 + 99 * 128 + 198 + 5 * 198, 5 * 198),
    ],
)
def test_cost_at_small_axes(name, dtype, flops, read, written):
    module = load(name)
    assert module.count_cost(module.SMALL_AXES, {}) == {
        "flops": {dtype: flops},
        "bytes_read": read,
        "bytes_written": written,
    }
    none = module.count_cost({**module.SMALL_AXES, "num_tokens": 0, "m": 0}, {})
    assert none["flops"] == {dtype: 0} and none["bytes_written"] == 0
