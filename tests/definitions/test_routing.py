"""Routing against plain Python: lists sorted by key, softmax in Python floats. Order within an expert is free."""

import functools
import math
import operator

import pytest
import torch
from operators import CATALOG, inputs_at, load, outputs_of, small_variants

from kernelderby.catalog.selection import of_origin
from kernelderby.errors import DerbyError
from kernelderby.measure.judge.correctness import judge
from kernelderby.rows.measurement import Status

GATING, ALIGN, COUNT = "moe_topk_gating_softmax", "moe_align_block_size", "moe_count_and_sort"
LOW, HIGH = -(2**31), 2**31 - 1


def judged(name, inputs, *outputs):
    """Status of these outputs, as `derby check` finds it."""
    named = dict(zip(CATALOG.definition(name).outputs, outputs, strict=True))
    return judge(CATALOG.definition(name), load(name), inputs, named).status


def pairs_of_experts(topk_ids):
    """Numbers of the pairs of each of 128 experts, rising."""
    pairs = [[] for _ in range(128)]
    for number, expert in enumerate(topk_ids.flatten().tolist()):
        pairs[expert].append(number)
    return pairs


# Against plain Python -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "changes"), small_variants(GATING))
def test_gating_as_naive(name, changes):
    inputs = inputs_at(name, **changes)
    weights, ids = outputs_of(name, inputs)
    for row, found_weights, found_ids in zip(
        inputs["gating_logits"].tolist(), weights.tolist(), ids.tolist(), strict=True
    ):
        total = math.fsum(math.exp(logit - max(row)) for logit in row)
        expected = sorted(range(len(row)), key=lambda expert: (-row[expert], expert))[:8]
        assert found_ids == expected
        assert found_weights == pytest.approx(
            [math.exp(row[expert] - max(row)) / total for expert in expected], rel=1e-6
        )


def test_gating_of_equal_logits_takes_the_lower_index():
    logits = torch.zeros(2, 20)
    logits[1, [3, 17]] = 1.0
    weights, ids = outputs_of(GATING, {"gating_logits": logits})
    assert ids.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7], [3, 17, 0, 1, 2, 4, 5, 6]]
    assert weights[0].tolist() == pytest.approx([1 / 20] * 8)


def test_gating_of_large_logits_is_finite():
    weights, _ = outputs_of(GATING, {"gating_logits": torch.arange(16.0).view(1, 16) * 1000})
    assert weights.tolist() == [[1.0] + [0.0] * 7]


@pytest.mark.parametrize(("name", "changes"), small_variants(ALIGN))
def test_align_as_naive(name, changes):
    inputs = inputs_at(name, **changes)
    found = outputs_of(name, inputs)
    num_blocks, pairs = len(inputs["block_slots"]), inputs["topk_ids"].numel()
    rows, experts = [], []
    for expert, numbers in enumerate(pairs_of_experts(inputs["topk_ids"])):
        for start in range(0, len(numbers), 128):
            rows.append((numbers[start : start + 128] + [pairs] * 128)[:128])
            experts.append(expert)
    used, unused = len(rows), num_blocks - len(rows)
    assert found[0].tolist() == rows + [[pairs] * 128] * unused
    assert found[1].tolist() == experts + [-1] * unused
    assert found[2].tolist() == [128 * used]


def test_small_variants_of_align_cover_spare_and_several_blocks():
    used = {}
    for name, changes in small_variants(ALIGN):
        inputs = inputs_at(name, **changes)
        used[inputs["topk_ids"].shape[0], len(inputs["block_slots"])] = load(name).blocks_per_expert(inputs["topk_ids"])
    assert used[0, 40].sum() == 0
    assert used[1, 8].sum() == 8
    assert used[70, 150].sum() < 150
    assert used[2100, 200].max() > 1


@pytest.mark.parametrize(("name", "changes"), small_variants(COUNT))
def test_count_as_naive(name, changes):
    inputs = inputs_at(name, **changes)
    order, counts, offsets = outputs_of(name, inputs)
    pairs = pairs_of_experts(inputs["topk_ids"])
    assert order.flatten().tolist() == functools.reduce(operator.iadd, pairs, [])
    assert counts.tolist() == [len(numbers) for numbers in pairs]
    assert offsets.tolist() == [sum(map(len, pairs[:expert])) for expert in range(129)]


def test_count_of_an_expert_that_has_everything():
    topk_ids = torch.full((3, 8), 127, dtype=torch.int32)
    order, counts, offsets = outputs_of(COUNT, {"topk_ids": topk_ids})
    assert order.flatten().tolist() == list(range(24))
    assert counts[-1] == 24 and counts.sum() == 24 and offsets.tolist() == [0] * 128 + [24]


# Generated inputs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [ALIGN, COUNT])
def test_generated_experts_at_full_sizes(name):
    """Distinct experts of each token, within range, the same at each call, other ones by another seed."""
    definition, generate = CATALOG.definition(name), load(name).generate_inputs
    for workload in CATALOG.workloads(name):
        values = {**definition.sizes(workload.axes), "seed": workload.seed}
        ids = generate(values, torch.device("cpu"))["topk_ids"]
        assert ids.shape == (workload.axes["num_tokens"], 8) and ids.dtype is torch.int32
        assert ids.min() >= 0 and ids.max() < 128
        assert (ids.sort(-1).values.diff(dim=-1) > 0).all()
        assert torch.equal(ids, generate(values, torch.device("cpu"))["topk_ids"])
        assert not torch.equal(ids, generate({**values, "seed": values["seed"] + 1}, torch.device("cpu"))["topk_ids"])


def test_routing_fits_into_the_published_blocks():
    for workload in of_origin(CATALOG.workloads(ALIGN), ["survey"]):
        room, used = workload.axes["num_blocks"], workload.cost.facts["used_blocks"]
        assert 0.98 * room <= used <= room


def test_too_few_blocks_are_an_error():
    with pytest.raises(DerbyError, match="generate_inputs raises ValueError: num_blocks: 7 are too few"):
        inputs_at(ALIGN, num_tokens=1, num_blocks=7)


def test_counted_routing_is_uneven():
    ids = inputs_at(COUNT, num_tokens=2044)["topk_ids"]
    counts = torch.bincount(ids.flatten(), minlength=128)
    assert counts.max() > 3 * counts.float().mean()


# What passes, and what not --------------------------------------------------------------------------------------------


def reordered(topk_ids, found, generator):
    """Every expert's stretch of `found` in random order; found: flat, sorted by expert."""
    counts = torch.bincount(topk_ids.flatten(), minlength=128).tolist()
    return torch.cat([part[torch.randperm(len(part), generator=generator)] for part in found.split(counts)])


def test_gating_by_a_float32_softmax_with_exp2_passes():
    """As kernels do it: exp2 of scaled logits, sum and reciprocal in float32, then the largest weights."""
    inputs = inputs_at(GATING, num_tokens=4000, num_experts=256)
    scaled = inputs["gating_logits"] * 1.4426950408889634
    weights = torch.exp2(scaled - scaled.amax(-1, keepdim=True))
    found, ids = (weights * (1 / weights.sum(-1, keepdim=True))).topk(8, dim=-1)
    assert judged(GATING, inputs, found, ids.to(torch.int32)) is Status.PASSED


def test_gating_may_exchange_logits_as_near_as_rounding():
    logits = torch.randn(1, 16, generator=torch.Generator().manual_seed(0)).sort(descending=True).values
    logits[0, 3] = logits[0, 2] - 2e-6
    weights, ids = outputs_of(GATING, {"gating_logits": logits})
    exchanged = ids[:, [0, 1, 3, 2, 4, 5, 6, 7]]
    assert judged(GATING, {"gating_logits": logits}, weights, exchanged) is Status.PASSED
    assert judged(GATING, {"gating_logits": logits}, weights, ids[:, [0, 2, 1, 3, 4, 5, 6, 7]]) is Status.WRONG_VALUES


def put(tensor, place, value):
    tensor = tensor.clone()
    tensor.view(-1)[place] = value
    return tensor


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, weights, ids: (weights / weights.sum(-1, keepdim=True), ids),
        lambda x, weights, ids: (weights.to(torch.bfloat16).float(), ids),
        lambda x, weights, ids: (torch.softmax(x.half(), -1).float().gather(1, ids.long()), ids),
        lambda x, weights, ids: (weights, ids.flip(-1)),
        lambda x, weights, ids: (weights.flip(-1), ids.flip(-1)),
        lambda x, weights, ids: (weights, ids + 1),
        lambda x, weights, ids: (weights, put(ids, 0, ids[0, 1])),
        lambda x, weights, ids: (weights, put(ids, 3, LOW)),
        lambda x, weights, ids: (weights, put(ids, 3, HIGH)),
        lambda x, weights, ids: (weights, put(ids, 3, 128)),
        lambda x, weights, ids: (weights, torch.zeros_like(ids)),
        lambda x, weights, ids: (torch.zeros_like(weights), ids),
    ],
    ids=[
        "renormalized",
        "bfloat16",
        "float16 softmax",
        "reversed ids",
        "worst first",
        "next expert",
        "repeated",
        "smallest int",
        "largest int",
        "one too large",
        "no ids",
        "no weights",
    ],
)
def test_gating_mistakes_fail(wrong):
    inputs = inputs_at(GATING, num_tokens=40)
    outputs = outputs_of(GATING, inputs)
    assert judged(GATING, inputs, *outputs) is Status.PASSED
    assert judged(GATING, inputs, *wrong(inputs["gating_logits"], *outputs)) is Status.WRONG_VALUES


def test_gating_the_same_expert_eight_times_fails_even_where_all_logits_are_equal():
    inputs = {"gating_logits": torch.zeros(3, 16)}
    weights, ids = outputs_of(GATING, inputs)
    assert judged(GATING, inputs, weights, ids + 8) is Status.PASSED
    assert judged(GATING, inputs, weights, torch.zeros_like(ids)) is Status.WRONG_VALUES


@pytest.mark.parametrize(("name", "changes"), small_variants(ALIGN))
def test_align_in_another_order_within_experts_passes(name, changes):
    """Padding among the pairs too."""
    inputs = inputs_at(name, **changes)
    ids, experts, count = outputs_of(name, inputs)
    generator = torch.Generator().manual_seed(1)
    shuffled = ids.clone()
    for expert in experts.unique():
        part = ids[experts == expert].flatten()
        shuffled[experts == expert] = part[torch.randperm(len(part), generator=generator)].view(-1, 128)
    assert inputs["topk_ids"].numel() == 0 or not torch.equal(shuffled, ids)
    assert judged(name, inputs, shuffled, experts, count) is Status.PASSED


# At 70 tokens and 150 blocks: rows 0 and 1 are the blocks of experts 0 and 1, the last ones are unused.
@pytest.mark.parametrize(
    "wrong",
    [
        lambda ids, experts, count: (put(ids, 0, ids[0, 1]), experts, count),
        lambda ids, experts, count: (put(ids, 0, 560), experts, count),
        lambda ids, experts, count: (put(put(ids, 0, ids[1, 0]), 128, ids[0, 0]), experts, count),
        lambda ids, experts, count: (put(ids, 127, 561), experts, count),
        lambda ids, experts, count: (put(ids, -1, 0), experts, count),
        lambda ids, experts, count: (ids // 8, experts, count),
        lambda ids, experts, count: (ids, experts.roll(1), count),
        lambda ids, experts, count: (ids, put(experts, -1, 0), count),
        lambda ids, experts, count: (ids, experts, count + 128),
        lambda ids, experts, count: (ids, experts, torch.full_like(count, 560)),
        lambda ids, experts, count: (torch.full_like(ids, LOW), torch.full_like(experts, HIGH), count),
        lambda ids, experts, count: (torch.full_like(ids, HIGH), torch.full_like(experts, LOW), count),
        lambda ids, experts, count: (torch.full_like(ids, 560), experts, count),
    ],
    ids=[
        "pair twice",
        "pair missing",
        "pairs of two experts exchanged",
        "padding is another number",
        "pair in an unused block",
        "tokens instead of pairs",
        "experts moved",
        "unused block has an expert",
        "one block too many",
        "not padded",
        "smallest ints",
        "largest ints",
        "padding only",
    ],
)
def test_align_mistakes_fail(wrong):
    inputs = inputs_at(ALIGN, num_tokens=70, num_blocks=150)
    outputs = outputs_of(ALIGN, inputs)
    assert outputs[1][:2].tolist() == [0, 1] and outputs[1][-1] == -1
    assert judged(ALIGN, inputs, *outputs) is Status.PASSED
    assert judged(ALIGN, inputs, *wrong(*outputs)) is Status.WRONG_VALUES


@pytest.mark.parametrize(("name", "changes"), small_variants(COUNT))
def test_count_in_another_order_within_experts_passes(name, changes):
    inputs = inputs_at(name, **changes)
    order, counts, offsets = outputs_of(name, inputs)
    other = reordered(inputs["topk_ids"], order.flatten(), torch.Generator().manual_seed(1)).view(order.shape)
    assert changes.get("num_tokens", 5) < 70 or not torch.equal(other, order)
    assert judged(name, inputs, other, counts, offsets) is Status.PASSED


@pytest.mark.parametrize(
    "wrong",
    [
        lambda order, counts, offsets: (put(order, 0, order[0, 1]), counts, offsets),
        lambda order, counts, offsets: (order.flatten().roll(1).view_as(order), counts, offsets),
        lambda order, counts, offsets: (order // 8, counts, offsets),
        lambda order, counts, offsets: (torch.full_like(order, LOW), counts, offsets),
        lambda order, counts, offsets: (torch.full_like(order, HIGH), counts, offsets),
        lambda order, counts, offsets: (order, put(counts, 5, counts[5] + 1), offsets),
        lambda order, counts, offsets: (order, counts.roll(1), offsets),
        lambda order, counts, offsets: (order, counts, offsets + 1),
        lambda order, counts, offsets: (order, counts, put(offsets, -1, 0)),
    ],
    ids=[
        "pair twice",
        "experts moved by a pair",
        "tokens instead of pairs",
        "smallest ints",
        "largest ints",
        "one count",
        "counts moved",
        "offsets from one",
        "no total",
    ],
)
def test_count_mistakes_fail(wrong):
    inputs = inputs_at(COUNT, num_tokens=70)
    outputs = outputs_of(COUNT, inputs)
    assert judged(COUNT, inputs, *outputs) is Status.PASSED
    assert judged(COUNT, inputs, *wrong(*outputs)) is Status.WRONG_VALUES


@pytest.mark.parametrize("name", [GATING, ALIGN, COUNT])
def test_any_numbers_at_all_are_judged_without_raising(name):
    generator = torch.Generator().manual_seed(3)
    inputs = inputs_at(name)
    right = outputs_of(name, inputs)
    garbage = [
        torch.randint(LOW, HIGH, tensor.shape, generator=generator, dtype=torch.int32).view(tensor.dtype)
        for tensor in right
    ]
    before = [tensor.clone() for tensor in garbage]
    assert judged(name, inputs, *garbage) in (Status.WRONG_VALUES, Status.NOT_A_NUMBER)
    for tensor, copy in zip(garbage, before, strict=True):
        assert torch.equal(tensor.view(torch.int32), copy.view(torch.int32))


# Costs, counted by hand -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "flops", "read", "written"),
    [
        (GATING, {}, {"float32": 5 * (128 + 128 + 127 + 128)}, 5 * 128 * 4, 5 * 8 * 8),
        (GATING, {"num_tokens": 0}, {"float32": 0}, 0, 0),
        (ALIGN, {}, {}, 5 * 8 * 4, 40 * 128 * 4 + 40 * 4 + 4),
        (ALIGN, {"num_tokens": 0}, {}, 0, 40 * 128 * 4 + 40 * 4 + 4),
        (COUNT, {}, {}, 5 * 8 * 4, 5 * 8 * 4 + 128 * 4 + 129 * 4),
        (COUNT, {"num_tokens": 0}, {}, 0, 257 * 4),
    ],
)
def test_cost_at_small_axes(name, changes, flops, read, written):
    module, inputs = load(name), inputs_at(name, **changes)
    cost = module.count_cost({**module.SMALL_AXES, **changes}, inputs)
    assert (cost["flops"], cost["bytes_read"], cost["bytes_written"]) == (flops, read, written)


def test_used_blocks_are_a_fact():
    inputs = inputs_at(ALIGN, num_tokens=1, num_blocks=9)
    assert load(ALIGN).count_cost({**load(ALIGN).SMALL_AXES, "num_tokens": 1, "num_blocks": 9}, inputs)["facts"] == {
        "used_blocks": 8
    }
