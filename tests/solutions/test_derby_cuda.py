"""Common to the CUDA solutions of the small race: they compile, spill nothing, and name what is missing."""

import re

import on_host
import pytest
from rowwise_cases import CATALOG, expect_every_candidate_right, inputs_of, module, outputs_of, reference

from kernelderby.measure.judge.cases import small_cases
from kernelderby.measure.judge.correctness import judge
from kernelderby.rows.measurement import Status

MOST_REGISTERS = 128  # none needs more: two blocks of 256 threads fit on a multiprocessor at the least
SPILLED = {
    "derby_topk_filter_clusterILi1024ELi20E": 32,  # of 20 values and 64 registers a thread
    "derby_causal_conv1dILi8ELi8E": 4,  # of 80 registers, also for sm_90
}  # else for sm_100; none for sm_90
# With a Triton kernel beside the CUDA one.
HYBRID = ("moe_topk_gating_softmax", "mrope", "fused_qkv_rope", "fused_add_rms_norm", "layer_norm", "l2_norm")


@pytest.mark.parametrize(
    "operator, architecture",
    [
        (operator, architecture)
        for operator in (*on_host.OPERATORS, *HYBRID)
        for architecture in ("90a", "100a")
        if (operator, architecture) != ("topk_filter", "100a")
    ],
)  # takes the longest
def test_it_compiles_without_spills(operator, architecture):
    kernels = on_host.nvcc_report(operator, architecture)
    assert kernels and all(f"derby_{operator}" in kernel.name for kernel in kernels)
    for kernel in kernels:
        allowed = next((most for part, most in SPILLED.items() if part in kernel.name), 0)
        assert kernel.spilled <= allowed and kernel.registers <= MOST_REGISTERS, kernel


@pytest.mark.parametrize("operator", on_host.OPERATORS)
@on_host.recalled_for("derby_{operator}")
def test_small_cases_on_the_cpu(operator):
    """Every case of `derby check` without a GPU, where it runs Triton solutions only; one case in every candidate."""
    definition, solution = CATALOG.definition(operator), on_host.emulated(operator)
    small = reference(operator)
    for case in small_cases(definition, small.SMALL_AXES, small.SMALL_VARIANTS, 1):
        inputs = inputs_of(operator, case)
        choices = solution.candidates(*inputs.values())
        for config in choices if case.label.startswith("small") else choices[:1]:
            outputs = outputs_of(operator, case)
            solution.run_with(config, *inputs.values(), *outputs.values())
            assert judge(definition, small, inputs, outputs).status is Status.PASSED, (case.label, config)


@pytest.mark.parametrize("operator", (*on_host.OPERATORS, *HYBRID))
def test_stages_name_the_kernels(operator):
    """As nsys shows them: demangled, without the anonymous namespace's hash."""
    (stage,) = CATALOG.solution(f"derby_{operator}").stages
    for name in (f"void (anonymous namespace)::derby_{operator}<4, 8>(int)", f"derby_{operator}"):
        assert all(re.search(pattern, name) for pattern in stage.kernels)


@pytest.mark.parametrize("operator", (*on_host.OPERATORS, *HYBRID))
def test_all_sources_are_named(operator):
    sources = CATALOG.solution(f"derby_{operator}").sources
    assert sorted(module(operator, ("import importlib\n", "import importlib  # a copy\n")).library.sources) == sorted(
        path for path in sources if path.endswith((".cu", ".cuh"))
    )


def test_without_nvcc_it_says_so_in_one_line(monkeypatch, tmp_path):
    solution = module("moe_count_and_sort", ("import importlib\n", "import importlib  # without nvcc\n"))
    monkeypatch.setattr(solution.cuda_library.shutil, "which", lambda name: None)
    monkeypatch.setattr(solution.cuda_library.os, "access", lambda path, mode: False)
    with pytest.raises(RuntimeError, match="found no nvcc") as caught:
        solution.library.build("90a", tmp_path)
    assert "\n" not in str(caught.value)


def test_a_library_is_compiled_once(tmp_path):
    solution = module("moe_count_and_sort", ("import importlib\n", "import importlib  # compiled once\n"))
    try:
        solution.cuda_library.find_nvcc()
    except RuntimeError as error:
        pytest.skip(str(error))
    library = solution.library.build("90a", tmp_path)
    assert solution.library.build("90a", tmp_path) == library
    assert [path.name for path in tmp_path.iterdir()] == [library.name]
    assert solution.library.load(library).argtypes == solution.library.parameters


# On a GPU -------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("operator", on_host.OPERATORS)
def test_every_candidate_at_full_shape(operator):
    expect_every_candidate_right(operator)
