"""derby_fused_moe_sm90 and derby_fp8_blockscale_fused_moe_sm90: their build, what Python and C++ agree on, and their
results on a GPU. Kernels for Hopper: a CPU cannot run them (test_experts_schedule.py runs their arithmetic)."""

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys

import nvcc
import pytest
import torch
from moe_cases import ROOT

from kernelderby.catalog import Catalog
from kernelderby.measure.judge.cases import case_of_workload, small_cases
from kernelderby.measure.judge.correctness import judge
from kernelderby.measure.judge.definition import load_definition_module
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

CATALOG = Catalog.open(ROOT)
COMMON = ROOT / "solutions" / "kernelderby" / "common"
PLAIN = ("fused_moe", "fused_moe_bf16")  # not quantized
OPERATORS = (*PLAIN, "fp8_blockscale_fused_moe")
ERROR = {
    "fused_moe": 0.006,
    "fused_moe_bf16": 0.009,
    "fp8_blockscale_fused_moe": 0.03,
}  # norm over the result's: bf16, and an FP8 intermediate


def solution_of(operator):
    return CATALOG.solution(f"derby_{operator}_sm90")


@pytest.fixture(scope="module", params=OPERATORS)
def operator(request):
    return request.param


@pytest.fixture(scope="module")
def module(operator):
    return sys.modules[load_solution(CATALOG.definition(operator), solution_of(operator)).__module__]


def choice_of(module):
    """A choice with the variants' numbers."""
    return getattr(module, "choice", module)


def variants(operator):
    """(pairs a tile, CTAs a cluster, pairs are M, pairs up to which CTAs sort) of kernel.cu's variants."""
    text = solution_of(operator).sources["experts_bf16_variants.cuh" if operator in PLAIN else "kernel.cu"]
    found = re.findall(r"variant_of<Config<(?:Kind|Fp8), (\d+), \d+, (\d), (true|false), (\d+)>>", text)
    return [(int(rows), int(cluster), wide == "true", int(routes)) for rows, cluster, wide, routes in found]


def test_python_and_c_agree_on_the_fields_of_a_call(module):
    """Names, order and kinds."""
    experts = module.experts
    text = (COMMON / "experts_launch.cuh").read_text()
    struct = text[text.index("struct Call {") :]
    fields = []
    for kind, star, names in re.findall(
        r"^    (?:const )?(\w+)(\*?) ([\w, ]+);", struct[: struct.index("};")], re.MULTILINE
    ):
        for name in names.split(", "):
            fields.append((name, ctypes.c_void_p if star else {"int": ctypes.c_int}[kind]))
    assert fields == experts.Call._fields_


def test_all_sources_are_named(operator, module):
    """The solution packs exactly the files that its library builds from, found by its includes."""
    cuda = {name for name in solution_of(operator).sources if name.endswith((".cu", ".cuh"))}
    assert set(module.library.sources) == cuda


def test_the_variants_are_those_that_python_counts_on(operator, module):
    """By their numbers: how many, which sort for themselves, and how large a tile is at most."""
    found = variants(operator)
    numbered = choice_of(module).VARIANTS
    assert len(found) == len(numbered)
    for number, (rows, _, wide, routes) in enumerate(found):
        assert numbered[number] == (rows, wide, routes)
    assert max(rows for rows, *_ in found) == module.call.most_rows


def test_no_candidate_sorts_more_pairs_than_it_can_or_stores_where_it_cannot(operator, module):
    """For few and for many pairs, with few experts and with many."""
    for tokens in (*range(1, 300, 7), 135, 277, 512, 668, 1023, 1024, 1025, 2049, 4195, 15809):
        for experts, top_k in ((1, 1), (4, 2), (8, 2), (16, 4), (128, 8), (256, 8)):
            for intermediate in (384, 2048, 4096):
                ids = torch.empty(tokens, top_k, dtype=torch.int32, device="meta")
                down = torch.empty(experts, 2048, intermediate, dtype=torch.bfloat16, device="meta")
                scales = operator not in PLAIN
                configs = module.candidates(*[None] * (4 if scales else 2), down, *[None] * scales, ids, None)
                for config in configs:
                    routes = choice_of(module).VARIANTS[config["variant"]][2]
                    assert not routes or tokens * top_k <= routes, (tokens, experts, config)
                    assert not config["stores"] or config["variant"] in choice_of(module).STORING


@pytest.mark.parametrize(
    "name, config",
    [("Bf16", "128, 4, 2, true, 0"), ("Bf16ToBf16", "128, 4, 2, true, 2048"), ("Fp8", "16, 6, 1, false, 512")],
)
def test_it_compiles_without_spills_and_its_products_are_not_serialised(tmp_path, name, config):
    compiler = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if compiler is None:
        pytest.skip("no nvcc on the PATH or in /usr/local/cuda/bin")
    (tmp_path / "kernel.cu").write_text(
        f'#include "experts_launch.cuh"\nusing namespace derby;\n'
        f"Variant one() {{ return variant_of<Config<{name}, {config}>>(); }}\n"
    )
    spilled = [kernel.spilled for kernel in nvcc.kernels_of(compiler, tmp_path / "kernel.cu", includes=[COMMON])]
    assert len(spilled) >= 3 and max(spilled) <= 8


# On a GPU -------------------------------------------------------------------------------------------------------------


def random_inputs(operator, tokens, hidden, intermediate, experts, top_k, ids=None, seed=5):
    """Inputs as the definition draws them, or with these experts, on the GPU."""
    definition, source = CATALOG.definition(operator), load_definition_module(CATALOG.definition(operator))
    size = {
        "num_tokens": tokens,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "gate_up_size": 2 * intermediate,
        "num_experts": experts,
        "top_k": top_k,
    }
    if operator not in PLAIN:
        size |= {
            "num_hidden_blocks": hidden // 128,
            "num_intermediate_blocks": intermediate // 128,
            "num_gate_up_blocks": 2 * intermediate // 128,
        }
    (case,) = small_cases(definition, size, [{}], 1)
    inputs = InputMaker(definition, source, case, torch.device("cuda"), ROOT).make(0)
    if ids is not None:
        inputs["topk_ids"] = ids.to(torch.int32).cuda().contiguous()
    return inputs


def expected_of(operator, inputs):
    return load_definition_module(CATALOG.definition(operator)).run(**inputs).float()


def output_of(operator, inputs):
    dtype = torch.float32 if operator == "fused_moe" else torch.bfloat16
    return torch.full(inputs["hidden_states"].shape, float("nan"), dtype=dtype, device="cuda")


def check_on_gpu(operator, module, inputs, config=None):
    """Twice into poisoned outputs: the error's norm is that of the roundings, and no counter is left behind."""
    expected = expected_of(operator, inputs)
    for _ in range(2):
        out = output_of(operator, inputs)
        if config is None:
            module.run(*inputs.values(), out)
        else:
            module.run_with(config, *inputs.values(), out)
        assert (out.float() - expected).norm() <= ERROR[operator] * expected.norm()


def adversarial(tokens, experts, top_k):
    """name -> [tokens, top_k] experts, different in a row."""
    row = torch.arange(top_k)
    spread = (torch.arange(tokens)[:, None] * top_k + row) % experts
    return {
        "all on the first": row.expand(tokens, top_k),
        "all on the last": (experts - 1 - row).expand(tokens, top_k),
        "spread": spread,
        "one token elsewhere": torch.cat([row.expand(tokens - 1, top_k), (row + top_k)[None] % experts]),
    }


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("stores, slab", [(0, 0), (0, 1), (1, 0)])
def test_every_variant_at_sizes_that_fit_nothing(operator, module, number, stores, slab):
    if number >= len(choice_of(module).VARIANTS):
        pytest.skip("the other operator's variants")
    rows, wide, routes = choice_of(module).VARIANTS[number]
    if stores and number not in choice_of(module).STORING:
        pytest.skip("a variant that only adds")
    unit = 8 if operator in PLAIN else 128
    for tokens, hidden, intermediate, experts, top_k in (
        (1, 2 * unit, unit, 1, 1), (9, 33 * unit, 10 * unit, 8, 2), (63, 5 * unit, 3 * unit, 256, 8),
        (250, 17 * unit, 5 * unit, 3, 2), (700, 8 * unit, 2 * unit, 200, 8), (3001, 9 * unit, 3 * unit, 5, 4),
    ):  # fmt: skip
        if routes and tokens * top_k > routes:
            continue
        config = {"variant": number, "slab": slab, "stores": stores}
        check_on_gpu(operator, module, random_inputs(operator, tokens, hidden, intermediate, experts, top_k), config)
        if experts < 2 * top_k:
            continue
        for ids in adversarial(tokens, experts, top_k).values():
            inputs = random_inputs(operator, tokens, hidden, intermediate, experts, top_k, ids)
            check_on_gpu(operator, module, inputs, config)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens, top_k", [(1, 8), (2, 8), (4, 8), (5, 8), (16, 2), (17, 1), (32, 1), (3, 4)])
def test_weights_asked_for_before_the_plan_are_those_of_the_first_visit(operator, module, tokens, top_k):
    """Of up to 32 pairs: different experts, the same ones, one that a token names again and again, more pairs of one
    than its tile holds."""
    every = torch.arange(top_k).expand(tokens, top_k)
    ids = {"drawn": None, "one": torch.full((tokens, top_k), 39), "first": every, "last": 39 - every, "two": every % 2}
    for name, experts in ids.items():
        inputs = random_inputs(operator, tokens, 1152, 896, 40, top_k, experts, seed=len(name))
        check_on_gpu(operator, module, inputs, {"variant": 0, "slab": 0, "stores": 0})


@pytest.mark.gpu
def test_the_workloads(operator, module):
    definition, source = CATALOG.definition(operator), load_definition_module(CATALOG.definition(operator))
    for workload in CATALOG.workloads(operator):
        inputs = InputMaker(
            definition, source, case_of_workload(definition, workload), torch.device("cuda"), ROOT
        ).make(0)
        out = output_of(operator, inputs)
        module.run(*inputs.values(), out)
        torch.cuda.synchronize()
        assert judge(definition, source, inputs, {"output": out}).status is Status.PASSED, workload.uuid
        del inputs, out
        torch.cuda.empty_cache()


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 100, 3000])
def test_in_a_graph(operator, module, tokens):
    inputs = random_inputs(operator, tokens, 1024, 384, 16, 4)
    expected, out, stream = expected_of(operator, inputs), output_of(operator, inputs), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # out may lie where the reference still computes
    with torch.cuda.stream(stream):
        module.run(*inputs.values(), out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        module.run(*inputs.values(), out)
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert (out.float() - expected).norm() <= ERROR[operator] * expected.norm()


@pytest.mark.gpu
def test_stored_rows_are_summed_to_the_same_bits_each_time(operator, module):
    """K is not split there: with one tile an expert, no sum depends on who comes first."""
    inputs = random_inputs(operator, 400, 1024, 256, 64, 8)
    outs = []
    for _ in range(3):
        outs.append(output_of(operator, inputs))
        module.run_with({"variant": max(choice_of(module).STORING), "slab": 0, "stores": 1}, *inputs.values(), outs[-1])
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])


SANITIZED = """
import dataclasses, json, sys, torch
sys.path.insert(0, sys.argv[1])
from kernelderby.catalog import Catalog
from kernelderby.measure.worker.build import load_solution
from pathlib import Path
catalog = Catalog.open(Path(sys.argv[1]))
solution = catalog.solution(sys.argv[2])
sources = dict(solution.sources)
for old, new in json.loads(sys.argv[4]):
    (holder,) = (path for path, text in sources.items() if old in text)
    sources[holder] = sources[holder].replace(old, new)
solution = dataclasses.replace(solution, sources=sources)
module = sys.modules[load_solution(catalog.definition(solution.definition), solution).__module__]
inputs = torch.load(sys.argv[3], map_location="cuda", weights_only=True)
for number, (rows, wide, routes) in enumerate(getattr(module, "choice", module).VARIANTS):
    if not routes or inputs["topk_ids"].numel() <= routes:
        for stores in (0, 1) if number in getattr(module, "choice", module).STORING else (0,):
            dtype = getattr(torch, catalog.definition(solution.definition).outputs["output"].dtype)
            out = torch.full(inputs["hidden_states"].shape, float("nan"), dtype=dtype, device="cuda")
            module.run_with({"variant": number, "slab": 0, "stores": stores}, *inputs.values(), out)
            assert out.isfinite().all(), (number, stores)
"""
# What racecheck looks at: every lane arrives where one does so for its warp; a further barrier of the consumers behind
# the plan, since it misses a barrier of all threads that follows one of some (tests/data/racecheck.cu: a right program
# of which it reports three hazards); and a sorting kernel of one block, as the cluster of 16 takes it a minute.
SEEN_BY_RACECHECK = [
    ("constexpr bool RACECHECK = false;", "constexpr bool RACECHECK = true;"),
    (
        "    plan(shared, arguments);\n",
        "    plan(shared, arguments);\n    named_barrier_sync(NamedBarrier::CONSUMERS_DONE, CONSUMERS);\n",
    ),
    ("ROUTE_BLOCKS = 16;", "ROUTE_BLOCKS = 1;"),
]


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "tool, sizes, edits",
    [("memcheck", (30, 512, 256, 12, 3), []), ("racecheck", (30, 256, 128, 12, 3), SEEN_BY_RACECHECK)],
    ids=("memcheck", "racecheck"),
)
def test_the_sanitizer_finds_nothing(operator, tmp_path, tool, sizes, edits):
    """Every variant, at tokens, hidden, intermediate, experts, top-k."""
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if sanitizer is None:
        pytest.skip("no compute-sanitizer on the PATH or in /usr/local/cuda/bin")
    torch.save(random_inputs(operator, *sizes), tmp_path / "inputs.pt")
    (tmp_path / "run.py").write_text(SANITIZED)
    command = [sanitizer, "--tool", tool, "--kernel-name", "regex=derby", "--error-exitcode", "9", sys.executable]
    found = subprocess.run(
        [*command, tmp_path / "run.py", ROOT, f"derby_{operator}_sm90", tmp_path / "inputs.pt", json.dumps(edits)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    )
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-1000:]
