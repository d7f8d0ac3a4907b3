"""The CUDA kernel of derby_moe_topk_gating_softmax on the CPU (on_host.py): sizes, ties, crowded lists; and mutants."""

import math

import on_host
import pytest
import torch
from rowwise_cases import CATALOG, case_of, outputs_of, reference

from kernelderby.measure.judge.correctness import judge
from kernelderby.rows.measurement import Status

OPERATOR = "moe_topk_gating_softmax"
INF = math.inf


def status(logits, *edits, threads=64):
    """How a run ends against the reference; of equal logits the lower expert must come first, too."""
    case = case_of(OPERATOR, num_tokens=len(logits), num_experts=logits.shape[1])
    outputs = outputs_of(OPERATOR, case)
    on_host.emulated(OPERATOR, *edits).run_with({"threads": threads}, logits, *outputs.values())
    first = logits.sort(dim=1, descending=True, stable=True).indices[:, :8]
    if not torch.equal(first.int(), outputs["topk_ids"]):
        return Status.WRONG_VALUES
    return judge(CATALOG.definition(OPERATOR), reference(OPERATOR), {"gating_logits": logits}, outputs).status


def normal(tokens, experts):
    return torch.randn(tokens, experts, generator=torch.Generator().manual_seed(experts))


@pytest.mark.parametrize("threads", [32, 256])
@pytest.mark.parametrize(
    "tokens, experts",
    [(1, 8), (3, 9), (5, 31), (37, 128), (9, 130), (21, 256), (2, 257), (3, 512), (2, 1000), (1, 1024)],
)
@on_host.recalled_for(f"derby_{OPERATOR}")
def test_sizes(tokens, experts, threads):
    assert status(normal(tokens, experts), threads=threads) is Status.PASSED


def rows():
    """Name -> logits: ties of every kind, and rows of which more than a list holds reach the bound."""
    few = normal(6, 256)
    few[:, 9:] = -INF
    zeros = torch.full((2, 128), -0.0)
    zeros[:, ::3] = 0.0
    crowded = torch.zeros(4, 256)
    for row, size in enumerate((31, 32, 33, 40)):
        crowded[row, 100 : 100 + size] = 1.0
    one_lane = torch.zeros(1, 128) - torch.arange(128.0)
    one_lane[0, 64:72] = 5.0 + torch.arange(8.0)  # two lanes hold the eight largest
    mirrored = normal(4, 256)
    mirrored[:, 128:] = mirrored[:, :128].flip(1)
    return {
        "mirrored": mirrored,
        "equal": torch.full((2, 256), -3.0),
        "minus infinity": few,
        "zeros of both signs": zeros,
        "crowded": crowded,
        "few values": normal(9, 256).round(),
        "large": normal(4, 256) * 1e4,
        "steep": normal(4, 128) * 12,
        "two lanes": one_lane,
        "falling": -torch.arange(256.0)[None],
        "rising": torch.arange(256.0)[None],
    }


@pytest.mark.parametrize("name", rows())
@on_host.recalled_for(f"derby_{OPERATOR}")
def test_rows_of_every_kind(name):
    assert status(rows()[name]) is Status.PASSED


@on_host.recalled_for(f"derby_{OPERATOR}")
def test_nan_writes_every_output():
    logits = normal(3, 256)
    logits[0, 7] = math.nan
    logits[1] = math.nan
    logits[2].view(torch.int32)[:] = -1  # a NaN below all keys
    outputs = [torch.full((3, 8), -7.0), torch.full((3, 8), -7, dtype=torch.int32)]
    on_host.emulated(OPERATOR).run_with({"threads": 64}, logits, *outputs)
    assert outputs[0].isnan().all() and ((outputs[1] >= 0) & (outputs[1] < 256)).all()


@on_host.recalled_for(f"derby_{OPERATOR}")
def test_many_logits_take_the_cuda_kernel():
    candidates = on_host.emulated(OPERATOR).candidates
    for tokens, experts, cuda in (
        (1, 128, False),
        (2044, 128, False),
        (8192, 128, True),
        (8037, 256, True),
        (99999, 2048, False),
        (99999, 4, False),
    ):
        assert ("threads" in candidates(torch.empty(tokens, experts, device="meta"))[0]) == cuda
    assert not any("threads" in config for config in candidates(torch.empty(9999, 128))), "no nvcc on a CPU"


@pytest.mark.parametrize(
    "old, new, name",
    [
        ("place += list[i] > own", "place += (list[i] >> 32) > (own >> 32)", "mirrored"),
        ("value + 0.0f", "value", "zeros of both signs"),
        ("size <= LIST && size >= TOP_K", "size >= TOP_K", "crowded"),
        (
            "static_cast<unsigned long long>(keys[i]) << 32 | ~unsigned(expert(i))",
            "static_cast<unsigned long long>(keys[i]) << 32 | unsigned(expert(i))",
            "mirrored",
        ),
        ("__expf(values[i] - top)", "__expf(values[i])", "steep"),
        ("if (expert(i) == int(first)) keys[i] = 0", "keys[i] = keys[i] == most ? 0 : keys[i]", "equal"),
    ],
    ids=["ties", "zeros", "cut off", "higher expert first", "no maximum", "all equal ones at once"],
)
@on_host.recalled_for(f"derby_{OPERATOR}")
def test_mutants_fail(old, new, name):
    assert status(rows()[name], (old, new)) is not Status.PASSED
