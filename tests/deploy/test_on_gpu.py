"""The installed wheel on the GPU that it was measured on: every operator at two recorded shapes, also in a graph."""

import importlib.util
import math
import sys
import warnings
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from kernelderby.catalog import Catalog
from kernelderby.measure.decoder import bench
from kernelderby.measure.decoder.layers import DecoderSizes, StepLoad
from kernelderby.measure.judge.cases import case_of_workload
from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.judge.definition import module_of
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.rows.measurement import Status
from tests.conftest import CHECKOUT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::ImportWarning"),  # FLA's, without flash_attn
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning"),  # torch's own, at torch.compile
]
NAME, OWN_NAME = "kernelderby_winners", "kernelderby_winners_installed"
MOST_BYTES = 1 << 28  # of a shape's inputs
CATALOG = Catalog.open(CHECKOUT)


@pytest.fixture(scope="module")
def package():
    """Under a name of its own: other tests import a package of plain torch under the usual one."""
    found = importlib.util.find_spec(NAME)
    if found is None or not torch.cuda.is_available():
        pytest.skip(
            f"{NAME} is not installed here: `derby export --wheel dist --gpu h200`, pip install --no-deps dist/*.whl"
        )
    folder = Path(found.origin).parent
    spec = importlib.util.spec_from_file_location(OWN_NAME, found.origin, submodule_search_locations=[str(folder)])
    module = sys.modules[OWN_NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if torch.cuda.get_device_name() not in module.DATA["gpus"]:
        pytest.skip(f"the wheel is of {module.DATA['gpus'][0]}")
    return module


def two_cases(package, name):
    """The smallest and the middle one of the listed shapes, of those that fit."""
    definition = CATALOG.definition(name)
    measured = {tuple(sizes) for sizes, _ in package.OPERATORS[name].about["points"]}
    axes = package.OPERATORS[name].selector.axes
    listed = [each for each in CATALOG.workloads(name) if tuple(each.axes[axis] for axis in axes) in measured]
    sized = sorted((_bytes(definition, each), each.uuid, each) for each in listed)
    fitting = [each for size, _, each in sized if size < MOST_BYTES] or [sized[0][2]]
    chosen = fitting[:1] + fitting[len(fitting) // 2 :][: len(fitting) > 1]
    return definition, [case_of_workload(definition, each) for each in chosen]


def _bytes(definition, workload):
    sizes = definition.sizes(workload.axes)
    return sum(
        math.prod(sizes[axis] for axis in spec.shape) * getattr(torch, spec.dtype).itemsize
        for spec in definition.inputs.values()
        if spec.shape is not None
    )


def prepared(package, name, case):
    definition = CATALOG.definition(name)
    module = module_of(definition)
    inputs = InputMaker(definition, module, case, torch.device("cuda"), CHECKOUT).make()
    return definition, module, inputs


def passes(definition, module, inputs, outputs):
    verdict = judge(definition, module, inputs, outputs)
    assert verdict.status is Status.PASSED, verdict


@pytest.mark.parametrize("name", sorted(CATALOG.definitions))
def test_every_operator_is_right_and_captured_without_compilation(package, name, monkeypatch):
    if name not in package.OPERATORS or not package.OPERATORS[name].selector.points:
        pytest.skip("no rows, so not in the wheel")
    definition, cases = two_cases(package, name)
    for case in cases:
        definition, module, inputs = prepared(package, name, case)
        given = list(inputs.values())
        returned = getattr(package, name)(*given)
        outputs = dict(zip(definition.outputs, returned if isinstance(returned, tuple) else (returned,), strict=True))
        passes(definition, module, inputs, outputs)

        run_out = getattr(package, f"{name}_out")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            run_out(*given, *outputs.values())
        torch.cuda.synchronize()
        of_torch = allocated_by_an_empty_graph(stream)
        graph = torch.cuda.CUDAGraph()
        with monkeypatch.context() as watched:
            compiled = watch_compilers(watched)
            before = torch.cuda.memory_stats()["allocation.all.allocated"]
            with torch.cuda.graph(graph, stream=stream):
                run_out(*given, *outputs.values())
            allocations = torch.cuda.memory_stats()["allocation.all.allocated"] - before - of_torch
        for tensor in outputs.values():
            tensor.view(torch.uint8).fill_(0x7F)
        graph.replay()
        torch.cuda.synchronize()
        passes(definition, module, inputs, outputs)
        ran = package.OPERATORS[name].order(case.sizes, torch.device("cuda", 0))[0]
        counts = f"in capture: {allocations} allocations, {len(compiled)} compiled"
        print(f"{name:32.32} {ran:38.38} {counts}; {case.label:.30}")
        assert not compiled
        del graph


def allocated_by_an_empty_graph(stream):
    """Tensors of torch's own, for its random numbers."""
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    with warnings.catch_warnings(action="ignore"), torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
        pass
    return torch.cuda.memory_stats()["allocation.all.allocated"] - before


def watch_compilers(monkeypatch):
    """Records the requests to Triton and nvcc from now on."""
    import subprocess

    import triton

    asked = []
    monkeypatch.setattr(subprocess, "run", lambda command, *_, **__: asked.append(command))
    monkeypatch.setattr(
        triton.knobs.runtime, "jit_cache_hook", lambda **named: asked.append(named.get("repr")) and None
    )
    return asked


@pytest.mark.parametrize("name", ["rms_norm", "fused_add_rms_norm_", "silu_and_mul_out", "moe_topk_gating_softmax"])
def test_opcheck(package, name):
    if not hasattr(package, name):
        pytest.skip("no rows, so not in the wheel")
    base = name.removesuffix("_out").removesuffix("_")
    _, cases = two_cases(package, base)
    definition, _, inputs = prepared(package, base, cases[0])
    given = list(inputs.values())
    if name.endswith("_out"):
        given += map(package.OPERATORS[base].layout(given).empty, definition.outputs)
    checked = torch.library.opcheck(getattr(package, name), given)
    assert set(checked.values()) == {"SUCCESS"}, checked


def test_off_the_measured_region_no_kernel_of_ours_runs(package, monkeypatch):
    monkeypatch.setattr(sys.modules[f"{OWN_NAME}.selector"], "SLACK", 16.0)
    operator = package.OPERATORS["rms_norm"]
    device = torch.device("cuda", 0)
    kinds = operator.selector.kinds
    assert kinds[operator.order({"num_tokens": 64, "hidden_size": 4096}, device)[0]] == "own"
    width = operator.selector.ranges["hidden_size"][0] // 32
    assert "own" not in {kinds[each] for each in operator.order({"num_tokens": 64, "hidden_size": width}, device)}
    hidden, weight = torch.randn(64, width, device=device).bfloat16(), torch.randn(width, device=device).bfloat16()
    expected = torch.nn.functional.rms_norm(hidden.float(), (width,), weight.float(), 1e-6).bfloat16()
    torch.testing.assert_close(package.rms_norm(hidden, weight, 1e-6), expected, atol=2e-2, rtol=2e-2)


def test_another_dtype_is_one_line(package):
    half = torch.ones(4, 4096, device="cuda", dtype=torch.float16)
    with pytest.raises(ValueError, match="^rms_norm: hidden_states is torch.float16, must be bfloat16$"):
        package.rms_norm(half, half[0], 1e-6)


def test_a_decoders_steps_are_captured_and_equal(package, monkeypatch):
    monkeypatch.setattr(bench, "package", lambda: package)
    sizes = DecoderSizes("experts", 2, 2048, 32, 4, 128, 768, 1000, experts=128, top_k=8)
    [cell] = bench.bench(sizes, [StepLoad(4, 4, 256)], torch.device("cuda"), rounds=2)
    assert set(cell.step_us) == set(bench.VARIANTS) and max(cell.difference.values()) < 0.05
    assert cell.gains_us.keys() >= {"fused_moe_bf16", "rms_norm"}
