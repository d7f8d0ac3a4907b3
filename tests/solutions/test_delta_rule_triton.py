"""The Triton solutions of the gated delta rule: in the interpreter with mutants that must fail; every kernel at full
shape compiled for sm_90 and sm_100."""

import dataclasses
import math
import sys

import pytest
import torch
import triton
from aot import compile_kernel
from interpreted import compiled
from moe_cases import ROOT
from on_host import interpreter, recalled_for

from kernelderby.catalog import Catalog
from kernelderby.measure.judge.cases import small_cases
from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.judge.definition import load_definition_module
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

CATALOG = Catalog.open(ROOT)
UPDATE, VARLEN, STATE, OUTPUT = OPERATORS = (
    "gated_delta_rule_update",
    "gated_delta_rule_varlen",
    "chunk_gated_delta_rule_state",
    "chunk_delta_rule_output",
)
TWO_CHUNKS = {
    UPDATE: {"num_tokens": 70},
    VARLEN: {"num_tokens": 150},
    STATE: {},
    OUTPUT: {},
}  # the second one not whole


def one_key(inputs):
    """All tokens have the same key, the corrections full strength, and nothing decays: the hardest system to solve."""
    inputs["k"][:] = inputs["k"][0]
    inputs["b"].fill_(20)
    inputs["a"].fill_(-40)


def solved(operator, variant, *edits, change=None):
    """The verdict on one small case of derby_<operator>_triton with edited sources; change(inputs)."""
    definition, solution = CATALOG.definition(operator), CATALOG.solution(f"derby_{operator}_triton")
    sources = dict(solution.sources)
    for old, new in edits:
        (holder,) = (path for path, text in sources.items() if text.count(old) == 1)
        sources[holder] = sources[holder].replace(old, new)
    reference = load_definition_module(definition)
    (case,) = small_cases(definition, reference.SMALL_AXES, [variant], 1)
    maker = InputMaker(definition, reference, case, torch.device("cpu"), ROOT)
    inputs = maker.make(0)
    if change:
        change(inputs)
    outputs = {
        name: torch.full(shape, float("nan"), dtype=dtype) for name, (shape, dtype) in maker.output_places().items()
    }
    load_solution(definition, dataclasses.replace(solution, sources=sources))(*inputs.values(), *outputs.values())
    return judge(definition, reference, inputs, outputs).status


@pytest.mark.interpreted
@pytest.mark.parametrize("operator", OPERATORS)
@recalled_for("derby_{operator}_triton", compiler=interpreter())
def test_two_chunks_against_the_definition(operator):
    assert solved(operator, TWO_CHUNKS[operator]) is Status.PASSED


@pytest.mark.interpreted
def test_few_tokens_one_by_one():
    assert solved(UPDATE, {"num_tokens": 5}) is Status.PASSED


@pytest.mark.interpreted
@recalled_for(f"derby_{UPDATE}_triton", compiler=interpreter())
def test_the_hardest_system():
    assert solved(UPDATE, {"num_tokens": 70}, change=one_key) is Status.PASSED
    squares = "for _ in tl.static_range(3)"
    assert solved(UPDATE, {"num_tokens": 70}, (squares, squares.replace("3", "2")), change=one_key) is not Status.PASSED


def all_or_nothing(inputs):
    inputs["a"][::3], inputs["a"][1::3] = math.inf, -math.inf


@pytest.mark.interpreted
@recalled_for(f"derby_{UPDATE}_triton", compiler=interpreter())
def test_decays_of_zero_and_one():
    assert solved(UPDATE, {"num_tokens": 70}, change=all_or_nothing) is Status.PASSED
    least = "tl.where(log < -128.0, -128.0, log)"
    assert solved(UPDATE, {"num_tokens": 70}, (least, "log"), change=all_or_nothing) is not Status.PASSED


MUTANTS = [
    (OUTPUT, "token[:, None] >= token[None, :]", "token[:, None] > token[None, :]"),
    (OUTPUT, "tl.dot(q, h) * tl.exp(g)[:, None]", "tl.dot(q, h)"),
    (OUTPUT, "head // (v_heads // q_heads)", "head % q_heads"),
    (STATE, "slot = tl.load(slots_ptr).to(tl.int64)", "slot = tl.load(slots_ptr).to(tl.int64) * 0 + 1"),
    (STATE, "tl.exp(last - g)", "tl.exp(-g)"),
    (STATE, "state * tl.exp(last))", "state)"),
    (UPDATE, "quarter, system, 0.0)", "quarter, system * 0.0, 0.0)"),
    (UPDATE, "inverse * beta[None, :]", "inverse * beta[:, None]"),
    (UPDATE, "tl.dot(q, narrow) * of_q[:, None]", "tl.dot(q, narrow)"),
    (UPDATE, "tl.where(below | same, tl.dot(q", "tl.where(below, tl.dot(q"),
    (UPDATE, "state * of_state)", "state)"),
    (VARLEN, "first_place = start // CHUNK + sequence", "first_place = start // CHUNK"),
    (VARLEN, "token = start + number * CHUNK + rows", "token = number * CHUNK + rows"),
]


@pytest.mark.interpreted
@pytest.mark.parametrize("operator, old, new", MUTANTS)
@recalled_for("derby_{operator}_triton", compiler=interpreter())
def test_mutants_fail(operator, old, new):
    assert solved(operator, TWO_CHUNKS[operator], (old, new)) is not Status.PASSED


POINTERS = {
    "bf16": "q_ptr k_ptr v_ptr w_ptr u_ptr a_ptr b_ptr dt_bias_ptr h_ptr v_new_ptr output_ptr solve_ptr within_ptr",
    "fp32": "g_ptr A_log_ptr pool_ptr final_ptr factors_ptr",
    "i32": "slots_ptr offsets_ptr",
}
INTEGERS = [
    "tokens",
    "sequences",
    "q_heads",
    "k_heads",
    "v_heads",
    "key_dim",
    "value_dim",
    "key_stride",
    "value_stride",
]
TYPES = {name: f"*{dtype}" for dtype, names in POINTERS.items() for name in names.split()}
TYPES |= dict.fromkeys(INTEGERS, "i32") | {"scale": "fp32"}
KERNELS = {
    "derby_delta_rule_state_triton": STATE,
    "derby_delta_rule_output_triton": OUTPUT,
    "derby_delta_rule_recurrent_triton": VARLEN,
    "derby_delta_rule_prepare_triton": VARLEN,
    "derby_delta_rule_carry_triton": VARLEN,
}
CONSTANTS = {"CHUNK": 64, "KEYS": 128, "COLUMNS": 32, "STAGES": 2, "WIDEN": False}


@compiled
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@pytest.mark.parametrize("name", KERNELS)
@recalled_for(*(f"derby_{each}_triton" for each in sorted({*KERNELS.values()})), compiler=triton.__version__)
def test_full_shapes_compile(name, target):
    operator = KERNELS[name]
    solution = CATALOG.solution(f"derby_{operator}_triton")
    module = sys.modules[load_solution(CATALOG.definition(operator), solution).__module__]
    kernel = getattr(getattr(module, "delta_rule_triton", module), name)
    constants = {key: value for key, value in CONSTANTS.items() if key in kernel.arg_names}
    if operator == OUTPUT:
        constants["COLUMNS"] = 128
    built = compile_kernel(kernel, TYPES, constants, target, ("q_heads", "key_dim", "value_dim"), num_warps=4)
    product = "wgmma" if target == "sm_90" else "tcgen05"
    assert "recurrent" in name or product in built.asm["ptx"] or "mma.sync" in built.asm["ptx"]
    assert built.metadata.shared <= 227 * 1024
