"""derby_reshape_and_cache and derby_causal_conv1d on the CPU (on_host.py): odd sizes, padding, states; and mutants."""

import functools

import on_host
import pytest
import torch
from rowwise_cases import CATALOG, in_place_verdict, reference

from kernelderby.measure.judge.correctness import judge
from kernelderby.rows.measurement import Status


def normal(generator, *shape):
    return torch.randn(*shape, generator=generator).to(torch.bfloat16)


def cache_status(tokens, heads, head_dim, blocks, config, *edits, padding=False, in_place=False):
    generator = torch.Generator().manual_seed(tokens)
    slots = reference("reshape_and_cache").generate_inputs(
        {"num_tokens": tokens, "num_blocks": blocks, "block_size": 16, "seed": tokens}, "cpu"
    )["slot_mapping"]
    if padding:
        slots[::2] = -1
    rows, cache = (tokens, heads, head_dim), (blocks, 16, heads, head_dim)
    inputs = {
        "key": normal(generator, *rows),
        "value": normal(generator, *rows),
        "key_cache": normal(generator, *cache),
        "value_cache": normal(generator, *cache),
        "slot_mapping": slots,
    }
    if in_place:
        call = functools.partial(on_host.emulated("reshape_and_cache", *edits).run_with, config)
        return in_place_verdict("reshape_and_cache", call, inputs).status
    outputs = {
        name: torch.full(cache, float("nan"), dtype=torch.bfloat16) for name in ("key_cache_out", "value_cache_out")
    }
    on_host.emulated("reshape_and_cache", *edits).run_with(config, *inputs.values(), *outputs.values())
    return judge(CATALOG.definition("reshape_and_cache"), reference("reshape_and_cache"), inputs, outputs).status


CACHE_SIZES = [
    (1, 4, 128, 1),
    (0, 2, 16, 2),
    (248, 2, 64, 16),
    (1200, 1, 16, 75),
    (50, 2, 16, 2),
    (21, 3, 5, 2),
    (7, 1, 6, 3),
    (5, 7, 72, 20),
    (3, 40, 128, 1),
]


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("sizes", CACHE_SIZES, ids=str)
@on_host.recalled_for("derby_reshape_and_cache")
def test_caches(sizes, padding):
    for config in ({"items": 1, "keepers_vectors": 1}, {"items": 4, "keepers_vectors": 4}):
        assert cache_status(*sizes, config, padding=padding) is Status.PASSED, config
        assert cache_status(*sizes, config, padding=padding, in_place=True) is Status.PASSED, config


@pytest.mark.parametrize(
    "tokens, slots, row_bytes",
    [
        (1, 16, 1024),
        (144, 144, 1024),
        (2044, 2048, 4096),
        (8192, 8192, 1024),
        (8, 1600000, 2048),
        (9, 1, 2),
        (0, 16, 64),
        (100000, 200000, 256),
    ],
)
@on_host.recalled_for("derby_reshape_and_cache")
def test_keepers_cover_all_slots_and_scan_little(tokens, slots, row_bytes):
    shares = on_host.emulated("reshape_and_cache").shares
    for vectors in (1, 4):
        keepers, slots_each, _, tokens_each = shares(tokens, slots, row_bytes, 16 if row_bytes > 8 else 2, 2, vectors)
        assert 0 < slots_each <= 1024 and keepers * slots_each >= slots > (keepers - 1) * slots_each
        assert tokens_each > 0
        moved = 4 * slots * row_bytes
        read = keepers * tokens * 8  # of slot_mapping by all keepers
        assert read <= max(moved // 8, 64 * 1024) or slots_each == 1024


@pytest.mark.parametrize(
    "edit",
    [
        ("place >= 0 && place < count", "place >= 0 && place < count - 1"),
        ("if (shared.taken[i / rows.length]) continue;", ";"),
        ("if (!shared.taken[i])", "if (shared.taken[i])"),
    ],
    ids=lambda edit: edit[0],
)
@on_host.recalled_for("derby_reshape_and_cache")
def test_mutants_of_the_cache_fail(edit, monkeypatch):
    """With the last block first: an old row over a new one shows whichever comes last."""
    monkeypatch.setenv("EMULATED_ORDER", "reversed")
    config = {"items": 1, "keepers_vectors": 1}
    assert all(cache_status(*sizes, config) is Status.PASSED for sizes in CACHE_SIZES)
    assert any(cache_status(*sizes, config, edit) is not Status.PASSED for sizes in CACHE_SIZES)


def convolved(tokens, dim, config, *edits):
    generator = torch.Generator().manual_seed(tokens)
    inputs = {
        "x": normal(generator, tokens, dim),
        "weight": normal(generator, dim, 4),
        "bias": normal(generator, dim),
        "initial_state": normal(generator, dim, 3),
    }
    outputs = {"output": torch.full((tokens, dim), float("nan"), dtype=torch.bfloat16)}
    on_host.emulated("causal_conv1d", *edits).run_with(config, *inputs.values(), *outputs.values())
    return judge(CATALOG.definition("causal_conv1d"), reference("causal_conv1d"), inputs, outputs).status


def all_configs():
    """Every configuration that is tried for some size."""
    solution, found = on_host.emulated("causal_conv1d"), []
    for shape in ((1, 4096), (128, 4096), (1024, 4096), (14807, 8192), (1, 99), (9, 99)):
        for config in solution.candidates(torch.empty(shape, device="meta"), None, None, None):
            if config not in found:
                found.append(config)
    return found


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 9, 37, 130])
@on_host.recalled_for("derby_causal_conv1d")
def test_convolution_in_every_configuration(tokens):
    for config in all_configs():
        for dim in (8, 136) if config["channels"] > 1 else (1, 7, 99):
            assert convolved(tokens, dim, config) is Status.PASSED, (config, dim)


@pytest.mark.parametrize(
    "edit",
    [
        ("hyperbolic_tangent(half), half)", "hyperbolic_tangent(1.702f * half), half)"),
        ("sum = offset[c]", "sum = 0.0f"),
        ("if (token < WIDTH - 1) {", "if (token < 0) {"),
        ("if (token + i < WIDTH - 1)", "if (token + i < WIDTH - 2)"),
        ("if (t >= 0 &&", "if (t >= 6 &&"),
        ("c % TOGETHER * WIDTH + tap", "tap"),
    ],
    ids=lambda edit: edit[1],
)
@on_host.recalled_for("derby_causal_conv1d")
def test_mutants_of_the_convolution_fail(edit):
    config = {"channels": 4, "rows": 4, "threads": 32}
    assert convolved(9, 24, config, edit) is not Status.PASSED
