"""derby_gemm_bf16_sm90 and derby_linear_sigmoid_mul_sm90, the dense bf16 GEMM of common/dense_*.cuh.

Without a GPU: one form of each kind (all with DERBY_TESTS_ALL=1), with and without CTAs that share a tile, runs on the
CPU, where cuda_on_host/dense stands for TMA, mbarriers, wgmma and clusters, and mutants fail; nvcc compiles it without
warnings; every output lies in one tile; the model chooses forms that fit. On a GPU: odd sizes in every form, all
workloads, CUDA graphs.
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
from on_host import HEADERS, in_a_fork, recalled_for, shared_library
from rowwise_cases import CATALOG, case_of, inputs_of, outputs_of, reference

from kernelderby.measure.judge.cases import case_of_workload
from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

OPERATORS = "gemm_bf16", "linear_sigmoid_mul"
EMULATED = ("ptx.cuh", "tma.cuh", "wgmma.cuh", "launch.cuh")


def sources_of(operator):
    return CATALOG.solution(f"derby_{operator}_sm90").sources


@functools.cache
def gemm(operator="gemm_bf16"):
    run = load_solution(CATALOG.definition(operator), CATALOG.solution(f"derby_{operator}_sm90"))
    return sys.modules[run.__module__]


CHOICE = gemm().dense_choice
FORMS = range(len(CHOICE.FORMS))


def one_of_each_kind():
    """Numbers of the forms that differ in more than their sizes: the smallest of each."""
    kinds = {}
    for number in FORMS:
        form = CHOICE.FORMS[number]
        boxes = form.columns % 16 if form.turned else (form.columns < 64, form.columns % 64 > 0)
        kind = form.groups == 1, form.cluster, form.side_by_side, form.later, form.turned, form.deep, boxes
        if kind not in kinds or form.columns < CHOICE.FORMS[kinds[kind]].columns:
            kinds[kind] = number
    return sorted(kinds.values())


ALL = "DERBY_TESTS_ALL" in os.environ
RUN = FORMS if ALL else one_of_each_kind()


def splits_of(form, k):
    some = CHOICE.SPLITS if ALL else (1, 3, 8) if CHOICE.FORMS[form].cluster == 1 else (1, 2)
    return [s for s in some if CHOICE.fits(CHOICE.FORMS[form], s, CHOICE.Problem(1, 1, k))]


# On the CPU -----------------------------------------------------------------------------------------------------------


@functools.cache
def on_cpu(operator, *edits, only=tuple(RUN)):
    """The C function of the kernel, its sources edited (old, new), compiled by g++. Skips where there is none. only:
    the forms that are compiled, numbered as without."""
    built = Path(os.environ["KERNELDERBY_TESTS_BUILT"])
    folder = built / f"dense_gemm_{os.getpid()}_{len(list(built.glob('dense_gemm_*')))}"
    folder.mkdir()
    sources = {name: text for name, text in sources_of(operator).items() if name.endswith((".cu", ".cuh"))}
    sources |= {name: (HEADERS / "dense" / name).read_text() for name in EMULATED}
    for old, new in edits:
        [holder] = [name for name, text in sources.items() if old in text]
        sources[holder] = sources[holder].replace(old, new)
    lines = re.findall(r"^FORM.*", sources["dense_forms.cuh"], re.MULTILINE)
    sources["dense_forms.cuh"] = "\n".join(line if n in only else "nullptr," for n, line in enumerate(lines))
    for name, text in sources.items():
        (folder / name).write_text(text)
    beside = [folder / name for name in sorted(sources) if name != "kernel.cu"]
    made = shared_library(folder / "kernel.cu", "-O1", header="dense_types.h", beside=beside)
    function = getattr(ctypes.CDLL(str(made)), f"derby_{operator}_sm90_run")
    function.argtypes = gemm(operator).library.parameters
    return function


def wrong(function, form, splits, m, n, k, biases, order="", multiprocessors=4, gated=False):
    """Whether the result is: beyond one rounding, or none at all."""
    generator = torch.Generator().manual_seed(form + splits)
    x, weight, bias = (torch.randn(*shape, generator=generator).bfloat16() for shape in ((m, k), (n, k), (biases, n)))
    bias *= 2 if gated else 20
    expected, inputs, rounding = x.float() @ weight.float().t() + bias.float().sum(0), [x, weight, bias], 2**-8
    if gated:
        inputs.append(torch.randn(m, n, generator=generator).bfloat16())
        expected, rounding = torch.sigmoid(expected) * inputs[-1].float(), 2**-6  # a sum may wait in fp16
    shared = mmap.mmap(-1, 2 * m * n)  # by both processes
    output = torch.frombuffer(shared, dtype=torch.bfloat16).view(m, n).fill_(float("nan"))
    os.environ["EMULATED_ORDER"] = order
    pointers = [tensor.data_ptr() for tensor in (*inputs, output)]
    error = in_a_fork(lambda: function(*pointers, m, n, k, form, 2, splits, multiprocessors, None))
    close = (output.float() - expected).abs() <= rounding * expected.abs() + 1e-3  # NaN is not
    return error != 0 or not bool(close.all())


@pytest.mark.parametrize(
    "form, operator", [(form, each) for form in RUN for each in OPERATORS[: 1 + (ALL or form % 2)]]
)
@recalled_for("derby_gemm_bf16_sm90", "derby_linear_sigmoid_mul_sm90")
def test_every_form_on_the_cpu(form, operator):
    gated = operator == "linear_sigmoid_mul"
    for splits in splits_of(form, 520):
        order = "reversed" if splits == 3 else ""
        sizes = (141, 264, 520 if splits > 1 else 136)
        assert not wrong(on_cpu(operator), form, splits, *sizes, 1, order, gated=gated), splits
    assert not wrong(on_cpu(operator), form, 1, 70, 99, 72, 1, "reversed", gated=gated)  # odd columns
    assert not wrong(on_cpu(operator), form, 1, 1, 8, 8, int(gated), gated=gated)
    for order in ("", "reversed") if ALL else ("reversed" if form % 4 < 2 else "",):  # several tiles of a CTA
        for n in (776, 777):
            assert not wrong(on_cpu(operator), form, 1, 300, n, 72, 1, order, gated=gated), n


def kind(**fields):
    """The first form of these fields."""
    return next(n for n in FORMS if all(getattr(CHOICE.FORMS[n], name) == value for name, value in fields.items()))


LATER, HALVES, TURNED = kind(later=True, rows=128), kind(rows=256, cluster=1), kind(turned=True, rows=128, cluster=1)
SMALL, MEDIUM = kind(rows=64, columns=24, turned=False), kind(rows=64, columns=72, turned=False)
LARGE = kind(rows=128, columns=128, later=False, turned=False)
BOTH = kind(cluster=4, side_by_side=2)  # tiles of a cluster beside and below each other
MUTANTS = {
    "products before their operands are there": (
        "        shared.ring.wait(at);\n        wgmma",
        "        wgmma",
        LARGE,
        1,
    ),
    "a stage given back while its product runs": (
        "wgmma_wait_group<1>();\n        release(before);\n        before = at.stage;",
        "release(at.stage);\n        wgmma_wait_group<1>();",
        LARGE,
        1,
    ),
    "slabs written while they are stored": ("if (lane == 0) bulk_wait_group_read<SLABS - 1>();", "", LATER, 1),
    "stages given back while output leaves": ("            bulk_wait_group_read<0>();\n", "", TURNED, 1),
    "output into stages that products read": (
        "            shared.ring.wait_empty(at);\n            shared.ring",
        "            shared.ring",
        LARGE,
        1,
    ),
    "blocks of 8 columns change places": ("(2 * t + lane / 16) ^ lane", "(2 * t + 1 - lane / 16) ^ lane", LARGE, 1),
    "another row's bias": ("make_float4(add[2 * half], add[2 * half + 1]", "make_float4(add[0], add[0]", TURNED, 1),
    "the second half's k blocks twice": ("(share_of<F>(cta, extent) + 1)", "(share_of<F>(cta, extent) + 2)", LARGE, 2),
    "sums of one CTA left out": ("from = 1; from < splits", "from = 2; from < splits", MEDIUM, 4),
    "no barrier before the sums are read": ("    cluster_sync();\n    const float4*", "    const float4*", MEDIUM, 2),
    "x of one half twice": ("j * F::ROWS + h * 64)", "j * F::ROWS)", HALVES, 1),
    "bias of the wrong columns": ("i % (F::HALF / 4) * 8 + 2 * q", "2 * q", LATER, 1),
    "an odd column left out": ("if (c + 1 < n) out[1]", "if (c + 3 < n) out[1]", SMALL, 1),
    "what is shared goes to another tile's CTAs": ("<< (share + beside)", "<< share", BOTH, 1),
    "an odd row's end left out": ("column + c >= extent.n", "column + c + 1 >= extent.n", LARGE, 1),
}


@pytest.mark.parametrize("name", list(MUTANTS) if ALL else list(MUTANTS)[::4])
@recalled_for("derby_gemm_bf16_sm90")
def test_mutants_fail_on_the_cpu(name):
    old, new, form, splits = MUTANTS[name]
    function = on_cpu("gemm_bf16", (old, new), only=(form,))
    n, k = 99 if "odd" in name else 520 if CHOICE.FORMS[form].later else 264, 520 if splits > 1 else 264
    assert any(wrong(function, form, splits, 131, n, k, 1, order, 2) for order in ("reversed", ""))


COVERAGE = """
#include "dense_types.h"
#include "dense_tiles.cuh"
#include <vector>
using namespace derby;
template <class F> bool check(int m, int n, int k_blocks, int group, int splits, int ctas) {
  Extent extent;
  const int grid = fill_extent<F>(&extent, m, n, k_blocks, group, splits, ctas);
  std::vector<int> blocks(size_t(m) * n);
  const int high = F::TURNED ? n : m, wide = F::TURNED ? m : n;
  for (int cta = 0; cta < grid; cta++)
    for (WholeTiles<F> work(extent, cta, grid); work.next(extent);)
      for (int a = work.tile.x; a < work.tile.x + F::ROWS && a < high; a++)
        for (int b = work.tile.y; b < work.tile.y + F::COLUMNS && b < wide; b++)
          blocks[F::TURNED ? size_t(b) * n + a : size_t(a) * n + b] += work.to - work.from;
  for (int one : blocks)
    if (one != k_blocks) return printf("%d x %d: %d of %d blocks\\n", m, n, one, k_blocks), false;
  return grid % (F::CLUSTER * splits) == 0 && (splits > 1 || F::RESIDENT > 1 || grid <= ctas);
}
template <class F> bool all() {
  const std::vector<int> splits = F::SPLITS ? std::vector<int>{1, 2, 3, 8} : std::vector<int>{1};
  for (int ctas : {8, 132})
    for (int group : {1, 3})
      for (int m : {1, 300})
        for (int n : {1, 300}) for (int s : splits) if (!check<F>(m, n, 17, group, s, ctas)) return false;
  return true;
}
int main() {
  bool right = true;
#define FORM(PACE, ...) right = right && all<Form<__VA_ARGS__>>();
#include "dense_forms.cuh"
  return !right;
}
"""


def test_every_output_has_every_block_once(tmp_path):
    for name in ("dense_tiles.cuh", "dense_forms.cuh"):
        (tmp_path / name).write_text(sources_of("gemm_bf16")[name])
    (tmp_path / "coverage.cpp").write_text(COVERAGE)
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    built = tmp_path / "coverage"
    subprocess.run(
        ["g++", "-O1", "-std=c++17", "-w", f"-I{HEADERS}", "-o", built, tmp_path / "coverage.cpp"], check=True
    )
    done = subprocess.run([built], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def compiled(operator, folder, only=FORMS):
    try:
        compiler = gemm().cuda_library.find_nvcc()
    except RuntimeError as error:
        pytest.skip(str(error))
    sources = {name: text for name, text in sources_of(operator).items() if name.endswith((".cu", ".cuh"))}
    lines = re.findall(r"^FORM.*", sources["dense_forms.cuh"], re.MULTILINE)
    sources["dense_forms.cuh"] = "\n".join(lines[n] for n in only)
    for name, text in sources.items():
        (folder / name).write_text(text)
    return nvcc.kernels_of(compiler, folder / "kernel.cu")


@pytest.mark.parametrize("operator", OPERATORS)
def test_it_compiles(operator, tmp_path):
    only = FORMS if ALL else [LATER, SMALL] if operator == "gemm_bf16" else [HALVES]
    kernels = compiled(operator, tmp_path, only)
    assert len(kernels) == len(only)
    assert max(kernel.spilled for kernel in kernels) <= 24  # bytes


# The choice -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", OPERATORS)
def test_sources_and_parameters_are_named(operator):
    library, sources = gemm(operator).library, sources_of(operator)
    assert sorted(library.sources) == sorted(name for name in sources if name.endswith((".cu", ".cuh")))
    parameters = sources["kernel.cu"].split("_run(")[1].split(")")[0].split(",")
    assert len(parameters) == len(library.parameters)
    assert len(CHOICE.FORMS) == sources["dense_forms.cuh"].count("\nFORM(") == len(set(CHOICE.FORMS))


def chosen(m, n, k, multiprocessors=132):
    number, splits, _ = CHOICE.ranked(CHOICE.Problem(m, n, k), multiprocessors)[0]
    return CHOICE.FORMS[number], splits


def test_few_tiles_are_shared_and_many_are_large():
    form, splits = chosen(4, 1280, 8192)
    assert splits >= 2 and form.groups == 1
    for shape in ((4096, 28672, 4096), (16384, 5120, 2048)):
        form, splits = chosen(*shape)
        assert form.rows * form.columns >= 128 * 128 and splits == 1
    form, splits = chosen(451, 10240, 5376)  # 1.6 turns of 128 x 192, one of 256 weight rows by 152
    high, wide = (10240, 451) if form.turned else (451, 10240)
    assert -(-high // form.rows) * -(-wide // form.columns) * splits <= 132 * form.resident


@pytest.mark.parametrize("multiprocessors", [20, 114, 132])
def test_the_model_is_of_any_size(multiprocessors):
    """More rows never take much less time, and the chosen form fits."""
    for n, k in ((1, 4096), (99, 72), (4096, 4096), (128256, 4096), (8, 8)):
        before = 0.0
        for m in (1, 3, 17, 64, 65, 200, 513, 1100, 2748, 8192, 16384):
            problem = CHOICE.Problem(m, n, k)
            number, splits, group = CHOICE.ranked(problem, multiprocessors)[0]
            form = CHOICE.FORMS[number]
            assert CHOICE.fits(form, splits, problem)
            spread = CHOICE.Spread.of(form, splits, problem, multiprocessors)
            best, read = spread.ordered()
            assert best == group
            cost = CHOICE.cycles(spread, problem, read, CHOICE.Rates())
            assert cost > 0.9 * before, (m, n, k)
            before = cost


def reads(down, across, group, at_work, size):
    """What read_rows counts, from the order as dense_tiles.cuh has it (unit_place)."""
    found = {}
    for unit in range(at_work):
        first = unit // (group * across) * group
        within, high = unit % (group * across), min(group, down - first)
        rows, columns = found.setdefault(CHOICE.tile_order.gpc_of(unit, size), (set(), set()))
        rows.add(first + within % high)
        columns.add(within // high)
    return sum(len(rows) for rows, _ in found.values()), sum(len(columns) for _, columns in found.values())


def test_the_order_lets_neighbours_read_the_same_rows():
    order = CHOICE.tile_order
    for down, across, size in ((29, 4, 1), (3, 43, 1), (12, 11, 1), (9, 7, 2), (20, 6, 4), (1, 5, 8)):
        at_work = min(down * across, 132 // size)
        for group in order.GROUPS:
            rows, columns, *every = order.read_rows(down, across, group, at_work, size)
            assert (round(rows * at_work), round(columns * at_work)) == reads(down, across, group, at_work, size)
            assert all(count * at_work <= limit for count, limit in zip(every, (down, across), strict=True))
    # A GPC's 16 CTAs do 4 x 4 tiles, whichever side is the short one.
    assert order.best_group(29, 4, 116, 1, 128, 128)[0] == 1
    assert order.best_group(4, 29, 116, 1, 128, 128)[0] == 8
    assert order.best_group(12, 11, 132, 1, 128, 128)[0] == 4
    assert order.best_group(200, 200, 132, 1, 128, 128)[0] == 8  # more units than run at a time: memory counts


def test_calls_of_eight_lengths_share_a_choice():
    first, second = (CHOICE.configs(torch.empty(m, 512), torch.empty(640, 512)) for m in (129, 136))
    assert first == second


@pytest.mark.parametrize("sizes", [(0, 8, 8), (8, 0, 8), (8, 8, 0), (0, 0, 0)])
def test_nothing_to_multiply_is_a_choice_too(sizes):
    m, n, k = sizes
    first = CHOICE.configs(torch.empty(m, k), torch.empty(n, k))[0]
    assert CHOICE.fits(CHOICE.FORMS[first["form"]], first["splits"], CHOICE.Problem(1, 1, 1))


# On a GPU -------------------------------------------------------------------------------------------------------------

ODD = [(1, 8, 8, 1), (5, 99, 64, 0), (13, 130, 100, 1), (70, 200, 136, 0), (130, 1160, 1096, 1), (300, 257, 512, 1)]
ODD += [(600, 1160, 1100, 0), (3000, 1, 512, 1), (2100, 2056, 1096, 0), (4000, 2056, 520, 1)]


def case_for(operator, m, n, k, biases):
    if operator == "gemm_bf16":
        return case_of(operator, m=m, n=n, k=k, bias_rows=biases)
    return case_of(operator, num_tokens=m, out_features=n, hidden_size=k)


def verdict(operator, config, *sizes):
    case = case_for(operator, *sizes)
    inputs, outputs = inputs_of(operator, case, "cuda"), outputs_of(operator, case, "cuda")
    gemm(operator).run_with(config, *inputs.values(), *outputs.values())
    torch.cuda.synchronize()
    return judge(CATALOG.definition(operator), reference(operator), inputs, outputs).status


@pytest.mark.gpu
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("form", FORMS)
def test_odd_sizes_in_every_form(form, operator):
    for m, n, k, biases in ODD:
        for splits in splits_of(form, k):
            config = {"form": form, "splits": splits, "group": 8}
            assert verdict(operator, config, m, n, k, biases) is Status.PASSED, (m, n, k, splits)


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_workload(operator):
    definition = CATALOG.definition(operator)
    for workload in CATALOG.workloads(operator):
        case = case_of_workload(definition, workload)
        inputs = inputs_of(operator, case, "cuda")
        for config in gemm(operator).candidates(*inputs.values()):
            outputs = outputs_of(operator, case, "cuda")
            gemm(operator).run_with(config, *inputs.values(), *outputs.values())
            torch.cuda.synchronize()
            assert judge(definition, reference(operator), inputs, outputs).status is Status.PASSED, (case, config)


@pytest.mark.gpu
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_graph_outlives_larger_calls(operator):
    """A graph depends on no workspace: it may be replayed after larger calls."""
    small, large = (case_for(operator, m, 1280, 4096, 1) for m in (4, 3000))
    inputs, outputs = inputs_of(operator, small, "cuda"), outputs_of(operator, small, "cuda")
    gemm(operator).run(*inputs.values(), *outputs.values())
    expected = outputs["output"].clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemm(operator).run(*inputs.values(), *outputs.values())
    gemm(operator).run(*inputs_of(operator, large, "cuda").values(), *outputs_of(operator, large, "cuda").values())
    outputs["output"].fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(outputs["output"], expected)


def test_misaligned_operands_are_refused_in_one_line():
    x, weight = torch.zeros(4 * 64 + 1).bfloat16()[1:].view(4, 64), torch.zeros(8, 64).bfloat16()
    with pytest.raises(ValueError, match="x begins at an address that 16 does not divide"):
        gemm().run(x, weight, torch.empty(0, 8).bfloat16(), torch.empty(4, 8).bfloat16())
