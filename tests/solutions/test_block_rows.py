"""Norms in CUDA, a block a row (common/rows.cuh), on the CPU (on_host.py): sizes, what is not a number; and mutants."""

import math

import on_host
import pytest
import torch
from rowwise_cases import inputs_of, module, outputs_of, reference, spoil, verdict
from test_rowwise import sized

from kernelderby.trace import Status

OPERATORS = ("rms_norm", "fused_add_rms_norm", "layer_norm", "l2_norm")
# Rows, columns, threads: lanes without a column, one warp, many, up to eight vectors a thread.
SIZES = [
    (1, 8, 32),
    (5, 136, 32),
    (3, 1152, 160),
    (3, 1152, 96),
    (2, 1152, 32),
    (4, 5120, 640),
    (2, 7168, 896),
    (2, 7168, 128),
    (2, 2048, 32),
    (1, 8192, 1024),
]


def status(operator, rows, columns, threads, *edits, stream="", ahead=1, change=None):
    case = sized(operator, rows, columns)
    inputs = spoil(operator, inputs_of(operator, case))
    if change:
        change(inputs["hidden_states"])
    config = {"threads": threads, "stream": stream, "ahead": ahead}
    found = on_host.emulated(operator, *edits)
    return verdict(operator, lambda *tensors: found.run_with(config, *tensors), inputs, case).status


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("operator", OPERATORS)
def test_sizes(operator, size):
    assert status(operator, *size) is Status.PASSED
    assert status(operator, *size, stream="both", ahead=0) is Status.PASSED


@pytest.mark.parametrize("operator", OPERATORS)
def test_no_rows(operator):
    case = sized(operator, 0, 64)
    config = {"threads": 32, "stream": "", "ahead": 1}
    inputs, outputs = inputs_of(operator, case), outputs_of(operator, case)
    module(operator).run_with(config, *inputs.values(), *outputs.values())


@pytest.mark.parametrize("operator", OPERATORS)
def test_what_is_not_finite_stays_in_its_row(operator):
    """As in the reference: also where squares leave float32's range, and where the first value of a row is the one."""
    case = sized(operator, 9, 264)
    inputs = inputs_of(operator, case)
    x = inputs["hidden_states"]
    places = [(0, math.nan), (7, math.nan), (0, math.inf), (9, -math.inf), (0, 1e20), (11, -1e20)]
    for row, (column, value) in enumerate(places):
        x[row, column] = value
    x[6], x[7] = 1e20, torch.tensor([1e20, -1e20]).repeat(132)
    outputs = outputs_of(operator, case)
    config = {"threads": 64, "stream": "loads", "ahead": 0}
    on_host.emulated(operator).run_with(config, *inputs.values(), *outputs.values())
    expected = reference(operator).run(**inputs)
    for found, wanted in zip(outputs.values(), expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(found.float(), wanted.float(), rtol=0.016, atol=1e-3, equal_nan=True)


MUTANTS = [
    ("rms_norm", ("variance + rows.eps", "variance")),
    ("rms_norm", ("if constexpr (OPERATOR != L2) results[i] *= weights[i];", "")),
    ("fused_add_rms_norm", ("values[v][i] += added[i];", "values[v][i] -= added[i];")),
    (
        "fused_add_rms_norm",
        ("rows.sum + start + thread + v * step, packed(values[v])", "rows.sum + start + thread + v * step, x[v]"),
    ),
    ("layer_norm", ("mean = shift + off;", "mean = off;")),
    ("layer_norm", ("- off * off;", ";")),
    ("layer_norm", ("there(v) ? values[v][i] - shift : 0.0f", "values[v][i] - shift")),
    ("l2_norm", ("OPERATOR == L2 ? sums[0] : sums[0] / columns", "sums[0] / columns")),
    ("l2_norm", ("place < warps ?", "place < 1 ?")),
]


@pytest.mark.parametrize(("operator", "edit"), MUTANTS, ids=[f"{name}: {old[:40]}" for name, (old, _) in MUTANTS])
def test_mutants_fail(operator, edit):
    assert status(operator, 6, 1160, 96) is Status.PASSED
    assert status(operator, 6, 1160, 96, edit) is not Status.PASSED


@pytest.mark.interpreted
@pytest.mark.parametrize("operator", OPERATORS)
def test_rows_that_lie_anywhere_take_the_triton_kernel(operator):
    """Addresses that 16 does not divide: the CUDA kernel is not called."""
    case = sized(operator, 3, 64)
    inputs, one = inputs_of(operator, case), module(operator)
    moved = torch.empty(3 * 64 + 1, dtype=torch.bfloat16)[1:].view(3, 64)
    inputs["hidden_states"] = moved.copy_(inputs["hidden_states"])
    config = {"threads": 32, "stream": "", "ahead": 0}
    found = verdict(operator, lambda *tensors: one.run_with(config, *tensors), inputs, case)
    assert found.status is Status.PASSED


@pytest.mark.parametrize("columns, threads", [(2048, [256, 128, 64]), (5120, [640, 320, 160]), (1152, [160, 96, 64])])
def test_a_block_is_offered_where_it_fits(columns, threads):
    block_rows = module("l2_norm").block_rows

    class OnGpu:
        shape, is_cuda = (3, columns), True

    found = block_rows.candidates(OnGpu)
    assert list(dict.fromkeys(config["threads"] for config in found)) == threads and len(found) <= 4
    for other in (0, 7, columns + 1):
        OnGpu.shape = (3, other)
        assert block_rows.candidates(OnGpu) == []
    OnGpu.shape, OnGpu.is_cuda = (3, columns), False
    assert block_rows.candidates(OnGpu) == []


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_tuned_block_fits_its_columns(operator):
    for gpu in module(operator).tuned.FOUND.values():
        for key, config in gpu["table"].items():
            if "threads" in config:
                vectors = int(key.split()[0].removeprefix("h")) / 8 / config["threads"]
                assert config["threads"] % 32 == 0 and vectors <= 8, key
                assert config["threads"] <= (1024 if vectors <= 2 else 512 if vectors <= 4 else 256), key
