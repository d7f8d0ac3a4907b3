"""The inputs that the FP8 MoE definition generates, and its counts."""

import functools
import hashlib
import operator

import pytest
import torch
from moe_definition import CONTRACT, WORKLOADS, definition, full_axes, inputs_at
from naive_moe import naive_route

SMALL = definition.SMALL_AXES
GENERATED = ["routing_logits", "routing_bias", "hidden_states_scale", "gemm1_weights_scale", "gemm2_weights_scale"]


def seed_of(uuid):
    return int.from_bytes(hashlib.sha256(uuid.encode()).digest()[:6], "big")


def generated(workload):
    """Axes and generated inputs of a workload at full size."""
    workload = workload["workload"]
    scalars = {name: value["value"] for name, value in workload["inputs"].items() if value["type"] == "scalar"}
    axes = full_axes(**workload["axes"], **scalars)
    return axes, {**definition.generate_inputs({**axes, "seed": seed_of(workload["uuid"])}, "cpu"), **scalars}


# generate_inputs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [SMALL, {**SMALL, "seq_len": 0}, full_axes(seq_len=3)], ids=["small", "none", "full"])
def test_shapes_and_types_are_those_of_the_contract(axes):
    made = definition.generate_inputs({**axes, "seed": 1}, "cpu")
    assert sorted(made) == sorted(GENERATED)
    for name, tensor in made.items():
        spec = CONTRACT["inputs"][name]
        assert tensor.shape == tuple(axes[axis] for axis in spec["shape"]), name
        assert tensor.dtype == getattr(torch, spec["dtype"]) and tensor.is_contiguous(), name


def test_the_seed_fixes_every_value():
    first, again = (definition.generate_inputs({**SMALL, "seed": 5}, "cpu") for _ in range(2))
    torch.manual_seed(7)  # torch's own generator does not take part
    third = definition.generate_inputs({**SMALL, "seed": 5}, "cpu")
    for name in GENERATED:
        assert torch.equal(first[name], again[name]) and torch.equal(first[name], third[name])


def test_other_seeds_give_other_values():
    made = [definition.generate_inputs({**SMALL, "seed": seed}, "cpu") for seed in (0, 1, 2**47 + 1)]
    for name in GENERATED:
        assert not torch.equal(made[0][name], made[1][name]) and not torch.equal(made[0][name], made[2][name])


def test_no_seed_is_seed_0():
    for name, tensor in definition.generate_inputs(SMALL, "cpu").items():
        assert torch.equal(tensor, definition.generate_inputs({**SMALL, "seed": 0}, "cpu")[name])


def test_scales_are_positive_and_vary():
    made = definition.generate_inputs({**full_axes(seq_len=100), "seed": 3}, "cpu")
    for name, around in (("hidden_states_scale", 1.0), ("gemm1_weights_scale", 0.05), ("gemm2_weights_scale", 0.05)):
        scale = made[name]
        assert (scale > 0).all() and scale.isfinite().all()
        assert scale.median().item() == pytest.approx(around, rel=0.05), name
        assert 1.5 < scale.quantile(0.9) / scale.quantile(0.1) < 2.5, name


@pytest.mark.parametrize(
    "changes",
    [
        {"seq_len": 64},
        {
            "seq_len": 64,
            "hidden_size": 512,
            "num_hidden_blocks": 4,
            "intermediate_size": 384,
            "gemm1_out_size": 768,
            "num_intermediate_blocks": 3,
            "num_gemm1_out_blocks": 6,
        },
    ],
    ids=["small", "larger"],
)
def test_output_is_of_the_size_that_the_tolerances_are_made_for(changes):
    """Standard deviation some 10; and no tolerance accepts an output of zeros, or one of half the size."""
    output = definition.run(**inputs_at(seed=4, **changes)).float()
    local = output[(output != 0).any(1)]
    assert 4 < local.std() < 25
    for wrong in (torch.zeros_like(local), 0.5 * local):
        error = (wrong - local).abs()
        for tolerance in CONTRACT["tolerances"]:
            failed = (error > tolerance["atol"]) & (error > tolerance["rtol"] * local.abs())
            assert 1 - failed.float().mean() < tolerance["required_matched_ratio"], tolerance["name"]


@pytest.mark.parametrize("seq_len", [11948, 14107])
def test_expert_popularity_is_as_the_docstring_says(seq_len):
    """The busiest expert 4 to 7 times as busy as the mean, the quietest tenth about a third as busy or less."""
    (workload,) = [line for line in WORKLOADS if line["workload"]["axes"] == {"seq_len": seq_len}]
    _, inputs = generated(workload)
    experts, _ = definition.route(inputs["routing_logits"], inputs["routing_bias"], 2.5)
    load = experts.flatten().bincount(minlength=256).float() / (seq_len * 8 / 256)
    assert 4 < load.max() < 7
    assert 0.2 < load.sort().values[:26].mean() < 0.4


# count_cost -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_cost_as_counted_by_hand(seed):
    """SMALL_AXES: 9 tokens, hidden 256 (2 blocks), intermediate 256 (2 blocks), experts 12 to 19 of 64."""
    inputs = inputs_at(seed)
    chosen = [
        naive_route(inputs["routing_logits"][token].tolist(), inputs["routing_bias"].tolist())[0] for token in range(9)
    ]
    local = [[expert for expert in experts if 12 <= expert < 20] for experts in chosen]
    pairs, tokens, active = (
        sum(map(len, local)),
        sum(map(bool, local)),
        len(set(functools.reduce(operator.iadd, local, []))),
    )
    assert 0 < active <= pairs and tokens <= 9
    weights = 512 * 256 + 256 * 256  # bytes of one expert, and multiply-adds of one pair
    scales = 4 * 2 + 2 * 2  # blocks of one expert
    logits_and_bias = 9 * 64 * 4 + 64 * 2
    assert definition.count_cost(SMALL, inputs) == {
        "flops": {"float8_e4m3fn": 2 * pairs * weights},
        "bytes_read": active * (weights + 4 * scales) + logits_and_bias + tokens * (256 + 4 * 2),
        "bytes_written": 9 * 256 * 2,
        "facts": {
            "local_pairs": pairs,
            "active_local_experts": active,
            "local_tokens": tokens,
            "weight_bytes": active * weights,
        },
    }


def test_cost_without_a_local_pair_or_a_token():
    inputs = inputs_at(0)
    inputs["routing_logits"] = torch.full_like(inputs["routing_logits"], -9.0)
    inputs["routing_logits"][:, [0, 1, 24, 25, 40, 41, 56, 57]] = 1.0
    cost = definition.count_cost(SMALL, inputs)
    assert set(cost["facts"].values()) == {0} and cost["flops"] == {"float8_e4m3fn": 0}
    assert cost["bytes_read"] == 9 * 64 * 4 + 64 * 2 and cost["bytes_written"] == 9 * 256 * 2
    empty = definition.count_cost({**SMALL, "seq_len": 0}, inputs_at(0, seq_len=0))
    assert empty["bytes_read"] == 64 * 2 and empty["bytes_written"] == 0


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda line: str(line["workload"]["axes"]["seq_len"]))
def test_recorded_costs_are_those_of_the_generated_inputs(workload):
    axes, inputs = generated(workload)
    assert definition.count_cost(axes, inputs) == workload["cost"]
