"""block_scaled_mm, fused_moe and fp8_blockscale_fused_moe: their generated inputs and their costs."""

import pytest
import torch
from operators import CATALOG, inputs_at, load
from test_gemm_moe import LARGER, MOES, REPEATS
from test_published_costs import PUBLISHED

# Generated inputs -----------------------------------------------------------------------------------------------------


def sizes_of(workload):
    return CATALOG.definition(workload.definition).sizes(workload.axes)


def generated(workload):
    values = {**sizes_of(workload), **workload.generator, "seed": workload.seed}
    return load(workload.definition).generate_inputs(values, "cpu")


def survey(name):
    return [workload for workload in CATALOG.workloads(name) if workload.origin == "survey"]


def different(topk_ids):
    """How many pairs of a token and an expert there are, each once."""
    return sum(len(set(row)) for row in topk_ids.tolist())


def different_expected(experts, top_k):
    """The expected share of slots with an expert that no earlier slot names, if each slot is uniform over all
    experts."""
    return experts * (1 - (1 - 1 / experts) ** top_k) / top_k


@pytest.mark.parametrize("name", MOES)
def test_routings_of_all_workloads_are_valid_and_uniform(name):
    """One token reaches top_k experts, 32 tokens of 256 experts 163 on average, others all."""
    for workload in survey(name):
        made, tokens, experts = generated(workload), workload.axes["num_tokens"], workload.axes["num_experts"]
        ids, weights, top_k = made["topk_ids"], made["topk_weights"], workload.axes["top_k"]
        assert ids.dtype == torch.int32 and (ids >= 0).all() and (ids < experts).all()
        assert weights.dtype == torch.float32 and (weights > 0).all() and (weights[:, 1:] <= weights[:, :-1]).all()
        torch.testing.assert_close(weights.sum(1), torch.ones(tokens))
        if tokens == 1 or name == "fp8_blockscale_fused_moe":
            assert different(ids) == ids.numel()
        else:
            assert different(ids) / ids.numel() == pytest.approx(different_expected(experts, top_k), abs=tokens**-0.5)
        if tokens == 1:
            assert ids.unique().numel() == 8
        elif tokens == 32:
            assert 155 < ids.unique().numel() < 171
        else:
            counts, mean = ids.flatten().bincount(minlength=experts), ids.numel() / experts
            assert ((counts - mean).abs() < 5 * mean**0.5).all()


@pytest.mark.parametrize("name", MOES)
def test_skewed_routings_of_workloads_are_valid_and_as_skewed_as_they_say(name):
    """zipf: the first of n experts has 1 / (1 + 1/2 + ... + 1/n) of the tokens' first choices, and much more than its
    even share of all. few: all on 16 experts, or top_k of 8. idle: half of the experts, evenly."""
    skewed = [workload for workload in CATALOG.workloads(name) if workload.origin == "serving"]
    assert {workload.generator["routing"] for workload in skewed} == {"zipf", "few", "idle"}
    for workload in skewed:
        ids, experts, top_k = generated(workload)["topk_ids"], workload.axes["num_experts"], workload.axes["top_k"]
        assert ids.dtype == torch.int32 and (ids >= 0).all() and (ids < experts).all()
        assert different(ids) == ids.numel()
        counts, even = ids.flatten().bincount(minlength=experts), ids.numel() / experts
        routing = workload.generator["routing"]
        if routing == "zipf":
            first = ids[:, 0].bincount(minlength=experts).max() / ids.shape[0]
            assert first == pytest.approx(1 / sum(1 / r for r in range(1, experts + 1)), abs=2 * ids.shape[0] ** -0.5)
            assert counts.max() > 1.5 * even
        else:
            reached = experts // 2 if routing == "idle" else 16 if experts > 16 else top_k
            assert int((counts > 0).sum()) == reached
            expected = ids.numel() / reached
            assert ((counts[counts > 0] - expected).abs() < 5 * expected**0.5).all()


@pytest.mark.parametrize("name", ["block_scaled_mm", "fp8_blockscale_fused_moe"])
def test_scales_are_positive_and_the_output_is_of_the_size_that_the_tolerances_are_made_for(name):
    for changes in ({}, LARGER[name]):
        inputs = inputs_at(name, seed=2, **changes)
        scales = [value for key, value in inputs.items() if key.endswith("_scale")]
        assert all((scale > 0).all() and scale.isfinite().all() for scale in scales)
        assert all(1.5 < scale.quantile(0.95) / scale.quantile(0.05) < 4 for scale in scales if scale.numel() > 60)
        assert 0.5 < load(name).run(**inputs).float().std() < 2


@pytest.mark.parametrize("name", ["block_scaled_mm", *MOES])
def test_the_seed_fixes_every_value(name):
    module = load(name)
    first = module.generate_inputs({**module.SMALL_AXES, "seed": 5}, "cpu")
    torch.manual_seed(7)  # torch's own generator does not take part
    again = module.generate_inputs({**module.SMALL_AXES, "seed": 5}, "cpu")
    other = module.generate_inputs({**module.SMALL_AXES, "seed": 6}, "cpu")
    for key, value in first.items():
        assert torch.equal(again[key], value) and not torch.equal(other[key], value)


# Costs ----------------------------------------------------------------------------------------------------------------


def test_cost_of_a_product_by_hand():
    """5 rows, 256 outputs, 384 columns in 3 blocks."""
    module = load("block_scaled_mm")
    assert module.count_cost(module.SMALL_AXES, {}) == {
        "flops": {"float8_e4m3fn": 5 * 256 * (2 * 384 + 8)},
        "bytes_read": 5 * 384 + 5 * 3 * 4 + 256 * 384 + 2 * 3 * 4,
        "bytes_written": 5 * 256 * 4,
    }


IDS = torch.tensor([[0, 3], [3, 1], [0, 3]] * 3, dtype=torch.int32)  # 9 tokens, 3 experts, 18 pairs


@pytest.mark.parametrize(
    ("name", "flops", "read", "written", "weight_bytes"),
    [
        (
            "fused_moe",
            {"bfloat16": 18 * (6 * 264 * 80 + 5 * 80 + 264) + 9 * 3 * 3},
            9 * 264 * 2 + 18 * 8 + 3 * 3 * 264 * 80 * 2,
            9 * 264 * 4,
            3 * 3 * 264 * 80 * 2,
        ),
        (
            "fp8_blockscale_fused_moe",
            {"float8_e4m3fn": 18 * (6 * 512 * 256 + 5 * 256 + 2 * 512) + 3 * 3 * 512 * 256},
            9 * (512 + 4 * 4) + 18 * 8 + 3 * (3 * 512 * 256 + 4 * (4 * 4 + 4 * 2)),
            9 * 512 * 2,
            3 * 3 * 512 * 256,
        ),
    ],
)
def test_cost_of_a_moe_by_hand(name, flops, read, written, weight_bytes):
    module = load(name)
    assert module.count_cost(module.SMALL_AXES, {"topk_ids": IDS}) == {
        "flops": flops,
        "bytes_read": read,
        "bytes_written": written,
        "facts": {"pairs": 18, "active_experts": 3, "weight_bytes": weight_bytes},
    }
    none = module.count_cost({**module.SMALL_AXES, "num_tokens": 0}, {"topk_ids": IDS[:0]})
    assert sum(none["flops"].values()) == none["bytes_read"] == none["bytes_written"] == 0


def test_an_expert_that_a_token_names_twice_is_one_pair():
    """3 tokens of REPEATS have 1, 2 and 2 different experts; 5 experts in all, each looked up in 3 slots."""
    module = load("fused_moe")
    cost = module.count_cost({**module.SMALL_AXES, "top_k": 3}, {"topk_ids": REPEATS})
    assert cost["facts"]["pairs"] == 15 and cost["facts"]["active_experts"] == 5
    assert cost["flops"] == {"bfloat16": 15 * (6 * 264 * 80 + 5 * 80 + 264) + 9 * 5 * 5}


def published(workload):
    row = PUBLISHED[workload.definition, workload.raw["shape_id"]]
    return int(row["flops"]), int(row["bytes_read"]), int(row["bytes_written"])


def cost_with(workload, active):
    """The cost if all pairs are different and reach that many experts."""
    tokens, top_k = workload.axes["num_tokens"], workload.axes["top_k"]
    ids = (torch.arange(tokens * top_k) % active).view(tokens, top_k)
    cost = load(workload.definition).count_cost(sizes_of(workload), {"topk_ids": ids})
    return sum(cost["flops"].values()), cost["bytes_read"], cost["bytes_written"]


@pytest.mark.parametrize("workload", survey("fp8_blockscale_fused_moe"), ids=lambda one: one.uuid[:8])
def test_published_costs_but_for_the_type_of_the_output(workload):
    """Exactly, with as many active experts as the survey's routing had."""
    active = {1: 8, 32: 164}.get(workload.axes["num_tokens"], workload.axes["num_experts"])
    flops, read, written = published(workload)
    assert cost_with(workload, active) == (flops, read, 2 * written)


@pytest.mark.parametrize("workload", survey("fused_moe"), ids=lambda one: one.uuid[:8])
def test_published_costs_but_for_the_draw_of_the_experts(workload):
    """Bytes exactly. Flops are those of a whole number of pairs: as many as are different among uniform draws."""
    size = workload.axes
    tokens, experts, top_k = size["num_tokens"], size["num_experts"], size["top_k"]
    flops, read, written = published(workload)
    ours = cost_with(workload, 8 if tokens == 1 else experts)
    assert ours[1:] == (read, written)
    of_a_pair = (6 * size["hidden_size"] + 5) * size["intermediate_size"] + size["hidden_size"]
    missing, rest = divmod(ours[0] - flops, of_a_pair)
    assert rest == 0 and missing >= 0
    if tokens > 1:
        assert 1 - missing / (tokens * top_k) == pytest.approx(different_expected(experts, top_k), abs=tokens**-0.5)
