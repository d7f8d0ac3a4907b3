"""What a rival's [requires] says, its code says too: called without the library, it raises one line that names it, and
compiles and loads nothing. flashinfer-bench, which reads no [requires], then writes that line into the row's log."""

import importlib.util
import sys

import pytest
import torch

from kernelderby.catalog import Catalog
from kernelderby.measure.judge.cases import small_cases
from kernelderby.measure.judge.definition import load_definition_module
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.worker.build import load_solution

CATALOG = Catalog.open(__file__.rpartition("/tests/")[0])
NEEDED = {
    name: libraries
    for name, solution in CATALOG.solutions.items()
    if solution.author not in ("kernelderby", "baseline")
    and (libraries := {module.partition(".")[0] for module in solution.requires.modules} - {"torch", "triton"})
}


def first_case(definition, module):
    cases = small_cases(definition, module.SMALL_AXES, module.SMALL_VARIANTS, 1)
    return next(case for case in cases if all(case.sizes.values()))


def block(monkeypatch, modules):
    """As if they were not installed."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name in modules else find_spec(name, *rest)
    )
    for known in [known for known in sys.modules if known.partition(".")[0] in modules]:
        monkeypatch.delitem(sys.modules, known)
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)


def test_every_author_with_a_library_is_among_them():
    authors = {CATALOG.solution(name).author for name in NEEDED}
    assert authors >= {"deepgemm", "fla", "flashinfer", "flashmla", "sgl-kernel", "vllm"} and "torch" not in authors


@pytest.mark.interpreted
@pytest.mark.parametrize("name", NEEDED)
def test_a_missing_library_is_one_line_that_names_it(name, monkeypatch):
    """In the interpreter: deepgemm's have Triton kernels before their first GEMM."""
    solution = CATALOG.solution(name)
    definition = CATALOG.definition(solution.definition)
    module = load_definition_module(definition)
    maker = InputMaker(definition, module, first_case(definition, module), torch.device("cpu"), CATALOG.root)
    inputs = maker.make()
    places = maker.output_places().values() if solution.destination_passing_style else ()
    outputs = [torch.empty(shape, dtype=dtype) for shape, dtype in places]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    block(monkeypatch, NEEDED[name])
    with pytest.raises((ImportError, RuntimeError)) as raised:
        load_solution(definition, solution)(*inputs.values(), *outputs)
    said = str(raised.value)
    assert any(library in said for library in NEEDED[name]) and "\n" not in said
