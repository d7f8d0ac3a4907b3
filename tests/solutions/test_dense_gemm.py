"""derby_gemm_bf16_sm90, the dense bf16 GEMM of common/dense_*.cuh.

Without a GPU: every form, with and without CTAs that share a tile, runs on the CPU, where cuda_on_host/dense stands
for TMA, mbarriers, wgmma and clusters, and mutants fail; nvcc compiles it without warnings; every output
lies in one tile; the model chooses forms that exist. On a GPU: odd sizes in every form, all workloads, CUDA graphs.
"""

import ctypes
import functools
import mmap
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nvcc
import pytest
import torch
from on_host import HEADERS, in_a_fork, shared_library
from rowwise_cases import CATALOG, case_of, inputs_of, outputs_of, reference

from kernelderby.measure.judge.cases import case_of_workload
from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

NAME = "derby_gemm_bf16_sm90"
SOURCES = CATALOG.solution(NAME).sources
EMULATED = ("ptx.cuh", "tma.cuh", "wgmma.cuh", "launch.cuh")


@functools.cache
def gemm():
    run = load_solution(CATALOG.definition("gemm_bf16"), CATALOG.solution(NAME))
    return sys.modules[run.__module__]


CHOICE = gemm().dense_choice
FORMS = range(len(CHOICE.FORMS))


def splits_of(form, k):
    return [s for s in CHOICE.SPLITS if CHOICE.fits(CHOICE.FORMS[form], s, CHOICE.Problem(1, 1, k))]


# On the CPU -----------------------------------------------------------------------------------------------------------


@functools.cache
def on_cpu(*edits, only=None):
    """The C function of the kernel, its sources edited (old, new), compiled by g++. Skips where there is none. only:
    the one form that is compiled."""
    folder = (
        Path(os.environ["KERNELDERBY_TESTS_BUILT"])
        / f"dense_gemm_{os.getpid()}_{len(list(Path(os.environ['KERNELDERBY_TESTS_BUILT']).glob('dense_gemm_*')))}"
    )
    folder.mkdir()
    sources = {name: text for name, text in SOURCES.items() if name.endswith((".cu", ".cuh"))}
    sources |= {name: (HEADERS / "dense" / name).read_text() for name in EMULATED}
    for old, new in edits:
        [holder] = [name for name, text in sources.items() if old in text]
        sources[holder] = sources[holder].replace(old, new)
    if only is not None:
        lines = sources["dense_launch.cuh"].splitlines(keepends=True)
        kept = [line for line in lines if "        case " not in line or f"case {only}:" in line]
        sources["dense_launch.cuh"] = "".join(kept)
    for name, text in sources.items():
        (folder / name).write_text(text)
    beside = [folder / name for name in sorted(sources) if name != "kernel.cu"]
    made = shared_library(folder / "kernel.cu", "-O1" if edits else "-O2", header="dense_types.h", beside=beside)
    function = ctypes.CDLL(str(made)).derby_gemm_bf16_sm90_run
    function.argtypes = gemm().library.parameters
    return function


def wrong(function, form, splits, m, n, k, biases, order="", multiprocessors=2):
    """Whether the result is: beyond one rounding, or none at all."""
    generator = torch.Generator().manual_seed(form + splits)
    x, weight, bias = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((m, k), (n, k), (biases, n)))
    bias *= 20
    expected = x.float() @ weight.float().t() + bias.float().sum(0)
    shared = mmap.mmap(-1, 2 * m * n)  # by both processes
    output = torch.frombuffer(shared, dtype=torch.bfloat16).view(m, n).fill_(float("nan"))
    os.environ["EMULATED_ORDER"] = order
    pointers = [tensor.data_ptr() for tensor in (x, weight, bias, output)]
    error = in_a_fork(lambda: function(*pointers, m, n, k, form, 2, splits, multiprocessors, None))
    close = (output.float() - expected).abs() <= 2**-8 * expected.abs() + 1e-3  # NaN is not
    return error != 0 or not bool(close.all())


@pytest.mark.parametrize("form", FORMS)
def test_every_form_on_the_cpu(form):
    later = CHOICE.FORMS[form].later
    for splits in splits_of(form, 520):
        order = "reversed" if splits % 4 == 2 else ""
        assert not wrong(on_cpu(), form, splits, 141, 264, 520 if splits > 1 else 136, 1, order), splits
    assert not wrong(on_cpu(), form, 1, 70, 99, 72, 1, "reversed")
    assert not wrong(on_cpu(), form, 1, 1, 8, 8, 0)
    if later:
        for order in ("", "reversed"):  # three tiles and more of a CTA
            assert not wrong(on_cpu(), form, 1, 300, 776, 72, 1, order)


MUTANTS = {
    "products before their operands are there": ("        shared.ring.wait(at);\n", "", 7, 1),
    "a stage given back while its product runs": (
        "wgmma_wait_group<1>();\n        release<F>(shared, before);\n        before = at.stage;",
        "release<F>(shared, at.stage);\n        wgmma_wait_group<1>();",
        7,
        1,
    ),
    "slabs written while they are stored": ("if (lane == 0) bulk_wait_group_read<SLABS - 1>();", "", 0, 1),
    "the second half's k blocks twice": ("(cta % extent.splits + 1)", "(cta % extent.splits + 2)", 7, 2),
    "sums of one CTA left out": ("from = 1; from < splits", "from = 2; from < splits", 10, 4),
    "no barrier before the sums are read": ("    cluster_sync();\n    const float4*", "    const float4*", 10, 2),
    "x of one half twice": ("h * (64 * ROW_BYTES >> 4)", "0", 1, 1),
    "bias of the wrong columns": ("i % (F::HALF / 4) * 8 + 2 * q", "2 * q", 0, 1),
    "an odd column left out": ("if (c + 1 < n) out[1]", "if (c + 3 < n) out[1]", 11, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_fail_on_the_cpu(name):
    old, new, form, splits = MUTANTS[name]
    function = on_cpu((old, new), only=form)
    n = 99 if "odd" in name else 776 if form == 0 else 264
    assert any(wrong(function, form, splits, 300, n, 648, 1, order) for order in ("", "reversed"))


COVERAGE = """
#include "dense_types.h"
#include "dense_tiles.cuh"
#include <vector>
using namespace derby;
template <class F> bool check(int m, int n, int k_blocks, int group, int splits, int ctas) {
  Extent extent;
  const int grid = fill_extent<F>(&extent, m, n, k_blocks, group, splits, ctas);
  std::vector<int> blocks(size_t(m) * n);
  for (int cta = 0; cta < grid; cta++)
    for (WholeTiles<F> work(extent, cta, grid); work.next(extent);)
      for (int r = work.tile.x; r < work.tile.x + F::ROWS && r < m; r++)
        for (int c = work.tile.y; c < work.tile.y + F::COLUMNS && c < n; c++)
          blocks[size_t(r) * n + c] += work.to - work.from;
  for (int one : blocks)
    if (one != k_blocks) return printf("%d x %d: %d of %d blocks\\n", m, n, one, k_blocks), false;
  return grid % (F::CLUSTER * splits) == 0 && (splits > 1 || F::RESIDENT > 1 || grid <= ctas);
}
template <class F> bool all(std::vector<int> splits) {
  for (int ctas : {4, 8, 132})
    for (int group : {1, 3, 8})
      for (int m : {1, 64, 129, 1000})
        for (int n : {1, 200, 700}) for (int s : splits) if (!check<F>(m, n, 17, group, s, ctas)) return false;
  return true;
}
int main() {
  return !(all<Form<128, 256, 2, 4, 2, false, true>>({1}) && all<Form<256, 128, 2, 4, 2, true, true>>({1}) &&
           all<Form<192, 192, 3, 4>>({1, 2, 4}) && all<Form<64, 32, 1, 8>>({1, 2, 8}));
}
"""


def test_every_output_has_every_block_once(tmp_path):
    for name in ("dense_tiles.cuh", "kernel.cu"):
        (tmp_path / name).write_text(SOURCES[name])
    (tmp_path / "coverage.cpp").write_text(COVERAGE)
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    built = tmp_path / "coverage"
    subprocess.run(
        ["g++", "-O2", "-std=c++17", "-w", f"-I{HEADERS}", "-o", built, tmp_path / "coverage.cpp"], check=True
    )
    done = subprocess.run([built], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_it_compiles(tmp_path):
    try:
        compiler = gemm().cuda_library.find_nvcc()
    except RuntimeError as error:
        pytest.skip(str(error))
    for name, text in SOURCES.items():
        if name.endswith((".cu", ".cuh")):
            (tmp_path / name).write_text(text)
    made = nvcc.compiled(compiler, tmp_path / "kernel.cu")
    assert len(made.kernels) == len(FORMS)
    assert max(kernel.spilled for kernel in made.kernels) <= 8  # bytes


# The choice -----------------------------------------------------------------------------------------------------------


def test_forms_are_those_of_the_kernel():
    text = SOURCES["dense_launch.cuh"]
    found = re.findall(r"case (\d+): return start<E, Form<([^>]*)>>", text)
    values = {"true": True, "false": False}
    forms = [CHOICE.Form(*(values.get(v) if v in values else int(v) for v in each.split(", "))) for _, each in found]
    assert [int(number) for number, _ in found] == list(FORMS)
    assert tuple(forms) == CHOICE.FORMS


def test_sources_and_parameters_are_named():
    assert sorted(gemm().library.sources) == sorted(name for name in SOURCES if name.endswith((".cu", ".cuh")))
    parameters = SOURCES["kernel.cu"].split("_run(")[1].split(")")[0].split(",")
    assert len(parameters) == len(gemm().library.parameters)


def chosen(m, n, k, multiprocessors=132):
    number, splits = CHOICE.ranked(CHOICE.Problem(m, n, k), multiprocessors)[0]
    return CHOICE.FORMS[number], splits


def test_few_tiles_are_shared_and_many_are_large():
    form, splits = chosen(4, 1280, 8192)
    assert splits >= 4 and form.groups == 1
    for shape in ((4096, 28672, 4096), (16384, 5120, 2048)):
        form, splits = chosen(*shape)
        assert form.rows * form.columns >= 128 * 128 and form.cluster == 2 and splits == 1
    form, splits = chosen(1100, 4096, 4096)  # 1.2 turns of 128 x 256, one of 192 x 192
    assert -(-1100 // form.rows) * -(-4096 // form.columns) * splits <= 132 * form.resident


@pytest.mark.parametrize("multiprocessors", [20, 114, 132])
def test_the_model_is_of_any_size(multiprocessors):
    """More rows never take much less time, and what is chosen is a form that fits."""
    for n, k in ((1, 4096), (99, 72), (4096, 4096), (128256, 4096), (8, 8)):
        before = 0.0
        for m in (1, 3, 17, 64, 65, 200, 513, 1100, 2748, 8192, 16384):
            problem = CHOICE.Problem(m, n, k)
            number, splits = CHOICE.ranked(problem, multiprocessors)[0]
            assert CHOICE.fits(CHOICE.FORMS[number], splits, problem)
            cost = CHOICE.cycles(CHOICE.FORMS[number], splits, problem, multiprocessors, CHOICE.Rates())
            assert cost > 0.9 * before, (m, n, k)
            before = cost


# On a GPU -------------------------------------------------------------------------------------------------------------

ODD = [(1, 8, 8, 1), (5, 99, 64, 0), (13, 130, 100, 1), (70, 200, 136, 0), (130, 1160, 1096, 1), (300, 257, 512, 1)]
ODD += [(600, 1160, 1100, 0), (3000, 1, 512, 1), (2100, 2056, 1096, 0), (4000, 2056, 520, 1)]


def verdict(config, m, n, k, biases):
    case = case_of("gemm_bf16", m=m, n=n, k=k, bias_rows=biases)
    inputs, outputs = inputs_of("gemm_bf16", case, "cuda"), outputs_of("gemm_bf16", case, "cuda")
    gemm().run_with(config, *inputs.values(), *outputs.values())
    torch.cuda.synchronize()
    return judge(CATALOG.definition("gemm_bf16"), reference("gemm_bf16"), inputs, outputs).status


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
def test_odd_sizes_in_every_form(form):
    for m, n, k, biases in ODD:
        for splits in splits_of(form, k):
            config = {"form": form, "splits": splits, "group": 8}
            assert verdict(config, m, n, k, biases) is Status.PASSED, (m, n, k, splits)


@pytest.mark.gpu
@pytest.mark.timeout(900)
def test_every_workload():
    definition = CATALOG.definition("gemm_bf16")
    for workload in CATALOG.workloads("gemm_bf16"):
        case = case_of_workload(definition, workload)
        inputs = inputs_of("gemm_bf16", case, "cuda")
        for config in gemm().candidates(*inputs.values()):
            outputs = outputs_of("gemm_bf16", case, "cuda")
            gemm().run_with(config, *inputs.values(), *outputs.values())
            torch.cuda.synchronize()
            assert judge(definition, reference("gemm_bf16"), inputs, outputs).status is Status.PASSED, (case, config)


@pytest.mark.gpu
def test_a_graph_outlives_larger_calls():
    """What a graph holds is in no workspace: it may be replayed after larger calls."""
    small, large = (case_of("gemm_bf16", m=m, n=1280, k=4096, bias_rows=1) for m in (4, 3000))
    inputs, outputs = inputs_of("gemm_bf16", small, "cuda"), outputs_of("gemm_bf16", small, "cuda")
    gemm().run(*inputs.values(), *outputs.values())
    expected = outputs["output"].clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemm().run(*inputs.values(), *outputs.values())
    gemm().run(*inputs_of("gemm_bf16", large, "cuda").values(), *outputs_of("gemm_bf16", large, "cuda").values())
    outputs["output"].fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(outputs["output"], expected)


def test_misaligned_operands_are_refused_in_one_line():
    x, weight = torch.zeros(4 * 64 + 1).bfloat16()[1:].view(4, 64), torch.zeros(8, 64).bfloat16()
    with pytest.raises(ValueError, match="x begins at an address that 16 does not divide"):
        gemm().run(x, weight, torch.empty(0, 8).bfloat16(), torch.empty(4, 8).bfloat16())
