"""The norms against naive loops in float64 and against torch.nn.functional, at small sizes and at none."""

import math

import pytest
import torch
from operators import close, inputs_at, load, outputs_of, small_variants

NAMES = ["rms_norm", "fused_add_rms_norm", "layer_norm", "l2_norm", "gated_rms_norm"]


def naive_rms(row, eps):
    """A row (list of floats) over the root of its mean square."""
    root = math.sqrt(sum(value * value for value in row) / len(row) + eps)
    return [value / root for value in row]


def naive_layer(row, eps):
    mean = sum(row) / len(row)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in row) / len(row) + eps)
    return [(value - mean) / deviation for value in row]


def by_row(function, tensor, eps):
    rows = [function(row, eps) for row in tensor.double().tolist()]
    return torch.tensor(rows, dtype=torch.float64).view(tensor.shape)


def naive(name, x):
    """The operator in float64, row by row; a tuple of outputs."""
    eps, weight = x["eps"], x["weight"].double() if "weight" in x else None
    if name == "fused_add_rms_norm":
        total = x["hidden_states"].double() + x["residual"].double()
        return by_row(naive_rms, total, eps) * weight, total
    rows = x["hidden_states"]
    if name == "layer_norm":
        return (by_row(naive_layer, rows, eps) * weight + x["bias"].double(),)
    if name == "l2_norm":
        return (
            torch.stack([row / math.sqrt(float(row @ row) + eps) for row in rows.double()])
            if len(rows)
            else rows.double(),
        )
    normalized = by_row(naive_rms, rows, eps) * weight
    if name == "gated_rms_norm":
        gate = x["gate"].double()
        return (normalized * gate / (1 + torch.exp(-gate)),)
    return (normalized,)


@pytest.mark.parametrize(("name", "changes"), small_variants(*NAMES))
@pytest.mark.parametrize("seed", [0, 1])
def test_the_references_agree_with_naive_ones(name, changes, seed):
    inputs = inputs_at(name, seed, **changes)
    for found, expected in zip(outputs_of(name, inputs), naive(name, inputs), strict=True):
        close(found, expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_of_zeros_stays_finite(name):
    inputs = inputs_at(name)
    for key in ("hidden_states", "residual"):
        if key in inputs:
            inputs[key][0] = 0
    first, *_ = outputs_of(name, inputs)
    assert torch.equal(first[0], inputs.get("bias", torch.zeros_like(first[0])))


@pytest.mark.parametrize("name", NAMES)
def test_eps_counts_in_its_place(name):
    """A large eps, of the size of the squares."""
    inputs = inputs_at(name, eps=0.5)
    for found, expected in zip(outputs_of(name, inputs), naive(name, inputs), strict=True):
        close(found, expected)


def test_the_norms_agree_with_torch():
    x = inputs_at("rms_norm", num_tokens=7, hidden_size=64)
    rms = torch.nn.functional.rms_norm(x["hidden_states"].double(), (64,), x["weight"].double(), x["eps"])
    close(load("rms_norm").run(**x), rms)
    x = inputs_at("layer_norm", num_tokens=7, hidden_size=64)
    layer = torch.nn.functional.layer_norm(
        x["hidden_states"].double(), (64,), x["weight"].double(), x["bias"].double(), x["eps"]
    )
    close(load("layer_norm").run(**x), layer)
    x = inputs_at("l2_norm", num_tokens=7, hidden_size=64)
    close(load("l2_norm").run(**x), torch.nn.functional.normalize(x["hidden_states"].double(), dim=-1))


def test_large_means_cancel_in_two_passes():
    """A variance as the mean of the squares less the square of the mean would lose 0.25 of 1000^2 in float32."""
    inputs = inputs_at("layer_norm", num_tokens=3, hidden_size=64)
    inputs["hidden_states"] = (1000 + 4 * inputs["hidden_states"].float()).to(torch.bfloat16)
    close(load("layer_norm").run(**inputs), *naive("layer_norm", inputs))


def test_the_norm_is_of_the_sum_before_its_rounding():
    """256 + 1 is 256 in bfloat16: a norm of the rounded sums would give equal values."""
    inputs = inputs_at("fused_add_rms_norm", num_tokens=1, hidden_size=2)
    inputs["hidden_states"][:], inputs["weight"][:] = 256.0, 1.0
    inputs["residual"][0] = torch.tensor([1.0, -128.0])
    output, residual_out = load("fused_add_rms_norm").run(**inputs)
    assert residual_out.tolist() == [[256.0, 128.0]]
    close(output, naive("fused_add_rms_norm", inputs)[0])


# fused_qk_rmsnorm -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "changes"), small_variants("fused_qk_rmsnorm"))
def test_query_and_key_heads_as_naive_and_values_unchanged(name, changes):
    inputs = inputs_at(name, **changes)
    (output,) = outputs_of(name, inputs)
    queries, keys = inputs["num_q_heads"], inputs["num_kv_heads"]
    assert output.shape[1] == queries + 2 * keys
    assert torch.equal(output[:, queries + keys :], inputs["qkv"][:, queries + keys :])
    for token in range(output.shape[0]):
        for head in range(queries + keys):
            weight = inputs["q_weight" if head < queries else "k_weight"].double()
            row = inputs["qkv"][token, head][None]
            close(output[token, head], by_row(naive_rms, row, inputs["eps"])[0] * weight, torch.float16)


# Costs, counted by hand -----------------------------------------------------------------------------------------------


def cost(flops, read, written, dtype="bfloat16"):
    return {"flops": {dtype: flops}, "bytes_read": read, "bytes_written": written}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rms_norm", cost(5 * (3 * 99 + 1), 5 * 198 + 198, 5 * 198)),
        ("fused_add_rms_norm", cost(5 * (4 * 99 + 1), 2 * 5 * 198 + 198, 2 * 5 * 198)),
        ("layer_norm", cost(5 * 7 * 99, 5 * 198 + 2 * 198, 5 * 198)),
        ("l2_norm", cost(5 * 3 * 99, 5 * 198, 5 * 198)),
        ("gated_rms_norm", cost(5 * (8 * 99 + 1), 2 * 5 * 198 + 198, 5 * 198)),
        # 3 tokens; 4 query, 1 key and 1 value head of 128
        (
            "fused_qk_rmsnorm",
            cost(15 * (3 * 128 + 1), 3 * 6 * 256 + 2 * 256, 3 * 6 * 256, "float16")
            | {"bytes_in_place": 2 * 3 * 5 * 256 + 2 * 256},
        ),
    ],
)
def test_cost_at_small_axes(name, expected):
    module = load(name)
    assert module.count_cost(module.SMALL_AXES, module.SMALL_AXES) == expected
    rows = "num_rows" if name == "gated_rms_norm" else "num_tokens"
    none = module.count_cost({**module.SMALL_AXES, rows: 0}, module.SMALL_AXES)
    assert set(none["flops"].values()) == {0} and none["bytes_written"] == 0
    assert none["bytes_read"] in (0, 198, 2 * 198, 2 * 256)  # the weights alone
