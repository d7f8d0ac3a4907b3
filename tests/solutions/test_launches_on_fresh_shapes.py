"""Our solutions launch their kernels on fresh shapes as on a GPU: their host code takes every shape of the operator's
space, and Triton compiles each kernel with the arguments that it gets.

Other tests compile a kernel with arguments that they choose, or run it in Triton's interpreter, which takes what the
compiler refuses: code behind a return, say, in a branch that is decided beforehand.
"""

import math

import pytest
import torch
import triton
from interpreted import compiled
from moe_cases import ROOT
from on_host import recalled_for

from kernelderby.catalog import Catalog
from kernelderby.catalog.workloads import workload_of
from kernelderby.measure.certify.launches import launches_of
from kernelderby.measure.run.fresh import drawn_in_worker

CATALOG = Catalog.open(ROOT)
OWN = [each.name for each in CATALOG.solutions.values() if each.author == "kernelderby"]
MOST_BYTES = 1 << 31  # that the system need not give: no input is written


@compiled
@pytest.mark.parametrize("name", OWN)
@recalled_for("{name}", compiler=triton.__version__)
def test_it_launches_its_kernels(name):
    solution = CATALOG.solution(name)
    definition = CATALOG.definition(solution.definition)
    if "\nAXES_SPACE = " not in definition.reference:
        pytest.skip("its definition has no space to draw from")
    lines = drawn_in_worker(CATALOG.root, definition.name, "kept apart", 20).lines
    drawn = [workload_of(f"fresh shape {number}", line, definition) for number, line in enumerate(lines)]
    fitting = [each for each in drawn if tensor_bytes(definition, each) < MOST_BYTES][:8]
    assert len(fitting) > 3
    for uuid, launches in launches_of(definition, solution, tuple(fitting), "NVIDIA H200").items():
        assert not isinstance(launches, str), launches
        assert launches, uuid


def tensor_bytes(definition, workload):
    sizes = definition.sizes(workload.axes)
    tensors = [each for each in (*definition.inputs.values(), *definition.outputs.values()) if each.shape is not None]
    return sum(math.prod(sizes[axis] for axis in each.shape) * getattr(torch, each.dtype).itemsize for each in tensors)
