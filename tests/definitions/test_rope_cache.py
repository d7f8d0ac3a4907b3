"""fused_qkv_rope and mrope against complex numbers in float64, reshape_and_cache against a dict of slots."""

import cmath

import pytest
import torch
from operators import CATALOG, close, inputs_at, load, outputs_of, small_variants

from kernelderby.catalog.selection import of_origin
from kernelderby.measure.judge.correctness import compare
from kernelderby.rows.measurement import Status

MANY = {
    "num_tokens": 200,
    "num_heads": 12,
    "num_q_heads": 8,
    "num_kv_heads": 2,
}  # tokens and heads enough to meet rare errors


def turned(heads, angles):
    """heads [tokens, heads, size], angles float64 [tokens, size / 2] -> float64: pairs (j, j + size / 2) as complex
    numbers, times e^(i angle)."""
    half = heads.shape[-1] // 2
    number = torch.complex(heads[..., :half].double(), heads[..., half:].double())
    number = number * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat([number.real, number.imag], dim=-1)


def status(name, outputs, expected):
    names = list(CATALOG.definition(name).outputs)
    return compare(
        CATALOG.definition(name), dict(zip(names, outputs, strict=True)), dict(zip(names, expected, strict=True))
    ).status


# fused_qkv_rope -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "changes"), small_variants("fused_qkv_rope"))
def test_fused_qkv_rope(name, changes):
    inputs = inputs_at(name, **changes)
    (output,) = outputs_of(name, inputs)
    rotated = inputs["num_q_heads"] + inputs["num_kv_heads"]
    angles = torch.tensor(
        [
            [position / inputs["rope_base"] ** (2 * j / 128) for j in range(64)]
            for position in inputs["positions"].tolist()
        ],
        dtype=torch.float64,
    ).view(-1, 64)
    close(output[:, :rotated], turned(inputs["qkv"][:, :rotated], angles), torch.float16)
    assert torch.equal(output[:, rotated:], inputs["qkv"][:, rotated:])


def test_one_pair_by_hand():
    """At position 3 column 0 turns by 3, column 32 by 3 / 100; at position 0 nothing turns."""
    inputs = inputs_at("fused_qkv_rope", num_tokens=2, num_heads=3, num_q_heads=1)
    inputs["positions"][:] = torch.tensor([3, 0])
    inputs["qkv"].zero_()[:, :, 0] = 1.0
    inputs["qkv"][:, :, 32 + 64] = 2.0
    (output,) = outputs_of("fused_qkv_rope", inputs)
    fast, slow = cmath.exp(3j), 2j * cmath.exp(0.03j)
    for head in output[0, :2].double():
        assert head[[0, 64, 32, 96]].tolist() == pytest.approx([fast.real, fast.imag, slow.real, slow.imag], abs=1e-3)
        assert head.count_nonzero() == 4
    assert torch.equal(output[0, 2], inputs["qkv"][0, 2]) and torch.equal(output[1], inputs["qkv"][1])


def rope(inputs, wide=torch.float32, table=torch.float32, shift=0, base=10000.0, pairs=64, keys=True, sign=1):
    """As kernels do it: float32 angles; cosines and sines as `table`, products in `wide`; and what can be wrong."""
    rotated = inputs["num_q_heads"] + (inputs["num_kv_heads"] if keys else 0)
    angle = (inputs["positions"] + shift).float()[:, None] / base ** (torch.arange(64).float() / 64)
    angle[:, pairs:] = 0
    cos, sin = (value.to(table)[:, None] for value in (angle.cos(), sign * angle.sin()))
    first, second = inputs["qkv"][:, :rotated].to(wide).chunk(2, dim=-1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return torch.cat([turned.half(), inputs["qkv"][:, rotated:]], dim=1)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, Status.PASSED),
        ({"table": torch.float16}, Status.PASSED),
        ({"table": torch.float16, "wide": torch.float16}, Status.PASSED),
        ({"shift": 1}, Status.WRONG_VALUES),
        ({"base": 10100.0}, Status.WRONG_VALUES),
        ({"sign": -1}, Status.WRONG_VALUES),
        ({"pairs": 48}, Status.WRONG_VALUES),
        ({"keys": False}, Status.WRONG_VALUES),
        ({"table": torch.bfloat16}, Status.WRONG_VALUES),
    ],
    ids=str,
)
def test_tolerance_of_fused_qkv_rope(how, expected):
    inputs = inputs_at("fused_qkv_rope", **MANY)
    outputs = outputs_of("fused_qkv_rope", inputs)
    assert status("fused_qkv_rope", [rope(inputs, **how)], outputs) is expected


@pytest.mark.parametrize(
    "workload", of_origin(CATALOG.workloads("fused_qkv_rope"), ["survey"]), ids=lambda one: str(one.raw["shape_id"])
)
def test_a_wrong_rotation_of_one_token_fails(workload):
    """The workloads have one token each: its position must tell."""
    scalars, seed = workload.scalars, workload.seed
    inputs = inputs_at("fused_qkv_rope", seed=seed, **{**workload.axes, **scalars})
    outputs = outputs_of("fused_qkv_rope", inputs)
    assert inputs["positions"].item() > 100
    for wrong, expected in (
        (rope(inputs), Status.PASSED),
        (rope(inputs, shift=-1), Status.WRONG_VALUES),
        (inputs["qkv"], Status.WRONG_VALUES),
    ):
        assert status("fused_qkv_rope", [wrong], outputs) is expected


def test_positions_are_seeded_and_spread_over_8192():
    generate = load("fused_qkv_rope").generate_inputs
    positions, again, other = (generate({"num_tokens": 20000, "seed": seed}, "cpu")["positions"] for seed in (1, 1, 2))
    assert positions.dtype is torch.int32 and positions.shape == (20000,)
    assert 0 <= positions.min() < 10 and 8180 < positions.max() < 8192
    assert torch.equal(positions, again) and not torch.equal(positions, other)


# mrope ----------------------------------------------------------------------------------------------------------------


def sections_of(inputs):
    """Which of the three positions each of the 64 pairs turns by."""
    return [0] * inputs["section_time"] + [1] * inputs["section_height"] + [2] * inputs["section_width"]


@pytest.mark.parametrize(("name", "changes"), small_variants("mrope"))
def test_mrope_rotates_by_the_angles_of_its_sections(name, changes):
    inputs = inputs_at(name, **changes)
    rows = sections_of(inputs)
    angles = torch.stack(
        [
            torch.atan2(inputs["sin"][row, :, pair].double(), inputs["cos"][row, :, pair].double())
            for pair, row in enumerate(rows)
        ],
        dim=1,
    )
    outputs = outputs_of(name, inputs)
    for heads, output in zip((inputs["query"], inputs["key"]), outputs, strict=True):
        close(output, turned(heads, angles))


def multimodal(inputs, rows, table=torch.float32, wide=torch.float32, sign=1):
    cos, sin = (
        torch.stack([values[row, :, pair] for pair, row in enumerate(rows)], dim=1)[:, None].to(table)
        for values in (inputs["cos"], sign * inputs["sin"])
    )
    outputs = []
    for heads in (inputs["query"], inputs["key"]):
        first, second = heads.to(wide).chunk(2, dim=-1)
        outputs.append(
            torch.cat(
                [torch.addcmul(first * cos, second, sin, value=-1), torch.addcmul(first * sin, second, cos)], dim=-1
            ).to(heads.dtype)
        )
    return outputs


@pytest.mark.parametrize(
    ("rows", "how", "expected"),
    [
        ([0] * 16 + [1] * 24 + [2] * 24, {}, Status.PASSED),
        ([0] * 64, {}, Status.WRONG_VALUES),
        ([0] * 16 + [2] * 24 + [1] * 24, {}, Status.WRONG_VALUES),
        ([0] * 17 + [1] * 23 + [2] * 24, {}, Status.WRONG_VALUES),
        ([0] * 16 + [1] * 25 + [2] * 23, {}, Status.WRONG_VALUES),
        ([0, 1, 2] * 16 + [1, 2] * 8, {}, Status.WRONG_VALUES),
        ([0] * 16 + [1] * 24 + [2] * 24, {"sign": -1}, Status.WRONG_VALUES),
        ([0] * 16 + [1] * 24 + [2] * 24, {"table": torch.bfloat16, "wide": torch.bfloat16}, Status.WRONG_VALUES),
    ],
    ids=[
        "right",
        "time only",
        "height and width exchanged",
        "time one too many",
        "height one too many",
        "interleaved",
        "other way round",
        "bfloat16 products",
    ],
)
def test_tolerance_of_mrope(rows, how, expected):
    inputs = inputs_at("mrope", num_tokens=838, num_q_heads=16, num_kv_heads=4)
    assert status("mrope", multimodal(inputs, rows, **how), outputs_of("mrope", inputs)) is expected


def test_position_ids_are_text_runs_and_image_grids():
    """Each token begins a request, goes on above the largest position so far, or is the next of an image."""
    ids = load("mrope").position_ids(16530, torch.Generator().manual_seed(5))
    assert ids.shape == (3, 16530) and ids.dtype is torch.int64
    kinds = {"request": 0, "text": 0, "column": 0, "row": 0}
    before, largest = None, -1
    for time, height, width in ids.t().tolist():
        if (time, height, width) == (0, 0, 0):
            kind, largest = "request", -1
        elif time != before[0]:
            kind = "text"  # or the first of an image
            assert time == height == width == largest + 1
        else:
            kind = "column" if height == before[1] else "row"
            assert (height, width) == ((height, before[2] + 1) if kind == "column" else (before[1] + 1, time))
        kinds[kind] += 1
        before, largest = (time, height, width), max(largest, height, width)
    assert 3 < kinds["request"] < 30 and 500 < kinds["text"] < 8000 and 100 < kinds["row"] < kinds["column"]


def test_cosines_and_sines_are_of_the_positions():
    module = load("mrope")
    inputs, again, other = (
        module.generate_inputs({"num_tokens": 400, "half_head_size": 64, "seed": seed}, "cpu") for seed in (7, 7, 8)
    )
    ids = module.position_ids(400, torch.Generator().manual_seed(7))
    for row, token, pair in ((0, 3, 0), (1, 399, 20), (2, 250, 63), (2, 120, 1)):
        number = cmath.exp(1j * int(ids[row, token]) * 1e6 ** (-pair / 64))
        found = inputs["cos"][row, token, pair].item(), inputs["sin"][row, token, pair].item()
        assert found == pytest.approx((number.real, number.imag), abs=1e-6)
    assert all(torch.equal(inputs[key], again[key]) and not torch.equal(inputs[key], other[key]) for key in inputs)
    assert all(value.dtype is torch.float32 and value.shape == (3, 400, 64) for value in inputs.values())


# reshape_and_cache ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "changes"), small_variants("reshape_and_cache"))
def test_reshape_and_cache(name, changes):
    inputs = inputs_at(name, **changes)
    token_of_slot = {slot: token for token, slot in enumerate(inputs["slot_mapping"].tolist()) if slot >= 0}
    for tokens, cache, output in zip(
        (inputs["key"], inputs["value"]),
        (inputs["key_cache"], inputs["value_cache"]),
        outputs_of(name, inputs),
        strict=True,
    ):
        for block in range(cache.shape[0]):
            for place in range(16):
                token = token_of_slot.get(16 * block + place)
                expected = cache[block, place] if token is None else tokens[token]
                assert torch.equal(output[block, place], expected)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda outputs, inputs: (inputs["key_cache"], inputs["value_cache"]),
        lambda outputs, inputs: outputs[::-1],
        lambda outputs, inputs: [
            torch.where(output == cache, 0, output)
            for output, cache in zip(outputs, (inputs["key_cache"], inputs["value_cache"]), strict=True)
        ],
        lambda outputs, inputs: [output.flatten(0, 1).roll(1, 0).view(output.shape) for output in outputs],
        lambda outputs, inputs: [output.clone().index_fill_(3, torch.tensor([15]), 9) for output in outputs],
    ],
    ids=["nothing written", "keys and values exchanged", "other slots lost", "one slot off", "last column"],
)
def test_a_wrong_cache_fails(spoil):
    inputs = inputs_at("reshape_and_cache")
    outputs = outputs_of("reshape_and_cache", inputs)
    assert status("reshape_and_cache", outputs, outputs) is Status.PASSED
    assert status("reshape_and_cache", spoil(outputs, inputs), outputs) is Status.WRONG_VALUES


def test_a_padding_token_that_is_written_into_the_last_slot_fails():
    """Indexing with -1 does so in torch."""
    inputs = inputs_at("reshape_and_cache", num_tokens=50)
    outputs = outputs_of("reshape_and_cache", inputs)
    padding = int((inputs["slot_mapping"] < 0).nonzero()[0])
    wrong = [output.clone() for output in outputs]
    for output, tokens in zip(wrong, (inputs["key"], inputs["value"]), strict=True):
        output[-1, -1] = tokens[padding]
    assert status("reshape_and_cache", wrong, outputs) is Status.WRONG_VALUES


@pytest.mark.parametrize(("tokens", "blocks"), [(8192, 512), (1015, 64), (50, 2), (0, 1), (5, 0)])
def test_slots_are_distinct_and_the_rest_is_padding(tokens, blocks):
    generate = load("reshape_and_cache").generate_inputs
    size = {"num_tokens": tokens, "num_blocks": blocks, "block_size": 16}
    slots, again, other = (generate({**size, "seed": seed}, "cpu")["slot_mapping"] for seed in (3, 3, 4))
    assert slots.dtype is torch.int64 and slots.shape == (tokens,)
    written = slots[slots >= 0]
    assert len(written) == min(tokens, 16 * blocks) == len(written.unique()) and (written < 16 * blocks).all()
    assert (slots[slots < 0] == -1).all()
    assert torch.equal(slots, again) and (min(tokens, blocks) == 0 or not torch.equal(slots, other))


# Costs, counted by hand -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype", "flops", "read", "written", "moved"),
    [
        (
            "fused_qkv_rope",
            "float16",
            3 * (5 * 128 * 3 + 64 * 3),
            3 * (6 * 256 + 4),
            3 * 6 * 256,
            {"bytes_in_place": 3 * (2 * 5 * 256 + 4)},
        ),
        (
            "mrope",
            "bfloat16",
            5 * 4 * 128 * 3,
            5 * (4 * 256 + 2 * 3 * 64 * 4),
            5 * 4 * 256,
            {"bytes_needed": 5 * (2 * 4 * 256 + 2 * 64 * 4)},
        ),
        # 32 slots, 21 of them overwritten
        (
            "reshape_and_cache",
            "bfloat16",
            0,
            2 * 32 * 2 * 32 + 21 * (2 * 2 * 32 + 8),
            2 * 32 * 2 * 32,
            {"bytes_needed": (32 - 21) * 128 + 21 * (128 + 8) + 32 * 128, "bytes_in_place": 21 * (2 * 128 + 8)},
        ),
    ],
)
def test_cost_at_small_axes(name, dtype, flops, read, written, moved):
    module = load(name)
    assert module.count_cost(module.SMALL_AXES, module.SMALL_AXES) == {
        "flops": {dtype: flops},
        "bytes_read": read,
        "bytes_written": written,
        **moved,
    }


def test_costs_equal_the_published_ones():
    """Exactly: nothing in them is rounded."""
    from test_published_costs import PUBLISHED

    for name in ("fused_qkv_rope", "mrope", "reshape_and_cache"):
        for workload in of_origin(CATALOG.workloads(name), ["survey"]):
            row, cost = PUBLISHED[name, workload.raw["shape_id"]], workload.cost
            assert (sum(cost.flops.values()), cost.bytes_read, cost.bytes_written) == (
                int(row["flops"]),
                int(row["bytes_read"]),
                int(row["bytes_written"]),
            )
