"""Each definition's tolerances: what is wrong fails, what is rounded elsewhere passes. At SMALL_AXES on the CPU, by the
judge's own comparison, with the inputs that its check draws: normal numbers, and the definition's INPUT_DRAWS."""

import types

import pytest
import test_attention_tolerances
import torch
from mutants import MUTANTS
from operators import CATALOG, ROOT, inputs_at, load

from kernelderby.measure.judge.cases import Case
from kernelderby.measure.judge.correctness import compare, judge, named_outputs
from kernelderby.measure.judge.draws import apply, of_generator
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.worker.candidate import Candidate
from kernelderby.measure.worker.executor import local_check
from kernelderby.rows.measurement import Status

NAMES = sorted(CATALOG.definitions)
# Sizes at which SMALL_AXES is too small for a wrong answer to show.
LARGER = {
    "unified_attention": test_attention_tolerances.LARGER["unified_attention"],
    "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048": {"seq_len": 64},
}
ROUNDED = {torch.bfloat16: 2**-9, torch.float16: 2**-12, torch.float32: 2**-24}  # half a unit in the last place


def edited(name, old, new):
    """The definition's module with one edit of its code."""
    text = CATALOG.definition(name).reference
    assert old in text, f"{name} has no {old!r} any more"
    module = types.ModuleType(name)
    exec(compile(text.replace(old, new), f"{name} with {new!r}", "exec"), module.__dict__)
    return module


def draws(name):
    """The inputs of each round of the judge's check."""
    definition = CATALOG.definition(name)
    for seed, draw in enumerate([{}, {}, *getattr(load(name), "INPUT_DRAWS", ())]):
        inputs = inputs_at(name, seed, **LARGER.get(name, {}), **of_generator(definition, draw))
        inputs.pop("routing", None)  # a value for the generator
        apply(definition, draw, inputs)
        yield inputs


def run(name, module, inputs):
    """Outputs of the definition's types."""
    definition = CATALOG.definition(name)
    with torch.no_grad():
        found = named_outputs(definition, module.run(**inputs))
    return {key: value.to(getattr(torch, definition.outputs[key].dtype)) for key, value in found.items()}


def statuses(name, wrong):
    """The statuses of wrong(inputs) for each draw."""
    return [judge(CATALOG.definition(name), load(name), inputs, wrong(inputs)).status for inputs in draws(name)]


@pytest.mark.parametrize(("name", "mutant"), [(name, mutant) for name, own in MUTANTS.items() for mutant in own])
def test_a_mutant_fails(name, mutant):
    module = edited(name, *MUTANTS[name][mutant])
    assert set(statuses(name, lambda inputs: run(name, module, inputs))) != {Status.PASSED}


def is_number(tensor):
    return tensor.is_floating_point() and tensor.element_size() > 1


def scaled(outputs):
    return {
        key: (value.float() * 1.05).to(value.dtype) if is_number(value) else value for key, value in outputs.items()
    }


def last_rows_zero(outputs):
    """A tenth of the rows, one at the least."""
    outputs = {key: value.clone() for key, value in outputs.items()}
    for value in outputs.values():
        if value.dim():
            value[-max(1, len(value) // 10) :] = 0
    return outputs


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in NAMES
        if any(spec.dtype in ("bfloat16", "float16", "float32") for spec in CATALOG.definition(name).outputs.values())
    ],
)
def test_five_percent_more_fails(name):
    assert set(statuses(name, lambda inputs: scaled(run(name, load(name), inputs)))) != {Status.PASSED}


@pytest.mark.parametrize("name", NAMES)
def test_the_last_rows_zero_fails(name):
    assert set(statuses(name, lambda inputs: last_rows_zero(run(name, load(name), inputs)))) != {Status.PASSED}


# Operators with FP8 outputs, and one with a bias as its only 16-bit input.
FP8_THEMSELVES = {
    "fp8_dynamic_per_token_quant",
    "per_token_group_quant_fp8",
    "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048",
}
NARROWED = [
    name
    for name in NAMES
    if name not in FP8_THEMSELVES
    and any(spec.dtype in ("bfloat16", "float16") for spec in CATALOG.definition(name).inputs.values())
]


@pytest.mark.parametrize("name", NARROWED)
def test_fp8_inside_fails(name):
    """Every input of 16 bits rounded to e4m3, each row by its largest number."""

    def narrow(tensor):
        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in (torch.bfloat16, torch.float16):
            return tensor
        scale = tensor.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / 448
        return ((tensor.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(tensor.dtype)

    def wrong(inputs):
        return run(name, load(name), {key: narrow(value) for key, value in inputs.items()})

    assert set(statuses(name, wrong)) != {Status.PASSED}


@pytest.mark.parametrize("name", NAMES)
def test_one_rounding_more_passes(name):
    """As an implementation gives them that adds in another order: off by half a unit in the last place."""

    def rounded(inputs):
        generator = torch.Generator().manual_seed(0)
        outputs = run(name, load(name), inputs)
        for key, value in outputs.items():
            if value.dtype in ROUNDED and "exact" not in {each.name for each in CATALOG.definition(name).tolerances}:
                off = 1 + ROUNDED[value.dtype] * (2 * torch.rand(value.shape, generator=generator) - 1)
                outputs[key] = (value.double() * off).to(value.dtype)
        return outputs

    assert set(statuses(name, rounded)) == {Status.PASSED}


@pytest.mark.parametrize("name", NAMES)
def test_float64_inside_passes(name):
    text = CATALOG.definition(name).reference
    module = types.ModuleType(name)
    wider = text.replace(".float()", ".double()").replace("torch.float32", "torch.float64")
    exec(compile(wider, f"{name} in float64", "exec"), module.__dict__)

    def wide(inputs):
        given = {
            key: value.double() if isinstance(value, torch.Tensor) and value.dtype is torch.float32 else value
            for key, value in inputs.items()
        }
        return run(name, module, given)

    assert set(statuses(name, wide)) == {Status.PASSED}


def test_the_check_itself_draws_small_inputs():
    """Two rounds with normal numbers pass; the round of INPUT_DRAWS fails, and the message names it."""
    name = "rms_norm"
    definition, module = CATALOG.definition(name), load(name)
    sizes = {axis: module.SMALL_AXES[axis] for axis in definition.axes}
    maker = InputMaker(
        definition, module, Case("", sizes, {"eps": module.SMALL_AXES["eps"]}, 0), torch.device("cpu"), ROOT
    )
    for run_it, expected in ((module.run, Status.PASSED), (edited(name, *MUTANTS[name]["eps 0"]).run, "wrong_values")):
        verdict = local_check(Candidate(run_it, False, definition), module, maker)
        assert verdict.status == expected
    assert verdict.message.startswith("with hidden_states x 0.001: bfloat16_roundings: ")


def test_bounds_name_the_output_and_the_size():
    definition = CATALOG.definition("fused_moe")
    reference = {"output": torch.randn(50, 264, generator=torch.Generator().manual_seed(0)) * 1e3}
    rows = {"output": reference["output"].clone()}
    rows["output"][7] = 0
    more = {"output": reference["output"] * 0.95}
    off = "a row of output is off by 1.000 of its norm; at most 0.05 is allowed"
    assert off in compare(definition, rows, reference).message
    off = "output is 0.950 times the reference; at most 0.02 off is allowed"
    assert off in compare(definition, more, reference).message
    assert compare(definition, reference, reference).status is Status.PASSED
    nothing = {"output": torch.zeros(0, 264)}
    assert compare(definition, nothing, nothing).status is Status.PASSED


def test_one_rounding_of_a_narrow_row_is_no_error():
    """2,000 rows of 8 values and of 1; in every 50th row the sums lie on the edge between two bfloat16 values."""
    definition = CATALOG.definition("gemm_bf16")
    for width in (8, 1):
        exact = torch.randn(2000, width, generator=torch.Generator().manual_seed(0)) * 64
        reference = {"output": exact.bfloat16()}
        every = (torch.arange(2000) % 50 == 0)[:, None]
        rounded = {"output": torch.where(every, reference["output"] * (1 + 2**-7), reference["output"])}
        assert compare(definition, rounded, reference).status is Status.PASSED
        gone = {"output": reference["output"].clone()}
        gone["output"][exact.abs().amax(1).argmax()] = 0
        assert "a row of output is off by" in compare(definition, gone, reference).message
