"""derby_topk_filter on the CPU (on_host.py): ties, infinities, NaN, clusters, rows that stay in memory; and mutants."""

import math
import re

import on_host
import pytest
import torch
from rowwise_cases import reference

OPERATOR = "topk_filter"
INF, NAN = math.inf, math.nan
BLOCK = {"threads": 128, "items": 16, "cluster": 1}
CLUSTER = {"threads": 1024, "items": 4, "cluster": 3}
STREAM = {"threads": 1024, "items": 0, "cluster": 2}
CONFIGS = {"block": BLOCK, "cluster": CLUSTER, "memory": STREAM, "one block from memory": {**STREAM, "cluster": 1}}


def normal(rows, columns, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def agrees(solution, logits, top_k, config, filter_value=None):
    filter_value = reference(OPERATOR).LOWEST if filter_value is None else filter_value
    output = torch.full_like(logits, 7.25)
    solution.run_with(config, logits, top_k, filter_value, output)
    expected = reference(OPERATOR).run(logits, top_k, filter_value)
    same = output.view(torch.int32) == expected.view(torch.int32)
    return bool((same | (output.isnan() & expected.isnan())).all())


def rows():
    """Name -> logits [rows, columns] that are not simply random."""
    many = normal(2, 700)
    zeros = torch.zeros(2, 700)
    zeros[0, ::2] = -0.0  # equal to 0
    sprinkled = normal(4, 700)
    sprinkled[0, 5:30] = NAN
    sprinkled[1, 5:300] = -INF
    sprinkled[2, 5:30] = INF
    sprinkled[3, ::3] = -NAN
    few = torch.full((2, 700), -INF)
    few[0, 3:9] = normal(1, 6)
    few[1, 3:300] = normal(1, 297)
    return {
        "normal": many,
        "one value": torch.full((2, 700), -1.5),
        "zeros of both signs": zeros,
        "few values": many.round(),
        "all NaN": torch.full((1, 700), NAN),
        "specials": sprinkled,
        "masked": few,
        "tiny": many * 1e-40,
        "huge": many * 1e38,
        "negative": -many.abs(),
        "rising": torch.arange(700.0)[None],
    }


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("name", rows())
@on_host.recalled_for("derby_topk_filter")
def test_rows_of_every_kind(name, config):
    if config is CONFIGS["one block from memory"] and name not in ("normal", "few values", "specials", "masked"):
        pytest.skip("a cluster from memory has this row")
    solution = on_host.emulated(OPERATOR)
    for top_k in {"block": (1, 7, 50, 699), "cluster": (7, 50)}.get(
        next(key for key, value in CONFIGS.items() if value is config), (50,)
    ):
        assert agrees(solution, rows()[name], top_k, config), top_k


@pytest.mark.parametrize("columns", [1, 2, 31, 33, 99, 127, 512, 513, 2047, 2048])
@on_host.recalled_for("derby_topk_filter")
def test_vocabularies_of_any_size(columns):
    solution = on_host.emulated(OPERATOR)
    for top_k in (1, 2, columns // 2 + 1, columns, columns + 1):
        assert agrees(solution, normal(2, columns, columns), top_k, BLOCK), top_k


@pytest.mark.parametrize("columns", [3, 4097, 9001, 12000])
@pytest.mark.parametrize("top_k", [1, 50, 1024, 1025, 1500])
@on_host.recalled_for("derby_topk_filter")
def test_clusters(columns, top_k):
    """Short parts and empty ones, more values than groups, and the way through the lists and without them."""
    assert agrees(on_host.emulated(OPERATOR), normal(1, columns, columns), top_k, CLUSTER)


@pytest.mark.parametrize(
    "shape, top_k, first",
    [
        ((1, 151936), 50, {"threads": 1024, "items": 20, "cluster": 8}),
        ((922, 2048), 50, {"threads": 256, "items": 8, "cluster": 1}),
        ((3, 4002), 50, {"threads": 1024, "items": 4, "cluster": 1}),
        ((3, 4215), 50, {"threads": 1024, "items": 8, "cluster": 1}),
        ((15381, 4096), 50, {"threads": 256, "items": 16, "cluster": 1}),
        ((2, 1000000), 50, {"threads": 1024, "items": 0, "cluster": 16}),
    ],
)
@on_host.recalled_for("derby_topk_filter")
def test_the_first_choice(shape, top_k, first):
    solution = on_host.emulated(OPERATOR)
    choices = solution.candidates(torch.empty(shape, device="meta"), top_k, 0.0)
    assert choices[0] == first
    for choice in choices:
        part = (-(-shape[1] // choice["cluster"]) + 3) // 4 * 4 if choice["cluster"] > 1 else shape[1]
        assert choice["items"] == 0 or choice["threads"] * choice["items"] >= part


@on_host.recalled_for("derby_topk_filter")
def test_top_k_below_one_is_refused():
    with pytest.raises(ValueError, match="top_k: 0"):
        on_host.emulated(OPERATOR).run_with(BLOCK, normal(1, 9), 0, 0.0, torch.empty(1, 9))


def only(config):
    """Edits that leave one compiled size: the mutants take less time to compile."""
    text = on_host.rowwise_cases.CATALOG.solution("derby_topk_filter").sources["kernel.cu"]
    cases = re.findall(r"    case \d+: return start<\d+, \d+>\(call, width\);\n", text)
    wanted = f"start<{config['threads']}, {config['items']}>"
    return tuple((case, "") for case in cases if wanted not in case)


# Fewer than 50 of the groups have a 1, more than a list holds reach the next bound, 0; the first to come have no 1.
CROWDED = torch.cat([torch.zeros(1, 1696), torch.ones(1, 148), torch.zeros(1, 204)], dim=1)


@pytest.mark.parametrize(
    "edit, logits, top_k, config",
    [
        (("held[i + j] < threshold", "held[i + j] <= threshold"), rows()["normal"], 7, BLOCK),
        (("value != value ? KEY_NAN : key", "key"), rows()["specials"], 7, BLOCK),
        (("!(value < bound)", "value > bound"), rows()["specials"], 7, BLOCK),
        (("larger < k && k <=", "larger + 1 < k && k <="), rows()["rising"], 1, BLOCK),
        (("list.size <= LIST ? list.size : OVERFLOW", "min(list.size, LIST)"), CROWDED, 50, BLOCK),
        (("in_block(shared, i).list", "in_block(shared, 0).list"), normal(1, 9001), 50, CLUSTER),
    ],
    ids=["ties filtered", "NaN of both signs apart", "NaN not listed", "one too few", "list cut off", "own list only"],
)
@on_host.recalled_for("derby_topk_filter")
def test_mutants_fail(edit, logits, top_k, config):
    assert agrees(on_host.emulated(OPERATOR), logits, top_k, config)
    assert not agrees(on_host.emulated(OPERATOR, edit, *only(config)), logits, top_k, config)
