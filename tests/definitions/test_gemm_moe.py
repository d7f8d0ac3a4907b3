"""FP8 matrix product and expert networks with routed tokens, against naive ones in numpy's float64."""

import numpy as np
import pytest
import torch
from naive_moe import FP8
from operators import CATALOG, inputs_at, load, outputs_of, small_variants

from kernelderby.measure.judge.correctness import compare
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

MOES = ["fused_moe", "fp8_blockscale_fused_moe"]
# Sizes at which errors are as at full size, still quick on a CPU.
LARGER = {
    "block_scaled_mm": {"m": 40, "n": 256, "num_n_blocks": 2, "k": 2048, "num_k_blocks": 16},
    "fused_moe": {"num_tokens": 40, "hidden_size": 1024, "intermediate_size": 384, "gate_up_size": 768, "top_k": 4},
    "fp8_blockscale_fused_moe": {
        "num_tokens": 40,
        "hidden_size": 1024,
        "num_hidden_blocks": 8,
        "intermediate_size": 384,
        "gate_up_size": 768,
        "num_intermediate_blocks": 3,
        "num_gate_up_blocks": 6,
        "top_k": 4,
    },
}


def wide(tensor, scale=None, block=(1, 128)):
    """A tensor as float64; an fp8 one by a table of all codes, times the scale of each block."""
    if scale is None:
        return tensor.double().numpy()
    return FP8[tensor.view(torch.uint8).numpy()] * np.kron(scale.double().numpy(), np.ones(block))


def naive_product(inputs):
    return wide(inputs["x"], inputs["x_scale"]) @ wide(inputs["weight"], inputs["weight_scale"], (128, 128)).T


def naive_moe(inputs):
    """One token and one of its experts at a time."""
    fp8 = "hidden_states_scale" in inputs
    x = wide(inputs["hidden_states"], inputs.get("hidden_states_scale"))
    output = np.zeros(x.shape)

    def weight(name, expert):
        scale = inputs[f"{name}_scale"][expert] if fp8 else None
        return wide(inputs[name][expert], scale, (128, 128))

    experts = {
        expert: (weight("gate_up_weight", expert), weight("down_weight", expert))
        for expert in set(inputs["topk_ids"].flatten().tolist())
    }
    for token, (ids, factors) in enumerate(
        zip(inputs["topk_ids"].tolist(), inputs["topk_weights"].tolist(), strict=True)
    ):
        for expert, factor in zip(ids, factors, strict=True):
            gate_up, down = experts[expert]
            gate, up = np.split(gate_up @ x[token], 2)
            output[token] += factor * (down @ (gate / (1 + np.exp(-gate)) * up))
    return output


def assert_near(found, expected):
    """float32 sums, and one rounding to bfloat16 where the output is of that type."""
    unit = torch.finfo(found.dtype).eps / 2
    size = expected.std() if expected.size else 1.0
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=1.01 * unit, atol=1e-5 * size)


@pytest.mark.parametrize(("name", "changes"), small_variants("block_scaled_mm"))
def test_product_as_naive(name, changes):
    inputs = inputs_at(name, **changes)
    assert_near(outputs_of(name, inputs)[0], naive_product(inputs))


@pytest.mark.parametrize(("name", "changes"), small_variants(*MOES))
def test_moe_as_naive(name, changes):
    inputs = inputs_at(name, **changes)
    assert_near(outputs_of(name, inputs)[0], naive_moe(inputs))


REPEATS = torch.tensor([[3, 3, 3], [5, 2, 5], [1, 1, 0]] * 3, dtype=torch.int32)  # experts of 9 tokens


def test_both_weights_of_an_expert_that_a_token_names_twice_count():
    """In the reference and in the baseline."""
    definition = CATALOG.definition("fused_moe")
    inputs = {**inputs_at("fused_moe", top_k=3), "topk_ids": REPEATS}
    expected = naive_moe(inputs)
    assert_near(load("fused_moe").run(**inputs), expected)
    output = torch.empty(expected.shape, dtype=torch.float32)
    load_solution(definition, CATALOG.solution("fused_moe_baseline"))(**inputs, output=output)
    verdict = compare(definition, {"output": output}, {"output": torch.from_numpy(expected).float()})
    assert verdict.status is Status.PASSED, verdict.message


def test_rows_are_multiplied_alike_in_chunks(monkeypatch):
    """2 rows at a time, of 5."""
    module, inputs = load("block_scaled_mm"), inputs_at("block_scaled_mm")
    whole = module.run(**inputs)
    monkeypatch.setattr(module, "CHUNK", 2 * 384 + 100)
    torch.testing.assert_close(module.run(**inputs), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "spoiled"),
    [
        ("fused_moe", ["gate_up_weight", "down_weight"]),
        ("fp8_blockscale_fused_moe", ["gate_up_weight_scale", "down_weight_scale"]),
    ],
)
def test_experts_that_no_token_chose_are_not_read(name, spoiled):
    inputs = inputs_at(name, num_tokens=1)
    expected = load(name).run(**inputs)
    others = [expert for expert in range(8) if expert not in inputs["topk_ids"].flatten().tolist()]
    for key in spoiled:
        inputs[key][others] = float("nan")
    assert torch.equal(load(name).run(**inputs), expected)


# The tolerances accept roundings, refuse errors -----------------------------------------------------------------------


def verdict_on(name, found, inputs):
    return compare(CATALOG.definition(name), {"output": found}, {"output": load(name).run(**inputs)})


def changed(key, change):
    """The output of inputs of which one is other than it should be."""
    return lambda run, inputs: run(**{**inputs, key: change(inputs[key])})


def swapped(gate_up):
    return torch.cat(gate_up.chunk(2, dim=1)[::-1], dim=1)


def without_the_least(weights):
    return torch.cat([weights[:, :-1], torch.zeros_like(weights[:, -1:])], dim=1)


def without_a_token(run, inputs):
    output = run(**inputs)
    output[7] = 0
    return output


WRONG_MOE = {
    "zeros": lambda run, inputs: torch.zeros_like(run(**inputs)),
    "by a fifth": lambda run, inputs: (run(**inputs) * 1.2).to(run(**inputs).dtype),
    "one token of 40 is zero": without_a_token,
    "gate for up": changed("gate_up_weight", lambda weight: swapped(weight.float()).to(weight.dtype)),
    "without the least expert": changed("topk_weights", without_the_least),
    "equal weights": changed("topk_weights", lambda weights: torch.full_like(weights, 1 / weights.shape[1])),
    "weights in another order": changed("topk_weights", lambda weights: weights.flip(1)),
    "the next expert": changed("topk_ids", lambda ids: (ids + 1) % 8),
}
WRONG = [
    ("block_scaled_mm", wrong)
    for wrong in (
        lambda run, inputs: torch.zeros_like(run(**inputs)),
        lambda run, inputs: 1.02 * run(**inputs),
        without_a_token,
        changed("x_scale", torch.ones_like),
        changed("x_scale", lambda scale: scale.roll(1, 1)),
        changed("x_scale", lambda scale: scale.roll(1, 0)),
        changed("weight_scale", lambda scale: scale.roll(1, 1)),
        changed("weight_scale", lambda scale: scale.flip(0)),
        changed("x_scale", lambda scale: torch.cat([scale[:, :-1], 0 * scale[:, -1:]], 1)),
    )
]
WRONG += [(name, wrong) for name in MOES for wrong in WRONG_MOE.values()]
WRONG += [
    ("fp8_blockscale_fused_moe", changed(key, lambda scale: scale.roll(1, -1)))
    for key in ("hidden_states_scale", "gate_up_weight_scale", "down_weight_scale")
]
WRONG_IDS = [
    "zeros",
    "by 2 %",
    "one row of 40 is zero",
    "no scales of x",
    "scale of the block before",
    "scale of the row before",
    "weight scale of the block before",
    "weight scale of other rows",
    "without the last block",
]
WRONG_IDS += [f"{name} {wrong}" for name in ("bf16", "fp8") for wrong in WRONG_MOE]
WRONG_IDS += ["scale of the block before", "gate_up scale of the block before", "down scale of the block before"]


@pytest.mark.parametrize("larger", [False, True], ids=["small", "larger"])
@pytest.mark.parametrize(("name", "wrong"), WRONG, ids=WRONG_IDS)
def test_a_wrong_answer_fails(name, wrong, larger):
    tokens = "m" if name == "block_scaled_mm" else "num_tokens"
    inputs = inputs_at(name, **(LARGER[name] if larger else {tokens: 40}))
    verdict = verdict_on(name, wrong(load(name).run, inputs), inputs)
    assert verdict.status is Status.WRONG_VALUES, verdict.correctness


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "changes", [{}, load("fused_moe").SMALL_VARIANTS[-1]], ids=["2 of 8 experts", "8 of 128 experts"]
)
def test_only_the_first_weight_of_an_expert_that_a_token_names_twice_fails(changes, seed):
    """With as many tokens as most workloads have: of few, none or half may have such an expert."""
    inputs = inputs_at("fused_moe", seed=seed, **{**changes, "num_tokens": 2000})
    ids = inputs["topk_ids"]
    again = (ids.unsqueeze(2) == ids.unsqueeze(1)).tril(-1).any(2)
    found = load("fused_moe").run(**{**inputs, "topk_weights": inputs["topk_weights"].masked_fill(again, 0)})
    verdict = verdict_on("fused_moe", found, inputs)
    assert verdict.status is Status.WRONG_VALUES, verdict.correctness


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fused_moe", {"num_tokens": 150, "hidden_size": 16, "top_k": 4}),
        ("fp8_blockscale_fused_moe", {"num_tokens": 40}),
        ("fp8_blockscale_fused_moe", LARGER["fp8_blockscale_fused_moe"]),
    ],
)
def test_relu_for_silu_fails(name, changes, monkeypatch):
    inputs = inputs_at(name, **changes)
    expected = load(name).run(**inputs)
    monkeypatch.setattr(torch.nn.functional, "silu", torch.relu)
    found = load(name).run(**inputs)
    verdict = compare(CATALOG.definition(name), {"output": found}, {"output": expected})
    assert verdict.status is Status.WRONG_VALUES


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "changes",
    [{"m": 40}, {"m": 100, "k": 128, "num_k_blocks": 1}, LARGER["block_scaled_mm"]],
    ids=["small", "one block", "larger"],
)
def test_bfloat16_operands_and_output_pass(changes, seed):
    inputs = inputs_at("block_scaled_mm", seed=seed, **changes)
    x, weight = (
        torch.from_numpy(wide(inputs[key], inputs[f"{key}_scale"], block)).to(torch.bfloat16)
        for key, block in (("x", (1, 128)), ("weight", (128, 128)))
    )
    verdict = verdict_on("block_scaled_mm", (x @ weight.t()).float(), inputs)
    assert verdict.status is Status.PASSED, verdict.message


def rounded_moe(inputs, between):
    """As kernels do it: gate and up, their product and each result in bfloat16; `between` rounds what the second
    projection reads."""
    fp8, output = "hidden_states_scale" in inputs, 0
    x = torch.from_numpy(wide(inputs["hidden_states"], inputs.get("hidden_states_scale")))
    ids, weights = inputs["topk_ids"], inputs["topk_weights"]
    for expert in range(inputs["down_weight"].shape[0]):
        first, second = (
            torch.from_numpy(wide(inputs[key][expert], inputs[f"{key}_scale"][expert] if fp8 else None, (128, 128)))
            for key in ("gate_up_weight", "down_weight")
        )
        gate, up = (x @ first.t()).to(torch.bfloat16).chunk(2, dim=1)
        activated = between(torch.nn.functional.silu(gate) * up)
        result = (activated.double() @ second.t()).to(torch.bfloat16)
        output = output + result.float() * (weights * (ids == expert)).sum(1, keepdim=True)
    return output


def as_fp8(activated):
    """Quantized in groups of 128, and back."""
    groups = activated.float().view(len(activated), -1, 128)
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448
    return ((groups / scale).to(torch.float8_e4m3fn).float() * scale).flatten(1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "between"),
    [
        ("fused_moe", torch.Tensor.bfloat16),
        ("fp8_blockscale_fused_moe", torch.Tensor.bfloat16),
        ("fp8_blockscale_fused_moe", as_fp8),
    ],
    ids=["bf16", "fp8, bf16 between", "fp8 between"],
)
@pytest.mark.parametrize("larger", [False, True], ids=["small", "larger"])
def test_bfloat16_roundings_between_the_products_pass(name, between, larger, seed):
    inputs = inputs_at(name, seed=seed, **(LARGER[name] if larger else {}))
    found = rounded_moe(inputs, between).to(load(name).run(**inputs).dtype)
    verdict = verdict_on(name, found, inputs)
    assert verdict.status is Status.PASSED, verdict.message


FEW = [{"m": 1, "n": 128, "num_n_blocks": 1, "k": 128, "num_k_blocks": 1}, {"m": 1, "n": 256, "num_n_blocks": 2}]


def one_row(changes, seed):
    inputs = inputs_at("block_scaled_mm", seed=seed, **changes)
    return inputs, load("block_scaled_mm").run(**inputs)


@pytest.mark.parametrize("changes", FEW, ids=["one block", "two by three"])
def test_every_draw_of_an_honest_solution_passes_on_one_row(changes):
    """All outputs of a row share a few scales: where these are large, more elements are off than of many rows. Seen on
    21,500 draws: none fails; 4 % of those of one block did, when the elements alone were judged, and 0.7 % of two by
    three."""
    definition, output = CATALOG.definition("block_scaled_mm"), torch.empty(1, changes["n"])
    honest = load_solution(definition, CATALOG.solution("block_scaled_mm_baseline"))
    least = 1.0
    for seed in range(400):
        inputs, expected = one_row(changes, seed)
        honest(**inputs, output=output)
        verdict = compare(definition, {"output": output}, {"output": expected})
        assert verdict.status is Status.PASSED, (seed, verdict.message)
        least = min(least, verdict.correctness.matched_ratio["bfloat16_operands"])
    assert least < 0.98  # what all of these would have had to reach


@pytest.mark.parametrize("changes", FEW, ids=["one block", "two by three"])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda output: output * 1.02,
        lambda output: output.roll(1, -1),
        lambda output: output.where(torch.arange(output.shape[1]) != 5, output + 0.5),
        lambda output: output + 0.02 * output.square().mean().sqrt() * torch.randn_like(output),
        lambda output: output.where(torch.arange(output.shape[1]) < 120, 0.0),
    ],
    ids=["2 % more", "shifted", "one element", "noise of 2 %", "the end missing"],
)
def test_what_is_wrong_on_one_row_fails_in_every_draw(wrong, changes):
    definition = CATALOG.definition("block_scaled_mm")
    for seed in range(50):
        _, expected = one_row(changes, seed)
        verdict = compare(definition, {"output": wrong(expected)}, {"output": expected})
        assert verdict.status is Status.WRONG_VALUES, seed


@pytest.mark.parametrize("changes", [{}, {"hidden_size": 16, "top_k": 4}], ids=["264 columns", "16 columns"])
def test_every_draw_of_an_honest_solution_passes_on_one_token(changes):
    """Which elements lie outside is chance: of 16 columns 1 in 5 draws failed, when as large a share as of many had to
    lie within."""
    definition = CATALOG.definition("fused_moe")
    honest = load_solution(definition, CATALOG.solution("fused_moe_baseline"))
    for seed in range(300):
        inputs = inputs_at("fused_moe", seed=seed, num_tokens=1, **changes)
        expected = load("fused_moe").run(**inputs)
        output = torch.empty_like(expected)
        honest(**inputs, output=output)
        verdict = compare(definition, {"output": output}, {"output": expected})
        assert verdict.status is Status.PASSED, (seed, verdict.message)
        for wrong in (expected * 1.06, torch.zeros_like(expected), expected.roll(1, -1)):
            assert compare(definition, {"output": wrong}, {"output": expected}).status is Status.WRONG_VALUES, seed
