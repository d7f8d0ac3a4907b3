"""derby_moe_align_block_size and derby_moe_count_and_sort on the CPU (on_host.py): crowded and empty experts, more
pairs than registers hold, threads in another order; and mutants of what they share."""

import on_host
import pytest
import torch
from rowwise_cases import CATALOG, reference

from kernelderby.measure.judge.correctness import judge
from kernelderby.rows.measurement import Status

OPERATORS = ("moe_align_block_size", "moe_count_and_sort")
FEW = {"threads": 128, "blocks": 1}  # holds 1024 pairs in registers
CONFIGS = [FEW, {"threads": 256, "blocks": 3}, {"threads": 128, "blocks": 8}]


def routings():
    """Name -> topk_ids [num_tokens, 8]."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.rand(333, 128, generator=generator).topk(8).indices.to(torch.int32)
    return {
        "none": drawn[:0],
        "one token": drawn[:1],
        "drawn": drawn,
        "the same eight": drawn[:1].repeat(260, 1),
        "the last eight": torch.arange(120, 128, dtype=torch.int32).repeat(129, 1),
        "the first eight": torch.arange(8, dtype=torch.int32).repeat(16, 1),
    }


def status(operator, topk_ids, config, *edits, blocks=None):
    """How a run ends against the reference."""
    small = reference(operator)
    inputs = {"topk_ids": topk_ids}
    if operator == "moe_align_block_size":
        blocks = blocks or int(small.blocks_per_expert(topk_ids).sum()) + 3
        inputs["block_slots"] = torch.zeros(blocks, dtype=torch.int32)
    names = CATALOG.definition(operator).outputs
    outputs = {
        name: torch.full_like(tensor, -77) for name, tensor in zip(names, small.run(*inputs.values()), strict=True)
    }
    on_host.emulated(operator, *edits).run_with(config, *inputs.values(), *outputs.values())
    return judge(CATALOG.definition(operator), small, inputs, outputs).status


@pytest.mark.parametrize("order", ["forward", "reversed"])
@pytest.mark.parametrize("name", routings())
@pytest.mark.parametrize("operator", OPERATORS)
@on_host.recalled_for("derby_{operator}")
def test_routings(operator, name, order, monkeypatch):
    monkeypatch.setenv("EMULATED_ORDER", order)
    for config in CONFIGS:
        assert status(operator, routings()[name], config) is Status.PASSED, config


@pytest.mark.parametrize("operator", OPERATORS)
@on_host.recalled_for("derby_{operator}")
def test_the_first_choice_gives_each_thread_few_pairs(operator):
    solution = on_host.emulated(operator)
    for workload in CATALOG.workloads(operator):
        topk_ids = torch.empty(workload.axes["num_tokens"], 8, device="meta")
        slots = [torch.empty(workload.axes["num_blocks"], device="meta")] if "num_blocks" in workload.axes else []
        choice = solution.candidates(topk_ids, *slots)[0]
        assert choice["threads"] * choice["blocks"] * 8 >= topk_ids.numel(), "no pair is read twice"


@on_host.recalled_for(*(f"derby_{operator}" for operator in OPERATORS))
def test_blocks_that_fit_exactly():
    topk_ids = routings()["the first eight"].repeat(8, 1)  # 128 pairs of each: full blocks, no padding
    assert status("moe_align_block_size", topk_ids, FEW, blocks=8) is Status.PASSED


@pytest.mark.parametrize(
    "edit",
    [
        ("before += i < rank ? pairs : 0", "before += i <= rank ? pairs : 0"),
        ("shared.cursor[threadIdx.x] += shared.held[threadIdx.x]", "shared.cursor[threadIdx.x] += 0"),
        ("end += shared.warp_sums[warp]", "end += 0"),
        ("(total + UNIT - 1) / UNIT", "total / UNIT"),
    ],
    ids=lambda edit: edit[1],
)
@on_host.recalled_for(*(f"derby_{operator}" for operator in OPERATORS))
def test_mutants_fail(edit):
    routing = routings()["drawn"]
    assert any(status("moe_align_block_size", routing, config, edit) is not Status.PASSED for config in CONFIGS)
