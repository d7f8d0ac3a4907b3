"""Inputs that nobody lists, made from each definition for each solution of ours, so that a new one is tested at once.

What a definition forbids (types, strides, devices, sizes that disagree, constraints that do not hold) must end in a
ValueError of one line that names solution and input, before anything is launched: all of it, always. What it allows
(axes of 0, 1 and odd sizes, addresses that nothing divides) must be right, or such a line where nobody's hardware can:
in Triton's interpreter, and on the CPU for the CUDA kernels that g++ compiles. A few cases of each solution;
KERNELDERBY_TESTS_ODD=all takes every one, in some minutes.
"""

import dataclasses
import functools
import math
import os
import random
import re
import sys

import interpreted
import on_host
import pytest
import torch
from rowwise_cases import CATALOG, inputs_of, outputs_of, reference

from kernelderby.catalog import constraints
from kernelderby.measure.judge.cases import Case
from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.judge.inputs import torch_dtype
from kernelderby.measure.run.fresh import fresh_shapes
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

EVERY, FEW = os.environ.get("KERNELDERBY_TESTS_ODD") == "all", 2
HOW = "all" if EVERY else ""  # what passed for a few says nothing about all
SOLUTIONS = sorted(name for name, solution in CATALOG.solutions.items() if solution.author == "kernelderby")
OTHER_TYPE = {1: torch.uint8, 2: torch.float16, 4: torch.float64, 8: torch.int32}  # by an element's bytes
SLOW = re.compile("moe_fp8_block_scale")  # one call takes minutes in the interpreter: test_triton_compact.py


@functools.cache
def loaded(name):
    """(module, definition) of a solution."""
    solution = CATALOG.solution(name)
    definition = CATALOG.definition(solution.definition)
    return sys.modules[load_solution(definition, solution).__module__], definition


def specs_of(definition):
    return {**definition.inputs, **definition.outputs}


def usual(definition):
    """Sizes of every axis, const ones as they are, and the plain numbers."""
    small = reference(definition.name).SMALL_AXES
    sizes = {axis: small[axis] if size is None else size for axis, size in definition.axes.items()}
    scalars = {name: small[name] for name, spec in definition.inputs.items() if spec.shape is None}
    return sizes, scalars


def arguments(definition, sizes, scalars):
    """name -> an input or output of these sizes, its contents whatever the memory holds: nothing reads them."""
    return {
        name: scalars[name]
        if spec.shape is None
        else torch.empty([sizes[axis] for axis in spec.shape], dtype=torch_dtype(spec.dtype))
        for name, spec in specs_of(definition).items()
    }


def strided(tensor):
    return torch.empty_strided(tensor.shape, [2 * stride for stride in tensor.stride()], dtype=tensor.dtype)


def shifted(tensor):
    """The same values at an address that only the element's size divides."""
    moved = tensor.new_empty(tensor.numel() + 1)[1:].view(tensor.shape)
    return moved.copy_(tensor)


def forbidden(definition, tensors):
    """(the change, arguments, names of which one must be in the message)."""
    specs = specs_of(definition)
    named = [name for name, spec in specs.items() if spec.shape is not None]
    for name in named:
        tensor, axes = tensors[name], specs[name].shape
        changed = [("no tensor", None), ("a rank more", tensor[None]), ("meta", tensor.to("meta"))]
        other = OTHER_TYPE[tensor.element_size()]
        changed.append(("type", torch.empty(tensor.shape, dtype=torch.int32 if other is tensor.dtype else other)))
        if not strided(tensor).is_contiguous():
            changed.append(("strides", strided(tensor)))
        for what, value in changed:
            yield f"{name}: {what}", {**tensors, name: value}, [name]
        for place, axis in enumerate(axes):
            if sum(specs[each].shape.count(axis) for each in named) > 1:
                shape = [size + (at == place) for at, size in enumerate(tensor.shape)]
                yield f"{name}: {axis}", {**tensors, name: torch.empty(shape, dtype=tensor.dtype)}, named


def broken_constraints(definition, sizes, scalars):
    """(which, arguments): one axis of a size with which a constraint does not hold."""
    for text in definition.constraints:
        for axis, size in definition.axes.items():
            other = {**sizes, axis: sizes[axis] + 2}
            if size is None and axis in text and constraints.relation_holds(text, other) is False:
                yield f"{text}: {axis}", arguments(definition, other, scalars)


@pytest.mark.parametrize("name", SOLUTIONS)
def test_what_a_definition_forbids_is_one_line(name):
    module, definition = loaded(name)
    sizes, scalars = usual(definition)
    tensors, wrong = arguments(definition, sizes, scalars), []
    cases = [*forbidden(definition, tensors)]
    cases += [
        (what, given, list(specs_of(definition))) for what, given in broken_constraints(definition, sizes, scalars)
    ]
    for what, given, names in cases:
        try:
            module.run(*given.values())
            told = "nothing"
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
        if not re.fullmatch(rf"ValueError: {name}: ({'|'.join(names)}) .+", told):
            wrong.append(f"{what}: {told[:200]}")
    assert not wrong, "\n".join(wrong)
    assert len(cases) > 4 * (len(tensors) - len(scalars))


@pytest.mark.parametrize("name", SOLUTIONS)
def test_addresses_that_are_refused_are_refused_of_every_tensor(name):
    """Where a contract asks for aligned addresses; the others must take any (tested by the odd shapes)."""
    module, definition = loaded(name)
    tensors = arguments(definition, *usual(definition))
    if not module.check.mask:
        return
    for each in module.check.tensors:
        with pytest.raises(ValueError, match=f"^{name}: {each} begins at an address that 16 does not divide; pass a "):
            module.run(*{**tensors, each: tensors[each].new_empty(tensors[each].numel() + 1)[1:].view(
                tensors[each].shape)}.values())  # fmt: skip


def odd_cases(definition):
    """Each axis at 0, 1, and two odd sizes, the others as in SMALL_AXES, and drawn ones; of the ones that the reference
    can do."""
    module = reference(definition.name)
    values = {**module.SMALL_AXES}
    scalars = {name: values[name] for name, spec in definition.inputs.items() if spec.shape is None}
    generator = {name: value for name, value in values.items() if name not in {*definition.axes, *scalars}}
    sizes = {axis: values[axis] for axis in definition.axes}
    for axis, const in definition.axes.items():
        for size in (0, 1, values[axis] + 1, 2 * values[axis] - 1) if const is None else ():
            other = {**sizes, axis: size}
            if not any(constraints.relation_holds(text, other) is False for text in definition.constraints):
                yield Case(f"{axis}={size}", other, scalars, 7, generator=generator)
    if hasattr(module, "AXES_SPACE"):
        for shape in fresh_shapes(CATALOG, definition, module, "odd", 6, "cpu"):
            yield shape.case()


def of_reference(definition, case):
    """The inputs of a case; None where the operator does not have it."""
    try:
        inputs = inputs_of(definition.name, case)
        reference(definition.name).run(**inputs)
    except Exception:  # sizes that only generate_inputs or the reference could tell to disagree
        return None
    if "cache_len" in case.sizes and bool((inputs["context_lens"] > case.sizes["cache_len"]).any()):
        return None  # contexts longer than their caches
    for name in {"cu_seqlens", "cu_seqlens_q"} & {*inputs}:  # more sequences than tokens, say
        starts = inputs[name]
        if bool((starts.diff() < 0).any()) or int(starts[-1]) != case.sizes["num_tokens"]:
            return None
    return inputs


def wanting_gradients(tensors):
    """The same memory, as a model's weights lie outside of torch.no_grad()."""
    return [
        value.detach().requires_grad_() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for value in tensors.values()
    ]


def told_of(name, run, definition, case, inputs, move):
    """The complaints about a call, empty if it is right; `move`: its tensors lie at odd addresses. All want
    gradients; no solution's call takes part in them."""
    outputs = outputs_of(definition.name, case)
    if move:
        inputs = {key: shifted(value) if isinstance(value, torch.Tensor) else value for key, value in inputs.items()}
        outputs = {key: shifted(value) for key, value in outputs.items()}
    written = wanting_gradients(outputs)
    try:
        run(*wanting_gradients(inputs), *written)
        assert all(each.is_leaf for each in written), "an output has a history"
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        fine = re.fullmatch(rf"ValueError: {name}: .+", told) and (move or "fresh" not in case.label)
        return "" if fine else told[:300]
    verdict = judge(definition, reference(definition.name), inputs, outputs)
    return "" if verdict.status is Status.PASSED else f"{verdict.status}: {verdict.message}"


def chosen(name, definition):
    """Every case in any order; else the smallest that is drawn, and some of the others until FEW can be done."""
    cases = list(odd_cases(definition))
    random.Random(name).shuffle(cases)
    if EVERY:
        return cases
    drawn = [case for case in cases if "fresh" in case.label]
    smallest = sorted(drawn, key=lambda case: math.prod(case.sizes.values()))[:1]
    return smallest + [case for case in cases if case not in drawn]


def problems(name, run, definition):
    done, found = 0, []
    for case in chosen(name, definition):
        inputs = of_reference(definition, case)
        if inputs is None:
            continue
        done += 1
        for move in (False, True) if EVERY else (done == FEW,):
            if told := told_of(name, run, definition, case, inputs, move):
                found.append(f"{case.label}{' moved' * move}: {told}")
        if done == FEW and not EVERY:
            break
    assert done, "no case is the operator's"
    return found


TRITON = [name for name in SOLUTIONS if CATALOG.solution(name).requires.cpu and not SLOW.search(name)]


@pytest.mark.interpreted
@pytest.mark.parametrize("name", TRITON)
@on_host.recalled_for("{name}", compiler=on_host.interpreter() + HOW)
def test_odd_shapes_are_right_and_forbidden_ones_refused(name):
    module, definition = loaded(name)
    assert not problems(name, module.run, definition)


@interpreted.compiled
@pytest.mark.parametrize("operator", on_host.OPERATORS)
@on_host.recalled_for("derby_{operator}", compiler=HOW)
def test_odd_shapes_in_cuda(operator):
    module, definition = on_host.emulated(operator), CATALOG.definition(operator)
    assert not problems(f"derby_{operator}", module.run, definition)


CUDA = [
    name
    for name, solution in sorted(CATALOG.solutions.items())
    if name in SOLUTIONS and not solution.requires.cpu and not SLOW.search(solution.definition)
]
# A line of the solution itself, or of what would have launched: a library, torch without CUDA, Triton without a driver.
ENDED = r"ValueError: {}: .+|.*(\bcpu\b|compiled with CUDA|active drivers).*"


@pytest.mark.parametrize("name", CUDA)
def test_the_host_takes_sizes_of_0_and_1(name):
    """The code that chooses and plans a CUDA kernel reaches its launch, on a machine without a GPU too."""
    module, definition = loaded(name)
    consts = {axis: size for axis, size in definition.axes.items() if size is not None}
    wrong, done = [], 0
    for case in odd_cases(definition):
        case = dataclasses.replace(case, sizes={**case.sizes, **consts})
        if not re.fullmatch(r"\w+=[01]", case.label) or (inputs := of_reference(definition, case)) is None:
            continue
        done += 1
        try:
            module.run(*inputs.values(), *outputs_of(definition.name, case).values())
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            if not re.fullmatch(ENDED.format(name), told):
                wrong.append(f"{case.label}: {told}")
    assert done and not wrong, "\n".join(wrong)
