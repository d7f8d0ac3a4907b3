"""Norms in CUDA, a block a row (common/rows.cuh), on the CPU (on_host.py): sizes, NaN and infinities; and mutants."""

import functools
import math
import re
from types import SimpleNamespace

import on_host
import pytest
import torch
from rowwise_cases import CATALOG, in_place_verdict, inputs_of, module, outputs_of, reference, spoil, verdict
from test_rowwise import sized

from kernelderby.rows.measurement import Status

OPERATORS = ("fused_add_rms_norm", "layer_norm", "l2_norm")
CASES = [(operator, form) for operator in OPERATORS for form in module(operator).FORMS]


def config_of(form):
    return dict(zip(("threads", "stream", "ahead"), form[1:], strict=True))


def status(operator, rows, form, *edits):
    case = sized(operator, rows, form[0])
    inputs = spoil(operator, inputs_of(operator, case))
    call = functools.partial(on_host.emulated(operator, *edits).run_with, config_of(form))
    return verdict(operator, call, inputs, case).status


@pytest.mark.parametrize(("operator", "form"), CASES, ids=str)
@on_host.recalled_for("derby_{operator}")
def test_every_form(operator, form):
    for rows in (1, 6):
        assert status(operator, rows, form) is Status.PASSED


@pytest.mark.parametrize("form", module("fused_add_rms_norm").FORMS, ids=str)
@on_host.recalled_for("derby_fused_add_rms_norm")
def test_the_sum_in_place(form):
    inputs = spoil("fused_add_rms_norm", inputs_of("fused_add_rms_norm", sized("fused_add_rms_norm", 5, form[0])))
    call = functools.partial(on_host.emulated("fused_add_rms_norm").run_with, config_of(form))
    assert in_place_verdict("fused_add_rms_norm", call, inputs).status is Status.PASSED


@pytest.mark.parametrize("operator", OPERATORS)
def test_no_rows(operator):
    form = module(operator).FORMS[0]
    case, config = sized(operator, 0, form[0]), config_of(form)
    inputs, outputs = inputs_of(operator, case), outputs_of(operator, case)
    module(operator).run_with(config, *inputs.values(), *outputs.values())


@pytest.mark.parametrize("operator", OPERATORS)
@on_host.recalled_for("derby_{operator}")
def test_what_is_not_finite_stays_in_its_row(operator):
    """As in the reference: also where squares leave float32's range, and where the first value of a row is the one."""
    form = module(operator).FORMS[-1]
    case = sized(operator, 9, form[0])
    inputs = inputs_of(operator, case)
    x = inputs["hidden_states"]
    places = [(0, math.nan), (7, math.nan), (0, math.inf), (9, -math.inf), (0, 1e20), (11, -1e20)]
    for row, (column, value) in enumerate(places):
        x[row, column] = value
    x[6], x[7] = 1e20, torch.tensor([1e20, -1e20]).repeat(form[0] // 2)
    outputs = outputs_of(operator, case)
    on_host.emulated(operator).run_with(config_of(form), *inputs.values(), *outputs.values())
    expected = reference(operator).run(**inputs)
    for found, wanted in zip(outputs.values(), expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(found.float(), wanted.float(), rtol=0.016, atol=1e-3, equal_nan=True)


MUTANTS = [
    ("fused_add_rms_norm", ("variance + rows.eps", "variance")),
    ("fused_add_rms_norm", ("if constexpr (OPERATOR != L2) results[i] *= weights[i];", "")),
    ("fused_add_rms_norm", ("values[v][i] += added[i];", "values[v][i] -= added[i];")),
    ("fused_add_rms_norm", ("v * step, packed(values[v])", "v * step, x[v]")),
    ("layer_norm", ("mean = shift + off;", "mean = off;")),
    ("layer_norm", ("- off * off;", ";")),
    ("layer_norm", ("there(v) ? values[v][i] - shift : 0.0f", "values[v][i] - shift")),
    ("l2_norm", ("OPERATOR == L2 ? sums[0] : sums[0] / columns", "sums[0] / columns")),
    ("l2_norm", ("warp < WARPS", "warp < 1")),
]


@pytest.mark.parametrize(("operator", "edit"), MUTANTS, ids=[f"{name}: {old[:40]}" for name, (old, _) in MUTANTS])
@on_host.recalled_for("derby_{operator}")
def test_mutants_fail(operator, edit):
    form = module(operator).FORMS[0]
    assert status(operator, 6, form) is Status.PASSED
    assert status(operator, 6, form, edit) is not Status.PASSED


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


@pytest.mark.parametrize("operator", OPERATORS)
def test_forms_are_those_of_the_kernel_and_tables_name_no_other(operator):
    one, streams = module(operator), {"NOTHING": "", "LOADS": "loads", "BOTH": "both"}
    source = CATALOG.solution(f"derby_{operator}").sources["kernel.cu"]
    compiled = re.findall(r"Form<(\d+), (\d+), (\w+), (\w+)>", source)
    assert tuple((int(c), int(t), streams[s], int(a == "true")) for c, t, s, a in compiled) == one.FORMS
    for gpu in one.tuned.FOUND.values():
        for key, config in gpu["table"].items():
            if "threads" in config:
                columns = int(key.split()[0].removeprefix("h"))
                assert (columns, *(config[name] for name in ("threads", "stream", "ahead"))) in one.FORMS, key


def test_a_form_is_offered_for_its_columns_on_a_gpu():
    one = module("l2_norm")
    for columns, is_cuda, count in ((2048, True, len(one.FORMS)), (2056, True, 0), (2048, False, 0)):
        x = SimpleNamespace(shape=(3, columns), is_cuda=is_cuda)
        assert len(one.block_rows.candidates(x, one.FORMS)) == count
