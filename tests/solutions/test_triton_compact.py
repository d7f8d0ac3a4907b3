"""triton_compact in the interpreter against the definition: cases, every tile configuration, a workspace used again."""

import math

import pytest
import torch
from moe_cases import (
    CASES,
    FP8,
    NO_LOCAL,
    ONE_LOCAL,
    check,
    definition,
    favour,
    fp8_reference,
    make_inputs,
    sizes,
    solution,
)
from on_host import diagonal, interpreter, recalled_for, share_of

NAME = "triton_compact"
PROGRAMS = [1, 7, 64]
UNEVEN = sizes(hidden=768, intermediate=384)  # 6 and 3 k blocks, 3 tiles of weight rows in either GEMM
WIDE = sizes(hidden=256, intermediate=1024)  # 8 tiles with 2 k blocks in the first GEMM, 1 with 8 in the second


def configurations():
    """Every tile that choose_config chooses, by a name: its options."""
    tiles = {}
    for seq_len in (1, 4, 5, 128, 129, 2048, 2049, 20000):
        for _, tile in solution(NAME).choose_config(seq_len, 132):
            tiles[f"{tile['BLOCK_M']}{'-split' * tile['SPLIT']}{'-swap' * tile['SWAP']}"] = tile
    return tiles


TILES = configurations()


def test_choose_config_has_the_four_tiles():
    assert sorted(TILES) == ["128", "16-split-swap", "16-swap", "32-swap"]


LAUNCH, BUFFERS = solution(NAME)._launch, solution(NAME).space_for


def routed_by_torch(module, seed):
    """Stands for _launch: the definition's routing in place of moe_route, which takes most of the interpreter's time.

    Pairs take their slots in random order, as they do on a GPU; the interpreter would take them in token order."""
    generator = torch.Generator().manual_seed(seed)

    def launch_behind_torch(calls, aligned, stream):
        kernel, _, (logits, bias, weight, count, bucket, seq_len, first_local, factor), _ = calls[0]
        assert kernel is module.moe_route and not count.any(), "a call has left a counter behind"
        experts, weights = definition.route(logits, bias, factor)
        local = experts - first_local
        weight[: weights.numel()] = weights.where((local >= 0) & (local < len(count)), torch.zeros(())).flatten()
        for expert in range(len(count)):
            pairs = (local.flatten() == expert).nonzero().flatten()
            count[expert] = len(pairs)
            shuffled = pairs[torch.randperm(len(pairs), generator=generator)]
            bucket.view(-1)[expert * seq_len : expert * seq_len + len(pairs)] = shuffled.int()
        LAUNCH(calls[1:], aligned, stream)

    return launch_behind_torch


@pytest.fixture
def configured(poisoned, monkeypatch):
    """configured(programs, first tile[, second tile]) -> the module, with that configuration at any seq_len."""

    def configure(programs, first, second=None, seed=0):
        module = poisoned(NAME)
        monkeypatch.setattr(module, "choose_config", lambda *_: ((programs, first), (programs, second or first)))

        def for_programs(seq_len, hidden, intermediate, num_local, sm_count, device):
            return BUFFERS(seq_len, hidden, intermediate, num_local, programs, device)

        monkeypatch.setattr(module, "space_for", for_programs)
        monkeypatch.setattr(module, "_launch", routed_by_torch(module, seed))
        return module

    return configure


def pairs_of(inputs):
    """How many pairs each local expert gets."""
    experts, _ = definition.route(inputs["routing_logits"], inputs["routing_bias"], 1.0)
    return experts.flatten().bincount(minlength=64)[inputs["local_expert_offset"] :][: len(inputs["gemm1_weights"])]


def assert_ready_for_the_next_call(module):
    (space,) = module.workspace.kept.values()
    assert not space.tensors[0].any()


@pytest.mark.interpreted
@pytest.mark.parametrize("case", CASES)
@recalled_for("triton_compact", compiler=interpreter())
def test_cases(case, poisoned):
    module = poisoned(NAME)
    check(NAME, CASES[case](), **FP8)
    assert_ready_for_the_next_call(module)


@pytest.mark.interpreted
@pytest.mark.parametrize("seed", range(20, 22))
@recalled_for("triton_compact", compiler=interpreter())
def test_close_to_the_definition(seed, poisoned):
    """Without a model of its roundings: fp8 takes 1/16 of an activation at most."""
    poisoned(NAME)
    check(NAME, make_inputs(seed, seq_len=5), rtol=0.1, atol=0.3, times=1)


@pytest.mark.interpreted
@pytest.mark.parametrize("tile, programs", diagonal([*TILES], PROGRAMS))
@recalled_for("triton_compact", compiler=interpreter())
def test_every_tile(tile, programs, configured):
    """One expert with 35 pairs (3 tiles of 16, 2 of 32), others with few or none."""
    inputs = make_inputs(30 + programs, seq_len=35, **UNEVEN)
    inputs["routing_bias"][14] = 4.0
    inputs["routing_bias"][17] = -4.0
    assert pairs_of(inputs)[[2, 5]].tolist() == [35, 0]
    module = configured(programs, TILES[tile])
    check(NAME, inputs, **FP8, times=1)
    assert_ready_for_the_next_call(module)


@pytest.mark.interpreted
@pytest.mark.parametrize("programs", share_of([7, 1, 64]))
@recalled_for("triton_compact", compiler=interpreter())
def test_more_rows_than_the_largest_tile(programs, configured):
    """Every token on expert 13, its tile 128 wide: 130 pairs, the last two in a tile of their own."""
    configured(programs, TILES["128"])
    inputs = favour(make_inputs(40, seq_len=130), ONE_LOCAL)
    assert pairs_of(inputs).tolist() == [0, 130, 0, 0, 0, 0, 0, 0]
    check(NAME, inputs, **FP8, times=1)


@pytest.mark.interpreted
@pytest.mark.parametrize("tile", TILES)
@recalled_for("triton_compact", compiler=interpreter())
def test_no_local_pair(tile, configured):
    module, inputs = configured(3, TILES[tile]), favour(make_inputs(41), NO_LOCAL)
    assert not pairs_of(inputs).any()
    check(NAME, inputs, **FP8, times=1)
    assert_ready_for_the_next_call(module)


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "axes, programs",
    share_of([*((UNEVEN, number) for number in (2, 5, 16, 64)), *((WIDE, number) for number in (5, 11, 23, 64))]),
    ids=lambda value: value if isinstance(value, int) else {768: "uneven", 256: "wide"}[value["hidden_size"]],
)
@recalled_for("triton_compact", compiler=interpreter())
def test_split_into_many_shapes(axes, programs, configured):
    """Pieces in both GEMMs: tiles cut in up to 8, programs with two pieces and with a whole tile between them."""
    module = configured(programs, TILES["16-split-swap"], seed=programs)
    inputs = make_inputs(50 + programs, seq_len=18, **axes)
    inputs["routing_bias"][13] = 4.0
    assert pairs_of(inputs)[1] == 18
    check(NAME, inputs, **FP8, times=1)
    assert_ready_for_the_next_call(module)


@pytest.mark.interpreted
@recalled_for("triton_compact", compiler=interpreter())
def test_one_pair_over_more_programs_than_k_blocks(configured):
    """The most pieces a tile can have, and programs without work."""
    inputs = favour(make_inputs(60, seq_len=1, **UNEVEN), ONE_LOCAL)
    assert pairs_of(inputs).sum() == 1
    configured(200, TILES["16-split-swap"])
    check(NAME, inputs, **FP8)


@pytest.mark.interpreted
@recalled_for("triton_compact", compiler=interpreter())
def test_any_routing_in_one_workspace(configured):
    """Calls one after another, of other sizes and other inputs, on buffers that are as the call before left them."""
    module = configured(7, TILES["16-split-swap"], TILES["16-swap"])
    kept = None
    for step, seq_len in enumerate([5, 9, 3, 0, 20, 5, 1, 20]):
        inputs = make_inputs(70 + step, seq_len=seq_len, local_expert_offset=[12, 0, 56, 31][step % 4])
        check(NAME, inputs, **FP8, times=1)
        assert_ready_for_the_next_call(module)
        (space,) = module.workspace.kept.values()
        assert space.tensors[1].numel() == 8 * max([5, 9, 3, 0, 20][: step + 1])
        assert kept is None or space is kept or space.counts > kept.counts
        kept = space


@pytest.mark.interpreted
@recalled_for("triton_compact", compiler=interpreter())
def test_calls_of_other_sizes_in_turn_share_a_workspace(poisoned):
    module = poisoned(NAME)
    for inputs in (make_inputs(80, seq_len=3), make_inputs(81, seq_len=2, **UNEVEN), make_inputs(82, seq_len=3)):
        check(NAME, inputs, **FP8, times=1)
    assert len(module.workspace.kept) == 1


@pytest.mark.interpreted
@recalled_for("triton_compact", compiler=interpreter())
def test_result_depends_on_no_slot_where_tiles_are_not_split(configured):
    """The docstring's claim: bit for bit the same, whatever slots the pairs took."""
    inputs = make_inputs(83, seq_len=35)
    inputs["routing_bias"][14] = 4.0
    outputs = []
    for seed in range(2):
        outputs.append(torch.full((35, 256), math.nan, dtype=torch.bfloat16))
        configured(3, TILES["16-swap"], seed=seed).run(**inputs, output=outputs[-1])
    assert torch.equal(*outputs)


def test_the_model_of_roundings_is_close_to_the_definition():
    """The model is fp8_reference, with which the results above are compared."""
    inputs = make_inputs(90, seq_len=40)
    expected = definition.run(**inputs).float()
    assert (fp8_reference(**inputs).float() - expected).std() < 0.04 * expected.std()
