"""derby_fused_qkv_rope, derby_mrope and derby_moe_topk_gating_softmax: in Triton's interpreter at odd sizes, with
mutants, and compiled for sm_90 and sm_100."""

import functools
import math
import re

import on_host
import pytest
import torch
from aot import compile_kernel
from interpreted import compiled
from rowwise_cases import (
    CATALOG,
    case_of,
    expect_every_candidate_right,
    in_place_verdict,
    inputs_of,
    meta_arguments,
    module,
    outputs_of,
    reference,
    verdict,
)

from kernelderby.measure.judge.cases import case_of_workload
from kernelderby.measure.judge.correctness import judge
from kernelderby.rows.measurement import Status

OPERATORS = ("fused_qkv_rope", "mrope", "moe_topk_gating_softmax")
TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "i32"}
SIZES = {
    "fused_qkv_rope": [
        {},
        {"num_tokens": 7, "num_heads": 11, "num_q_heads": 7, "num_kv_heads": 2},
        {"num_tokens": 1, "num_heads": 80, "num_q_heads": 64, "num_kv_heads": 8},
        {"rope_base": 500000.0},
    ],
    "mrope": [
        {"num_tokens": 13, "num_q_heads": 7, "num_kv_heads": 2},
        {"num_tokens": 1, "num_q_heads": 1},
        {"num_tokens": 50, "section_time": 7, "section_height": 19, "section_width": 38},
    ],
    "moe_topk_gating_softmax": [
        {"num_tokens": 1},
        {"num_tokens": 37, "num_experts": 130},
        {"num_experts": 8},
        {"num_tokens": 3, "num_experts": 257},
    ],
}


def status(operator, inputs, case, *edits):
    """The worst end of all candidates against the reference."""
    solution = module(operator, *edits)
    ends = []
    for config in solution.candidates(*inputs.values()):
        outputs = outputs_of(operator, case)
        solution.run_with(config, *inputs.values(), *outputs.values())
        ends.append(judge(CATALOG.definition(operator), reference(operator), inputs, outputs).status)
    return next((end for end in ends if end is not Status.PASSED), Status.PASSED)


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "operator, changes", [(name, size) for name, sizes in SIZES.items() for size in sizes], ids=str
)
@on_host.recalled_for("derby_{operator}", compiler=on_host.interpreter())
def test_odd_sizes_in_every_candidate(operator, changes):
    case = case_of(operator, **changes)
    assert status(operator, inputs_of(operator, case), case) is Status.PASSED


@pytest.mark.interpreted
@pytest.mark.parametrize("changes", SIZES["mrope"], ids=str)
@on_host.recalled_for("derby_mrope", compiler=on_host.interpreter())
def test_heads_turned_in_place(changes):
    solution = module("mrope")
    for config in solution.candidates(*inputs_of("mrope", case_of("mrope", **changes)).values()):
        inputs = inputs_of("mrope", case_of("mrope", **changes))
        found = in_place_verdict("mrope", functools.partial(solution.run_with, config), inputs)
        assert found.status is Status.PASSED, (config, found.message)


@pytest.mark.parametrize(
    "tokens, q_heads, kv_heads, head_dim, pairs, heads, threads",
    [(5, 6, 1, 128, 8, 4, 64), (3, 7, 2, 128, 4, 8, 128), (9, 3, 1, 80, 8, 2, 64), (2, 5, 5, 6, 2, 1, 32),
     (4, 9, 3, 72, 8, 8, 256), (0, 2, 1, 128, 8, 2, 64)],
)  # fmt: skip
@on_host.recalled_for("derby_fused_qkv_rope")
def test_rotation_in_cuda(tokens, q_heads, kv_heads, head_dim, pairs, heads, threads):
    """On the CPU: value heads in one thread with others, heads of any even size, outputs of its own and in place."""
    case = case_of("fused_qkv_rope", num_tokens=tokens, num_heads=q_heads + 2 * kv_heads, num_q_heads=q_heads,
                   num_kv_heads=kv_heads)  # fmt: skip
    case.sizes["head_dim"] = head_dim
    config = {"pairs": pairs, "heads": heads, "threads": threads}
    call = functools.partial(on_host.emulated("fused_qkv_rope").run_with, config)
    assert verdict("fused_qkv_rope", call, inputs_of("fused_qkv_rope", case), case).status is Status.PASSED
    found = in_place_verdict("fused_qkv_rope", call, inputs_of("fused_qkv_rope", case))
    assert found.status is Status.PASSED


@on_host.recalled_for("derby_fused_qkv_rope")
def test_rotation_in_cuda_of_heads_that_lie_anywhere():
    """At an odd number of values a thread turns a pair at a time."""
    case = case_of("fused_qkv_rope", num_tokens=3, num_heads=4, num_q_heads=2, num_kv_heads=1)
    inputs = inputs_of("fused_qkv_rope", case)
    moved = torch.empty(inputs["qkv"].numel() + 1, dtype=torch.float16)[1:].view(inputs["qkv"].shape)
    inputs["qkv"] = moved.copy_(inputs["qkv"])
    call = functools.partial(on_host.emulated("fused_qkv_rope").run_with, {"pairs": 8, "heads": 2, "threads": 64})
    assert verdict("fused_qkv_rope", call, inputs, case).status is Status.PASSED


@pytest.mark.parametrize(
    "edit",
    [("+ place * PAIRS;", "+ place;"), ("b * c[j] + a * s[j]", "b * c[j] - a * s[j]"),
     ("if (first + i >= h.rotated) continue;", ""), ("whole & 2 ? -s : s", "s"),
     ("2.0, 6.0, 24.0", "2.0, 6e9, 24.0")],
)  # fmt: skip
@on_host.recalled_for("derby_fused_qkv_rope")
def test_mutants_of_rotation_in_cuda_fail(edit):
    case = case_of("fused_qkv_rope", num_tokens=9, num_heads=6, num_q_heads=3, num_kv_heads=1)
    for edits in ((), (edit,)):
        config = {"pairs": 8, "heads": 8, "threads": 64}
        call = functools.partial(on_host.emulated("fused_qkv_rope", *edits).run_with, config)
        inputs = inputs_of("fused_qkv_rope", case)
        assert (verdict("fused_qkv_rope", call, inputs, case).status is Status.PASSED) == (not edits)


def with_angles_of_their_own(inputs):
    """A text's three positions are the same; here no two angles are, so that a wrong section shows."""
    angles = torch.rand(inputs["cos"].shape, generator=torch.Generator().manual_seed(3)) * 6
    return {**inputs, "cos": angles.cos(), "sin": angles.sin()}


@pytest.mark.parametrize(
    "tokens, q_heads, kv_heads, time, height, heads, threads",
    [(5, 16, 1, 16, 24, 5, 64), (7, 16, 4, 16, 24, 4, 128), (3, 7, 2, 24, 24, 6, 64), (1, 3, 1, 8, 8, 1, 32),
     (9, 5, 5, 0, 64, 2, 256), (0, 2, 1, 16, 24, 2, 64)],
)  # fmt: skip
@on_host.recalled_for("derby_mrope")
def test_heads_of_128_in_cuda(tokens, q_heads, kv_heads, time, height, heads, threads):
    """The kernel of many heads a thread, on the CPU, with outputs of its own and in place."""
    case = case_of("mrope", num_tokens=tokens, num_q_heads=q_heads, num_kv_heads=kv_heads, section_time=time,
                   section_height=height, section_width=64 - time - height)  # fmt: skip
    call = functools.partial(on_host.emulated("mrope").run_with, {"heads": heads, "threads": threads})
    inputs = with_angles_of_their_own(inputs_of("mrope", case))
    assert inputs["query"].shape[2] == 128
    assert verdict("mrope", call, inputs, case).status is Status.PASSED
    assert in_place_verdict("mrope", call, inputs).status is Status.PASSED


@pytest.mark.parametrize(
    "edit",
    [("(column >= h.time) + ", ""), ("first = group % groups * HEADS", "first = group % groups"),
     ("b0 * c[0] + a0 * s[0]", "b0 * c[0] - a0 * s[0]"),
     ("(column >= h.time + h.height)", "(column > h.time + h.height)")],
)  # fmt: skip
@on_host.recalled_for("derby_mrope")
def test_mutants_of_the_cuda_kernel_fail(edit):
    case = case_of("mrope", num_tokens=5, num_q_heads=7, num_kv_heads=3, section_time=16, section_height=24,
                   section_width=24)  # fmt: skip
    for edits in ((), (edit,)):
        call = functools.partial(on_host.emulated("mrope", *edits).run_with, {"heads": 3, "threads": 64})
        inputs = with_angles_of_their_own(inputs_of("mrope", case))
        assert (verdict("mrope", call, inputs, case).status is Status.PASSED) == (not edits)


@pytest.mark.parametrize("half", [1, 2, 4, 8, 64, 128])
def test_no_pair_is_held_by_two_threads(half, monkeypatch):
    """In place the second might read it after the first wrote it. A warp alone reads before it writes."""
    solution, launched = module("mrope"), []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *values, **given: launched.append(given)

    monkeypatch.setattr(solution, "derby_mrope", Kernel())
    query, key = (torch.empty(5, heads, 2 * half, dtype=torch.bfloat16, device="meta") for heads in (7, 2))
    inputs = query, key, None, None, half, 0, 0
    for config in solution.candidates(*inputs):
        solution.run_with(config, *inputs, query, key)
    assert len(launched) > 3
    for given in launched:
        assert given["num_warps"] == 1 or given["ROWS"] * half >= 32 * given["num_warps"]


@pytest.mark.interpreted
def test_far_positions():
    """At position 10 million a float32 angle would be off by half a turn; the definition computes in float64."""
    case = case_of("fused_qkv_rope", num_tokens=4)
    inputs = inputs_of("fused_qkv_rope", case)
    inputs["positions"] = torch.tensor([0, 131071, 1_000_003, 10_000_019], dtype=torch.int32)
    assert status("fused_qkv_rope", inputs, case) is Status.PASSED


@pytest.mark.interpreted
@pytest.mark.parametrize("name", ["equal", "minus infinity", "zeros of both signs", "large", "steep"])
@on_host.recalled_for("derby_moe_topk_gating_softmax", compiler=on_host.interpreter())
def test_logits_of_every_kind(name):
    case = case_of("moe_topk_gating_softmax", num_tokens=6, num_experts=99)
    inputs = inputs_of("moe_topk_gating_softmax", case)
    logits = inputs["gating_logits"]
    if name == "equal":
        logits.fill_(-3.0)
    elif name == "minus infinity":
        logits[:, 9:] = -math.inf
    elif name == "zeros of both signs":
        logits.fill_(-0.0)[:, ::3] = 0.0
    else:
        logits.mul_(1e4 if name == "large" else 12.0)
    assert status("moe_topk_gating_softmax", inputs, case) is Status.PASSED
    if name in ("equal", "zeros of both signs"):
        outputs = outputs_of("moe_topk_gating_softmax", case)
        module("moe_topk_gating_softmax").run(*inputs.values(), *outputs.values())
        assert (outputs["topk_ids"] == torch.arange(8)).all(), "of equal logits the lower index first"


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "operator, old, new",
    [
        ("fused_qkv_rope", "output, rows, rotated, slope", "output, rows, rotated + 1, slope"),
        ("fused_qkv_rope", "row // NUM_HEADS", "row // NUM_HEADS * 0"),
        ("fused_qkv_rope", "((whole + 1) & 2) == 0", "(whole & 2) == 0"),
        ("fused_qkv_rope", "series = series * z + (1.0 / 6.0)", "series = series * z"),
        ("mrope", "(column >= TIME + HEIGHT)", "(column >= TIME + HEIGHT + 1)"),
        ("mrope", "+ head - Q_HEADS)", "+ (head - Q_HEADS) * 0)"),
        ("mrope", "first * c - second * s", "first * c + second * s"),
        ("moe_topk_gating_softmax", "/ total[:, None]", "/ tl.sum(best_keys, axis=1)[:, None]"),
        ("moe_topk_gating_softmax", "& 0x7FFFFFFF", "& 0x00000000"),
        ("moe_topk_gating_softmax", "keys = tl.where(expert == chosen[:, None], LOWEST, keys)", "pass"),
    ],
)
@on_host.recalled_for("derby_{operator}", compiler=on_host.interpreter())
def test_mutants_fail(operator, old, new):
    changes = {
        "fused_qkv_rope": {"num_tokens": 9, "num_heads": 6, "num_q_heads": 3, "num_kv_heads": 1},
        "mrope": {"num_tokens": 300, "num_q_heads": 3, "num_kv_heads": 2},
        "moe_topk_gating_softmax": {"num_experts": 9},
    }
    case = case_of(operator, **changes[operator])
    assert status(operator, inputs_of(operator, case), case, (old, new)) is not Status.PASSED


# Compiled -------------------------------------------------------------------------------------------------------------


def launches(operator, workload):
    """(kernel, signature, constants, options, integers that are multiples of 16) of every candidate at full shape."""
    definition = CATALOG.definition(operator)
    arguments = meta_arguments(operator, workload)
    solution = module(operator)
    found = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *values, **given: found.append((values, given))

    kernel, solution_name = getattr(solution, f"derby_{operator}"), f"derby_{operator}"
    setattr(solution, solution_name, Kernel())
    try:
        choices = solution.candidates(*arguments[: len(definition.inputs)])
        for config in [choice for choice in choices if "warps" in choice]:  # not those of the CUDA kernel
            solution.run_with(config, *arguments)
    finally:
        setattr(solution, solution_name, kernel)
    for values, given in found:
        constants = {key: value for key, value in given.items() if key.isupper()}
        signature, multiples = {}, []
        for name, value in zip(kernel.arg_names, values, strict=False):
            tensor = isinstance(value, torch.Tensor)
            signature[name] = "*" + TYPES[value.dtype] if tensor else {int: "i32", float: "fp32"}[type(value)]
            if isinstance(value, int) and value % 16 == 0:
                multiples.append(name)
        yield kernel, signature, constants, {"num_warps": given["num_warps"]}, multiples


@compiled
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_it_compiles(operator, target):
    """The first choice of the largest and of the smallest shape: wide accesses, no local memory, no barrier but one."""
    definition = CATALOG.definition(operator)
    ordered = sorted(
        CATALOG.workloads(operator), key=lambda workload: case_of_workload(definition, workload).sizes["num_tokens"]
    )
    for workload in {ordered[0].uuid: ordered[0], ordered[-1].uuid: ordered[-1]}.values():
        kernel, signature, constants, options, multiples = next(launches(operator, workload))
        ptx = compile_kernel(kernel, signature, constants, target, multiples_of_16=multiples, **options).asm["ptx"]
        assert f".target {target}" in ptx and "local" not in ptx
        if operator == "moe_topk_gating_softmax":
            assert "redux.sync.max.s32" in ptx and len(re.findall(r"bar\.sync", ptx)) <= 3
        else:
            assert "bar.sync" not in ptx
        wide = {"fused_qkv_rope": "v[24].b32", "mrope": "v4.b32", "moe_topk_gating_softmax": "v4.b32"}[operator]
        assert re.search(rf"ld\.global\.(L1::no_allocate\.)?{wide}", ptx)


# On a GPU -------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_candidate_at_full_shape(operator):
    expect_every_candidate_right(operator)
