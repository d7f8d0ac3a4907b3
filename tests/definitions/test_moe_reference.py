"""The FP8 MoE definition: its reference against hand-made cases and a naive implementation."""

import numpy as np
import pytest
import torch
from moe_definition import definition, inputs_at
from naive_moe import FP8, naive_moe, naive_route

SMALL = definition.SMALL_AXES
FIRST, LOCAL = SMALL["local_expert_offset"], SMALL["num_local_experts"]
# 8 experts in four groups of 8; of those on the rank (12 to 19): none, one, all.
NONE_LOCAL = [0, 1, 24, 25, 40, 41, 56, 57]
ONE_LOCAL = [13, 8, 24, 25, 40, 41, 56, 57]
ALL_LOCAL = list(range(12, 20))


def naive(inputs):
    def array(value):
        if not isinstance(value, torch.Tensor):
            return value
        return value.view(torch.uint8).numpy() if value.dtype == torch.float8_e4m3fn else value.float().numpy()

    return naive_moe(**{name: array(value) for name, value in inputs.items()})


def assert_as_naive(inputs):
    """Within the rounding of the output to bfloat16, and float32 sums."""
    output, expected = definition.run(**inputs), naive(inputs)
    assert output.dtype == torch.bfloat16 and output.shape == inputs["hidden_states"].shape
    np.testing.assert_allclose(output.double().numpy(), expected, rtol=2**-8, atol=1e-4 * max(1.0, expected.std()))
    return output


def choosing(inputs, *experts_of_tokens):
    """Token i chooses experts_of_tokens[i], 8 of them, the first most strongly."""
    inputs["routing_logits"] = torch.full_like(inputs["routing_logits"], -9.0)
    inputs["routing_bias"] = torch.zeros_like(inputs["routing_bias"])
    for token, experts in enumerate(experts_of_tokens):
        inputs["routing_logits"][token, experts] = torch.linspace(2.0, 1.0, 8)
    return inputs


# Routing --------------------------------------------------------------------------------------------------------------


def route(logits, bias=None, factor=1.0):
    """One token, logits as a list of 64."""
    bias = torch.zeros(len(logits)) if bias is None else bias
    experts, weights = definition.route(torch.tensor([logits]), bias.to(torch.bfloat16), factor)
    return experts[0].tolist(), weights[0]


def test_equal_scores_go_to_the_lower_group_and_expert():
    experts, weights = route([0.0] * 64)
    assert experts == list(range(8))
    assert weights.tolist() == [0.125] * 8


def test_the_lower_group_wins_a_tie_for_the_fourth_place():
    logits = [0.0] * 64
    for group in (7, 5, 2):  # three clear winners, by two good experts each
        logits[8 * group + 3] = logits[8 * group + 6] = 1.0
    experts, _ = route(logits)
    # Six good experts, then the first two of the equal rest, in the lowest of the groups that tie.
    assert experts == [19, 22, 43, 46, 59, 62, 0, 1]


def test_the_lower_expert_wins_a_tie_for_the_eighth_place():
    logits = [-1.0] * 64
    for group in (1, 3, 4, 6):
        logits[8 * group : 8 * group + 8] = [1.0] + [0.0] * 7
    experts, _ = route(logits)
    assert experts == [8, 24, 32, 48, 9, 10, 11, 12]


def test_a_group_counts_by_its_two_best_alone():
    logits = [-4.0] * 64
    for group in (1, 2, 3, 4):
        logits[8 * group] = logits[8 * group + 1] = 1.0
    logits[0] = 9.0  # the best expert of all, in a group whose second is poor: 1.0 + 0.02 < 0.73 + 0.73
    logits[40:48] = [0.5] * 8  # the best sum of eight: 0.62 each
    experts, _ = route(logits)
    assert experts == [8, 9, 16, 17, 24, 25, 32, 33]


def test_bias_takes_part_in_the_selection_only():
    logits, bias = [0.0] * 64, torch.zeros(64)
    bias[[8, 9, 10, 11, 32, 33, 34, 35]] = 0.5
    logits[8] = -1.0
    experts, weights = route(logits, bias, factor=2.5)
    assert sorted(experts) == [8, 9, 10, 11, 32, 33, 34, 35] and experts[-1] == 8
    affinity = torch.sigmoid(torch.tensor([0.0] * 7 + [-1.0]))
    torch.testing.assert_close(weights, 2.5 * affinity / affinity.sum())


@pytest.mark.parametrize("num_experts", [64, 256])
@pytest.mark.parametrize("values", [None, [0.0, 1.0, 3.0]], ids=["no ties", "many ties"])
def test_routing_as_naive(values, num_experts):
    generator = torch.Generator().manual_seed(num_experts)
    logits = torch.randn(50, num_experts, generator=generator)
    bias = 0.3 * torch.randn(num_experts, generator=generator).to(torch.bfloat16)
    if values:
        logits = torch.tensor(values)[torch.randint(len(values), logits.shape, generator=generator)]
        bias = torch.zeros_like(bias)
    experts, weights = definition.route(logits, bias, 2.5)
    for token in range(50):
        expected, expected_weights = naive_route(logits[token].tolist(), bias.tolist())
        assert experts[token].tolist() == expected
        np.testing.assert_allclose(weights[token].numpy(), 2.5 * np.array(expected_weights), rtol=1e-5)


# The whole operator ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"seq_len": 4},
        {"seq_len": 1, "seed": 1},
        {"seq_len": 3, "local_expert_offset": 0, "seed": 2},
        {"seq_len": 3, "local_expert_offset": 56, "seed": 3},
        {"seq_len": 3, "local_expert_offset": 29, "seed": 4},
    ],
    ids=lambda changes: " ".join(f"{name} {value}" for name, value in changes.items()),
)
def test_the_reference_agrees_with_a_naive_one(changes):
    """Also with an offset that is no multiple of the group size: 12 and 29, groups of 8."""
    assert_as_naive(inputs_at(**changes))


def test_no_token_gives_an_empty_output():
    output = definition.run(**inputs_at(seq_len=0))
    assert output.shape == (0, SMALL["hidden_size"]) and output.dtype == torch.bfloat16


def test_tokens_without_a_local_expert_are_zero():
    inputs = choosing(inputs_at(seq_len=3), NONE_LOCAL, ONE_LOCAL, NONE_LOCAL)
    output = assert_as_naive(inputs)
    assert (output[[0, 2]] == 0).all() and (output[1] != 0).any()


def test_no_local_pair_at_all():
    inputs = choosing(inputs_at(seq_len=2), NONE_LOCAL, NONE_LOCAL)
    assert (definition.run(**inputs) == 0).all()


def test_all_tokens_to_one_expert_leaves_the_others_unread():
    inputs = choosing(inputs_at(seq_len=4), *[ONE_LOCAL] * 4)
    expected = assert_as_naive(inputs)
    others = [local for local in range(LOCAL) if local != 13 - FIRST]
    inputs["gemm1_weights_scale"][others] = float("nan")
    inputs["gemm2_weights_scale"][others] = float("nan")
    assert torch.equal(definition.run(**inputs), expected)


def test_all_experts_of_a_token_are_local():
    """12 to 19: half of one group and half of the next."""
    assert_as_naive(choosing(inputs_at(seq_len=2), ALL_LOCAL, ALL_LOCAL))


def test_weights_are_normalised_over_all_eight_experts():
    """One local expert of eight equals: an eighth of the factor, not the factor."""
    inputs = choosing(inputs_at(seq_len=1), ONE_LOCAL)
    inputs["routing_logits"][0, ONE_LOCAL] = 1.0
    alone = single_expert(inputs, 13 - FIRST)
    expected = 2.5 / 8 * alone
    np.testing.assert_allclose(definition.run(**inputs).double().numpy()[0], expected, rtol=2**-8)
    inputs["routed_scaling_factor"] = 1.0
    np.testing.assert_allclose(definition.run(**inputs).double().numpy()[0], expected / 2.5, rtol=2**-8)


def single_expert(inputs, local):
    """The first token through one local expert, weight 1, with matrices dequantized whole, in float64."""

    def dequantize(name):
        codes = inputs[name][local].view(torch.uint8).numpy()
        scale = inputs[f"{name}_scale"][local].double().numpy()
        return FP8[codes] * np.kron(scale, np.ones((128, 128)))

    x = FP8[inputs["hidden_states"][0].view(torch.uint8).numpy()]
    x = x * np.repeat(inputs["hidden_states_scale"][:, 0].double().numpy(), 128)
    up, gate = np.split(dequantize("gemm1_weights") @ x, 2)
    return dequantize("gemm2_weights") @ (up * gate / (1 + np.exp(-gate)))


def test_the_first_half_of_gemm1_is_up_and_the_second_gate():
    """silu(gate) * up is not symmetric: with a gate of -100 nothing is left, with an up of -100 much is."""
    inputs = choosing(inputs_at(seq_len=1), ONE_LOCAL)
    inputs["hidden_states"] = torch.ones_like(inputs["hidden_states"].float()).to(torch.float8_e4m3fn)
    inputs["hidden_states_scale"].fill_(1.0)
    half = SMALL["intermediate_size"]
    weights = torch.full(inputs["gemm1_weights"].shape, 1.0)
    weights[:, half:] = -1.0
    inputs["gemm1_weights"] = weights.to(torch.float8_e4m3fn)
    inputs["gemm1_weights_scale"].fill_(100 / SMALL["hidden_size"])
    assert definition.run(**inputs).float().abs().max() < 1e-30
    inputs["gemm1_weights"] = (-weights).to(torch.float8_e4m3fn)
    assert definition.run(**inputs).float().abs().max() > 1.0


def test_each_scale_belongs_to_its_block():
    """With ones as values and a power of two as each block's scale, the sums show every block."""
    scale = 2.0 ** torch.arange(6).view(2, 3)
    weight = torch.ones(256, 384).to(torch.float8_e4m3fn)
    dequantized = definition.dequantize_weight(weight, scale)
    assert dequantized.shape == (256, 384)
    for row in range(2):
        for column in range(3):
            block = dequantized[128 * row : 128 * (row + 1), 128 * column : 128 * (column + 1)]
            assert (block == scale[row, column]).all()


def test_run_leaves_its_inputs_alone():
    inputs = inputs_at(seq_len=3)
    before = {name: value.clone() for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    definition.run(**inputs)
    assert all(torch.equal(inputs[name].view(torch.uint8), value.view(torch.uint8)) for name, value in before.items())
