"""The dense GEMMs of block_scaled_mm (both outputs): CUDA C++ for sm_90a, and with linear_sigmoid_mul Triton for sm_90
and sm_100.

Without a GPU: the kernels compile without spills that matter and multiply on the tensor cores, every output lies in
exactly one tile of one CTA, the Triton solutions are right in the interpreter. On a GPU: all workloads, odd sizes in
every form, CUDA graphs, mutants that must fail, compute-sanitizer.
"""

import ctypes
import dataclasses
import functools
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nvcc
import on_host
import pytest
import torch
import triton
from aot import compile_kernel
from interpreted import compiled
from rowwise_cases import CATALOG, case_of, inputs_of, meta_arguments, outputs_of, reference
from test_rowwise_compiles import Launch
from triton.tools.tensor_descriptor import TensorDescriptor

from kernelderby.measure.judge.cases import case_of_workload, small_cases
from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

OPERATORS = ("block_scaled_mm", "block_scaled_mm_bf16")
TRITON = *OPERATORS, "linear_sigmoid_mul"
VARIANTS = dict.fromkeys(OPERATORS, range(5))
FEW = {operator: range(5, 9) for operator in OPERATORS}  # block_scaled_few.cuh's
ODD = {
    "block_scaled_mm": [
        {"m": m, "n": 128 * n, "k": 128 * k, "num_n_blocks": n, "num_k_blocks": k}
        for m, n, k in [(1, 1, 1), (67, 3, 5), (131, 3, 2), (257, 2, 9), (900, 5, 3), (1000, 17, 4)]
    ],
}
ODD["block_scaled_mm_bf16"] = ODD["block_scaled_mm"]
FORMS = dict.fromkeys(OPERATORS, "block_scaled_launch.cuh")  # the file of cases
CUDA = [pytest.param(operator, variant) for operator in OPERATORS for variant in VARIANTS[operator]]


@functools.cache
def module(name, *edits):
    """The module of a solution; edits are (old, new) in whichever of its sources holds `old`."""
    solution = CATALOG.solution(name)
    sources = dict(solution.sources)
    for old, new in edits:
        holders = [path for path, text in sources.items() if old in text]
        assert len(holders) == 1, f"{old!r} stands in {holders}"
        sources[holders[0]] = sources[holders[0]].replace(old, new)
    run = load_solution(CATALOG.definition(solution.definition), dataclasses.replace(solution, sources=sources))
    return sys.modules[run.__module__]


def sm90(operator, *edits):
    return module(f"derby_{operator}_sm90", *edits)


def triton_solution(operator):
    return module(f"derby_{operator}_triton")


# Without a GPU --------------------------------------------------------------------------------------------------------


def written(operator, folder):
    """The sources of derby_<operator>_sm90, in `folder`."""
    for name, text in CATALOG.solution(f"derby_{operator}_sm90").sources.items():
        (folder / name).write_text(text)
    return folder


# Of programs that run on the host alone: kernels are left as PTX, not optimised.
OF_THE_HOST = ("-std=c++17", "-gencode=arch=compute_90a,code=compute_90a", "-Xcicc", "-O0")


@pytest.mark.parametrize("operator", OPERATORS)
def test_it_compiles(operator, tmp_path):
    compiler, source = on_host.nvcc_of(sm90(operator)), written(operator, tmp_path) / "kernel.cu"

    def spills_and_instructions():
        made = nvcc.compiled(compiler, source)
        cuobjdump = shutil.which("cuobjdump") or next(
            iter(Path(sys.modules["triton"].__file__).parent.glob("backends/nvidia/bin/cuobjdump")), None
        )
        sass = subprocess.run([cuobjdump, "--dump-sass", made.path], capture_output=True, text=True).stdout
        return [kernel.spilled for kernel in made.kernels], sorted(set(re.findall(r"\b[A-Z][A-Z0-9]+\.[\w.]+", sass)))

    spilled, instructions = nvcc.recalled([nvcc.release(compiler), nvcc.tokens(source)], spills_and_instructions)
    assert spilled == [0] * len(VARIANTS[operator])
    for wanted in ("QGMMA.64x128x32", "UTMALDG.2D.MULTICAST", "UTMASTG"):
        assert any(each.startswith(wanted) for each in instructions), wanted


COVERAGE = """
#include "hopper_tiles.cuh"
#include <cstdio>
#include <vector>
using namespace derby;
template <class F> int check(int m, int n, int group, int ctas) {
    Extent extent;
    const int grid = fill_extent<F>(&extent, m, n, 1, group, ctas);
    std::vector<int> count(size_t(m) * n);
    int longest = 0;
    for (int cta = 0; cta < grid; ++cta) {
        int rows_done = 0;
        for (Walk<F> walk(cta, grid); walk.more(extent); walk.next()) {
            const int2 tile = walk.tile(extent);
            const int rows = walk.half(extent) ? F::ROWS / 2 : F::ROWS;
            rows_done += rows;
            for (int r = tile.x; r < tile.x + rows && r < m; ++r)
                for (int c = tile.y; c < tile.y + F::COLUMNS && c < n; ++c) ++count[size_t(r) * n + c];
        }
        if (rows_done > longest) longest = rows_done;
    }
    for (int one : count) if (one != 1) return printf("m %d n %d: an output is done %d times\\n", m, n, one), 1;
    printf("%d ", longest);
    return grid > ctas || grid % F::CLUSTER;
}
template <class F> int all() {
    int bad = 0;
    for (int ctas : {4, 8, 132})
        for (int group : {1, 3, 8})
            for (int m : {1, 64, 129, 1000, 2049}) bad |= check<F>(m, 640, group, ctas) | check<F>(m, 128, group, ctas);
    return bad;
}
int main() {
    // 4533 rows of 2048: two whole turns and a half.
    const bool tail = check<Form<256, 128, false, 4, 2, true>>(4533, 2048, 8, 132);
    printf("\\n");
    return tail | all<Form<256, 128, false, 4, 2, true>>() | all<Form<256, 128, false, 4, 2, false>>() |
           all<Form<128, 128, false, 6, 1, true>>() | all<Form<64, 128, true, 6, 4, false>>() |
           all<Form<128, 256, false, 4, 2, false>>();
}
"""


def test_every_output_is_in_one_tile(tmp_path):
    (written("block_scaled_mm", tmp_path) / "coverage.cu").write_text(COVERAGE)
    made = nvcc.program(on_host.nvcc_of(sm90("block_scaled_mm")), tmp_path / "coverage.cu", *OF_THE_HOST)
    done = subprocess.run([made.path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[0].split() == [str(2 * 256 + 128)]


@pytest.mark.parametrize("operator", OPERATORS)
def test_all_sources_are_named(operator):
    sources = CATALOG.solution(f"derby_{operator}_sm90").sources
    named = {*sm90(operator).library.sources, *(sm90(operator).few_library.sources if operator in FEW else ())}
    assert sorted(named) == sorted(path for path in sources if path.endswith((".cu", ".cuh")))


@pytest.mark.parametrize("operator", OPERATORS)
def test_configurations_name_forms_of_the_kernel(operator):
    """Also: the library is called with as many numbers as its function takes."""
    one, sources = sm90(operator), CATALOG.solution(f"derby_{operator}_sm90").sources
    text = sources["kernel.cu"]
    forms = {int(number) for number in re.findall(r"case (\d+):", sources[FORMS.get(operator, "kernel.cu")])}
    assert forms == set(VARIANTS[operator])
    parameters = text.split(f"derby_{operator}_sm90_run(")[1].split(")")[0].split(",")
    assert len(parameters) == len(one.library.parameters)
    for workload in CATALOG.workloads(operator):
        inputs = meta_arguments(operator, workload)[: len(CATALOG.definition(operator).inputs)]
        configs = one.candidates(*inputs)
        assert {config["variant"] for config in configs} <= forms | {*FEW.get(operator, ())}
        assert len({tuple(config.items()) for config in configs}) == len(configs) <= 16


# Few rows on the CPU, where cuda_on_host/dense stands for TMA, mbarriers, wgmma and clusters.


def few_on_cpu(operator, folder, *edits):
    """The C function of the kernel for few rows, its sources edited (old, new)."""
    sources = {path.name: path for path in written(operator, folder).iterdir()}
    for name in ("ptx.cuh", "tma.cuh", "wgmma.cuh", "launch.cuh"):
        sources[name].write_text((on_host.HEADERS / "dense" / name).read_text())
    few = sources["block_scaled_few.cuh"]
    for old, new in edits:
        assert old in few.read_text()
        few.write_text(few.read_text().replace(old, new))
    beside = [path for name, path in sorted(sources.items()) if name.endswith(".cuh")]
    made = on_host.shared_library(sources["few.cu"], *on_host.FAST, header="dense_types.h", beside=beside)
    function = ctypes.CDLL(str(made)).derby_block_scaled_few_run
    function.argtypes = sm90(operator).few_library.parameters
    return function


def wrong_of_few(operator, function, splits, m, n, k, order):
    """Whether the result is. order: when copies and products happen, as late or as early as they could."""
    os.environ["EMULATED_ORDER"] = order
    case = case_of(operator, m=m, n=n, k=k, num_n_blocks=n // 128, num_k_blocks=k // 128)
    inputs, outputs = inputs_of(operator, case), outputs_of(operator, case)
    pointers = [tensor.share_memory_().data_ptr() for tensor in (*inputs.values(), *outputs.values())]
    if on_host.in_a_fork(lambda: function(*pointers, m, n, k // 128, splits, None)) != 0:
        return True
    return judge(CATALOG.definition(operator), reference(operator), inputs, outputs).status is not Status.PASSED


@pytest.mark.parametrize("operator", FEW)
@on_host.recalled_for("derby_{operator}_sm90")
def test_few_rows_on_the_cpu(operator, tmp_path):
    function = few_on_cpu(operator, tmp_path)
    for splits, m, n, k, order in (
        (1, 5, 256, 640, ""),
        (2, 70, 128, 640, "reversed"),
        (4, 64, 128, 640, ""),
        (8, 1, 128, 1152, ""),
    ):
        assert not wrong_of_few(operator, function, splits, m, n, k, order), (splits, m)
    assert function(*[None] * 5, 5, 128, 1, 2, None) != 0, "more CTAs than k blocks"


FEW_MUTANTS = [
    ("        shared.ring.wait(at);\n", ""),
    ("    cluster_sync();\n    for (int i = 0; i < each", "    for (int i = 0; i < each"),
    ("one[i + 2] * lower", "one[i + 2] * upper"),
]


@pytest.mark.parametrize("edit", FEW_MUTANTS, ids=["no wait", "no barrier", "another row's scale"])
@on_host.recalled_for("derby_block_scaled_mm_sm90")
def test_mutants_of_few_rows_fail(edit, tmp_path):
    function = few_on_cpu("block_scaled_mm", tmp_path, edit)
    assert any(wrong_of_few("block_scaled_mm", function, 2, 70, 128, 768, order) for order in ("", "reversed"))


def test_few_rows_compile(tmp_path):
    kernels = nvcc.kernels_of(on_host.nvcc_of(sm90("block_scaled_mm")), written("block_scaled_mm", tmp_path) / "few.cu")
    assert [kernel.spilled for kernel in kernels] == [0]


@pytest.mark.parametrize("multiprocessors", [2, 108, 132])
def test_the_choice_is_a_form_that_exists(multiprocessors):
    """At any size, on any GPU; few rows share the k blocks, many do not."""
    choice = sm90("block_scaled_mm").choice
    for m in (1, 9, 64, 65, 500, 16384):
        for n, k in ((128, 128), (1024, 7168), (24576, 1536), (7168, 18432), (512, 40960)):
            order = choice.ranked(m, n, k, multiprocessors)
            assert order and all(choice.fits(variant, k) for variant in order), (m, n, k)
    assert choice.ranked(1, 1024, 7168, 132)[0] == 8 and choice.ranked(8192, 4096, 4096, 132)[0] == 0


@pytest.mark.interpreted
@pytest.mark.parametrize("operator", TRITON)
def test_triton_small_cases(operator):
    """Every small case with the first candidate, one in all."""
    definition, solution, small = CATALOG.definition(operator), triton_solution(operator), reference(operator)
    for case in small_cases(definition, small.SMALL_AXES, small.SMALL_VARIANTS, 1):
        inputs = inputs_of(operator, case)
        choices = solution.candidates(*inputs.values())
        for config in choices if case.label.startswith("small") else choices[:1]:
            outputs = outputs_of(operator, case)
            solution.run_with(config, *inputs.values(), *outputs.values())
            assert judge(definition, small, inputs, outputs).status is Status.PASSED, (case.label, config)


TYPES = {torch.float8_e4m3fn: "fp8e4nv", torch.bfloat16: "bf16", torch.float32: "fp32"}


@compiled
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@pytest.mark.parametrize("operator", TRITON)
@on_host.recalled_for("derby_{operator}_triton", compiler=triton.__version__)
def test_triton_compiles(operator, target, monkeypatch):
    """The first choice of the smallest and of the largest workload: operands by TMA, products on the tensor cores."""
    solution, kernel = triton_solution(operator), f"derby_{operator.removesuffix('_bf16')}_triton"
    solution = getattr(solution, "block_scaled", solution)  # the module that has the kernel
    function = getattr(solution, kernel)
    sized = sorted(CATALOG.workloads(operator), key=lambda one: one.cost.bytes_written)
    for workload in (sized[0], sized[-1]):
        launch = Launch(function)
        monkeypatch.setattr(solution, kernel, launch)
        arguments = meta_arguments(operator, workload)
        solution.run_with(solution.candidates(*arguments[:4])[0], *arguments)
        signature = {
            name: f"tensordesc<{TYPES[value.base.dtype]}{value.block_shape}>".replace(" ", "")
            if isinstance(value, TensorDescriptor)
            else "*" + TYPES[value.dtype]
            if isinstance(value, torch.Tensor)
            else "i32"
            for name, value in zip(function.arg_names, launch.arguments, strict=False)
        }
        constants = {**launch.constants, **({"WIDEN": False} if "WIDEN" in launch.constants else {})}
        made = compile_kernel(function, signature, constants, target, num_warps=launch.num_warps)
        ptx = made.asm["ptx"]
        assert "cp.async.bulk.tensor.2d" in ptx
        if workload is sized[-1]:
            assert ("wgmma.mma_async" if target == "sm_90" else "tcgen05.mma") in ptx


# On a GPU -------------------------------------------------------------------------------------------------------------


def verdict_of(operator, solution, config, case):
    inputs, outputs = inputs_of(operator, case, "cuda"), outputs_of(operator, case, "cuda")
    solution.run_with(config, *inputs.values(), *outputs.values())
    torch.cuda.synchronize()
    return judge(CATALOG.definition(operator), reference(operator), inputs, outputs).status


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("operator", TRITON)
def test_every_workload(operator):
    """The choice at every workload; every candidate where the output is below 64 MB."""
    definition = CATALOG.definition(operator)
    for solution in (*([sm90(operator)] if operator in OPERATORS else []), triton_solution(operator)):
        for workload in CATALOG.workloads(operator):
            case = case_of_workload(definition, workload)
            inputs = inputs_of(operator, case, "cuda")
            small = workload.cost.bytes_written < 64 << 20
            for config in solution.candidates(*inputs.values()) if small else [solution.choose(*inputs.values())]:
                outputs = outputs_of(operator, case, "cuda")
                solution.run_with(config, *inputs.values(), *outputs.values())
                torch.cuda.synchronize()
                assert judge(definition, reference(operator), inputs, outputs).status is Status.PASSED, (case, config)


@pytest.mark.gpu
@pytest.mark.parametrize("operator, variant", CUDA)
def test_odd_sizes_in_every_form(operator, variant):
    for sizes in ODD[operator]:
        for group in (1, 8):
            config = {"variant": variant, "group": group}
            status = verdict_of(operator, sm90(operator), config, case_of(operator, **sizes))
            assert status is Status.PASSED, (sizes, group)


@pytest.mark.gpu
@pytest.mark.parametrize("operator", OPERATORS)
def test_captured_in_a_graph(operator):
    solution, case = sm90(operator), case_of(operator, **ODD[operator][3])
    inputs, outputs = inputs_of(operator, case, "cuda"), outputs_of(operator, case, "cuda")
    solution.run(*inputs.values(), *outputs.values())
    torch.cuda.synchronize()
    expected = {name: value.clone() for name, value in outputs.items()}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        solution.run(*inputs.values(), *outputs.values())
    for value in outputs.values():
        value.view(torch.uint8).fill_(255)
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(value, expected[name]) for name, value in outputs.items())


MUTANTS = {
    "block_scaled_mm": [("product[j] * lower", "product[j] * upper")],  # half of the rows get the scale of another
    "block_scaled_mm_bf16": [
        ("(t / 4 + lane / 16) ^", "(t / 4 + 1 - lane / 16) ^")
    ],  # neighbours of 8 columns change places
}
EDITS = [(name, *edit) for name, edits in MUTANTS.items() for edit in edits]


@pytest.mark.parametrize("operator, old, new", EDITS)
def test_mutants_are_other_kernels(operator, old, new):
    assert sm90(operator, (old, new)) is not sm90(operator)


@pytest.mark.gpu
@pytest.mark.parametrize("operator, old, new", EDITS)
def test_mutants_fail(operator, old, new):
    solution = sm90(operator, (old, new))
    case = case_of(operator, **ODD[operator][4])
    statuses = {
        verdict_of(operator, solution, {"variant": variant, "group": 8}, case) for variant in VARIANTS[operator]
    }
    assert Status.PASSED not in statuses


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_sanitizer(operator, tool):
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("no compute-sanitizer on the PATH")
    code = f"import test_gemm_sm90 as t; t.every_form({operator!r}, {tool!r})"
    done = subprocess.run(
        [sanitizer, "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


# What racecheck looks at in block_scaled_mm: forms without clusters, and every lane arrives where one does so for its
# warp, since it does not see that __syncwarp orders what the other lanes wrote or read before that arrival
# (docs/lab/gemm_and_experts_sm90.md).
ALONE = [
    ("Form<256, 128, false, 4, 2, true>", "Form<256, 128, false, 4, 1, true>"),
    ("Form<192, 128, false, 4, 2, true, 3>", "Form<192, 128, false, 4, 1, true, 3>"),
    ("Form<64, 128, true, 6, 2, false>", "Form<64, 128, true, 6, 1, false>"),
]
EVERY_LANE = [
    ("if (lane == 0) mbarrier_arrive(shared.barriers", "mbarrier_arrive(shared.barriers"),
    ("set_up<F>(shared.barriers, 3);", "set_up<F>(shared.barriers, 1 + 2 * WARP);"),
    ("if (F::CLUSTER == 1) barriers.release({s, 0});", "if (F::CLUSTER == 1) mbarrier_arrive(barriers.empty(s));"),
    ("(SPLIT ? 1 : GROUPS) * WARPGROUP / WARP * CLUSTER", "(SPLIT ? 1 : GROUPS) * WARPGROUP * CLUSTER"),
]


def every_form(operator, tool):
    """The sanitizer's cases: every form at two odd sizes; block_scaled_mm's without clusters for racecheck."""
    solution = sm90(operator, *ALONE + EVERY_LANE if tool == "racecheck" and operator in FORMS else ())
    for variant in VARIANTS[operator]:
        for sizes in ODD[operator][3:5]:
            assert verdict_of(operator, solution, {"variant": variant, "group": 8}, case_of(operator, **sizes))


def test_every_form_of_clusters_has_one_without():
    text = sm90("block_scaled_mm", *ALONE).library.folder.joinpath(FORMS["block_scaled_mm"]).read_text()
    assert {re.split(r",\s*", form)[4] for form in re.findall(r"Form<([^>]*)>", text)} == {"1"}


@pytest.mark.parametrize("author", ["torch", "deepgemm", "vllm"])
def test_rivals_agree_with_the_definition(author):
    for operator in TRITON:
        name = f"{author}_{operator}"
        if name in CATALOG.solutions:
            definition = CATALOG.definition(operator)
            run = module(name).run
            assert list(inspect.signature(run).parameters) == [*definition.inputs, *definition.outputs]
