"""triton_compact's routing, combining and finding of tiles, each alone in the interpreter."""

import math

import pytest
import torch
import triton
import triton.language as tl
from moe_cases import definition, solution
from on_host import interpreter, recalled_for

MODULE = solution("triton_compact")


def route(logits, bias, offset, num_local):
    """moe_route alone: weights [tokens, 8], counts [local], buckets [local, tokens], as it leaves them."""
    tokens, num_experts = logits.shape
    weights = torch.full((tokens, 8), math.nan)
    counts = torch.zeros(num_local, dtype=torch.int32)
    buckets = torch.full((num_local, tokens), -1, dtype=torch.int32)
    MODULE.moe_route[(tokens,)](
        logits,
        bias,
        weights,
        counts,
        buckets,
        tokens,
        offset,
        2.5,
        NUM_EXPERTS=num_experts,
        NUM_LOCAL=num_local,
        NUM_GROUPS=MODULE.NUM_GROUPS,
        TOP_GROUPS=MODULE.TOP_GROUPS,
        TOP_K=MODULE.TOP_K,
        PDL=False,
        LOWEST=MODULE.LOWEST,
    )
    return weights, counts, buckets


def random_logits(kind, num_experts, generator):
    """Logits and bias of 16 tokens. Ties are exact: both sides sum the same numbers."""

    def choice(values, *shape):
        return torch.tensor(values)[torch.randint(len(values), shape, generator=generator)]

    logits, bias = torch.randn(16, num_experts, generator=generator), torch.zeros(num_experts)
    if kind == "no ties":
        bias = 0.3 * torch.randn(num_experts, generator=generator)
    elif kind == "tied logits":
        logits = choice([0.0, 1.0, 3.0], 16, num_experts)
    elif kind == "tied bias":
        logits, bias = torch.zeros(16, num_experts), choice([0.0, 0.0625, -0.125, 0.5], num_experts)
    elif kind == "one value":
        logits = torch.zeros(16, num_experts)
    elif kind == "few finite":  # a bias may shut experts out; those left do not fill the eight places
        bias[torch.randperm(num_experts, generator=generator)[4:]] = -math.inf
    elif kind == "extreme":
        logits = choice([-60.0, -20.0, 40.0], 16, num_experts)
    return logits, bias.to(torch.bfloat16)


@pytest.mark.interpreted
@pytest.mark.parametrize("kind", ["no ties", "tied logits", "tied bias", "one value", "few finite", "extreme"])
@pytest.mark.parametrize("num_experts", [64, 256])
@recalled_for("triton_compact", compiler=interpreter())
def test_routing(kind, num_experts):
    logits, bias = random_logits(kind, num_experts, torch.Generator().manual_seed(num_experts))
    experts, expected = definition.route(logits, bias, 2.5)
    num_local = num_experts // 8
    for offset in (0, num_experts // 8 + 3, num_experts - num_local):
        weights, counts, buckets = route(logits, bias, offset, num_local)
        local = experts - offset
        is_local = (local >= 0) & (local < num_local)
        torch.testing.assert_close(weights, expected.where(is_local, torch.zeros(())))
        for expert in range(num_local):
            pairs = (local.flatten() == expert).nonzero().flatten().tolist()
            assert sorted(buckets[expert, : len(pairs)].tolist()) == pairs and int(counts[expert]) == len(pairs)
            assert (buckets[expert, len(pairs) :] == -1).all()


@pytest.mark.interpreted
@pytest.mark.parametrize("hidden", [256, 768])
@recalled_for("triton_compact", compiler=interpreter())
def test_combine(hidden):
    """Sums the pairs with a weight in order, reads no other row, and clears the counters."""
    generator = torch.Generator().manual_seed(hidden)
    pair_out = torch.full((3 * 8, hidden), math.nan, dtype=torch.bfloat16)
    weights, counts = torch.zeros(3, 8), torch.arange(8, dtype=torch.int32)
    owned = [2, 7, 16]
    pair_out[owned] = torch.randn(3, hidden, generator=generator).to(torch.bfloat16)
    weights.view(-1)[owned] = 0.5  # already in pair_out: only whether it is zero counts
    output = torch.full((3, hidden), math.nan, dtype=torch.bfloat16)
    MODULE.moe_combine[(3, 2)](
        pair_out, weights, counts, output, HIDDEN=hidden, NUM_LOCAL=6, EXPERTS_P2=8, TOP_K=8, BLOCK_H=512, PDL=False
    )
    assert torch.equal(output[0], (pair_out[2].float() + pair_out[7].float()).to(torch.bfloat16))
    assert (output[1] == 0).all() and torch.equal(output[2], pair_out[16])
    assert counts.tolist() == [0] * 6 + [6, 7], "and no more counters than there are"


@triton.jit
def _locate_every_tile(
    where_ptr,
    count_ptr,
    locate: tl.constexpr,
    load_counts: tl.constexpr,
    NUM_LOCAL: tl.constexpr,
    EXPERTS_P2: tl.constexpr,
    TILES_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    counts = load_counts(count_ptr, NUM_LOCAL, EXPERTS_P2)
    tile = tl.program_id(0)
    expert, block_m, block_n, count, before = locate(tile, counts, TILES_N, BLOCK_M, EXPERTS_P2)
    tl.store(where_ptr + 5 * tile, expert)
    tl.store(where_ptr + 5 * tile + 1, block_m)
    tl.store(where_ptr + 5 * tile + 2, block_n)
    tl.store(where_ptr + 5 * tile + 3, count)
    tl.store(where_ptr + 5 * tile + 4, before)


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "counts",
    [
        [0, 0, 0, 0, 0, 0, 0, 1],
        [1, 0, 0, 0, 0, 0, 0, 0],
        [16, 17, 15, 0, 0, 33, 1, 0],
        [0, 40, 0, 0, 16],
        [3] * 6,
    ],
    ids=str,
)
@recalled_for("triton_compact", compiler=interpreter())
def test_tiles_are_located(counts):
    """Each tile once, expert by expert, the blocks of pairs fastest; also with a number of experts that is no power
    of two and other data behind the counts."""
    tiles_n, block_m = 3, 16
    expected, before = [], 0
    for expert, count in enumerate(counts):
        blocks = -(-count // block_m)
        expected += [(expert, m, n, count, before) for n in range(tiles_n) for m in range(blocks)]
        before += count
    where = torch.full((len(expected), 5), -1, dtype=torch.int32)
    behind = torch.tensor([*counts, 99, 99, 99], dtype=torch.int32)
    _locate_every_tile[(len(expected),)](
        where,
        behind,
        MODULE._locate_tile,
        MODULE._load_counts,
        NUM_LOCAL=len(counts),
        EXPERTS_P2=triton.next_power_of_2(len(counts)),
        TILES_N=tiles_n,
        BLOCK_M=block_m,
    )
    assert [tuple(row) for row in where.tolist()] == expected
