"""derby_moe_sm90: its build, its workspace, its results on a GPU. Its sizes are fixed, so a CPU cannot run it."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from moe_cases import NAME as DEFINITION
from moe_cases import ROOT, definition, solution

from kernelderby.catalog import Catalog
from kernelderby.measure.judge.cases import case_of_workload

FOLDER = ROOT / "solutions" / "kernelderby" / "moe" / DEFINITION / "derby_moe_sm90"
FULL = {
    "num_experts": 256,
    "num_local_experts": 32,
    "hidden_size": 7168,
    "intermediate_size": 2048,
    "gemm1_out_size": 4096,
    "num_hidden_blocks": 56,
    "num_intermediate_blocks": 16,
    "num_gemm1_out_blocks": 32,
}


@pytest.fixture(scope="module")
def module():
    return solution("derby_moe_sm90")


@pytest.fixture(scope="module")
def built(module, tmp_path_factory):
    """Path of the library, compiled for sm_90a; no GPU is needed to load it."""
    try:
        module.cuda_library.find_nvcc()
    except RuntimeError as error:
        pytest.skip(str(error))
    return module.library.build("90a", tmp_path_factory.mktemp("build"))


def test_it_compiles_for_sm_90a_and_the_second_time_it_is_there(module, built):
    assert module.library.build("90a", built.parent) == built
    assert [path.name for path in built.parent.iterdir()] == [built.name]


@pytest.mark.parametrize("ctas", [132, 114, 2])
def test_the_workspace_has_a_counter_for_every_cta(module, ctas):
    """Where the kernels count: experts, a ticket, the pieces that a CTA waits for."""
    module.workspace.kept.clear()
    counters, *_, partial = module.space_for(1, ctas, torch.device("cpu")).tensors
    assert f"LOCAL_EXPERTS = {module.NUM_LOCAL};" in (FOLDER / "route.cuh").read_text()
    assert counters.numel() == module.NUM_LOCAL + 1 + ctas
    assert partial.numel() == ctas * 2 * 128 * 128, "a float32 piece of the largest tile a CTA"


def test_python_and_c_agree_on_the_fields_of_a_call(module):
    """Names, order and kinds."""
    kinds, fields = {"int": ctypes.c_int, "float": ctypes.c_float}, []
    for file, name in (("gemm.cuh", "CallArguments"), ("kernel.cu", "Call")):
        text = (FOLDER / file).read_text()
        struct = text[text.index(f"struct {name} {{") :]
        fields += re.findall(r"^    (?:const )?(\w+)(\*?) (\w+);", struct[: struct.index("};")], re.MULTILINE)
    assert fields.pop(-6) == ("CallArguments", "", "arguments")
    assert [(name, ctypes.c_void_p if star else kinds[kind]) for kind, star, name in fields] == module.Call._fields_


def test_a_variant_that_is_none_is_refused_before_anything_is_launched(module, built):
    """Without a driver too: cudaErrorInvalidValue."""
    function = module.library.load(built)
    assert [function(module.Call(variant=number), None) for number in (-1, 4)] == [1, 1]


def test_without_nvcc_it_says_so_in_one_line(module, tmp_path, monkeypatch):
    monkeypatch.setattr(module.cuda_library.shutil, "which", lambda name: None)
    monkeypatch.setattr(module.cuda_library.os, "access", lambda path, mode: False)
    with pytest.raises(RuntimeError, match="found no nvcc") as caught:
        module.library.build("90a", tmp_path)
    assert "\n" not in str(caught.value)


def test_python_and_the_kernels_agree_on_what_few_tokens_are(module):
    assert f"constexpr int MOST_ROUTED = {module.MOST_ROUTED};" in (FOLDER / "route.cuh").read_text()


def test_all_sources_are_named(module):
    assert sorted(module.library.sources) == sorted(path.name for path in Path(module.__file__).parent.glob("*.cu*"))


# On a GPU -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def weights():
    generator = torch.Generator("cuda").manual_seed(3)

    def fp8(*shape):
        parts = [torch.randn(shape[1:], device="cuda", generator=generator).clamp(-2, 2) for _ in range(shape[0])]
        return torch.stack([part.to(torch.float8_e4m3fn) for part in parts])

    return fp8(32, 4096, 7168), fp8(32, 7168, 2048)


def gpu_inputs(weights, seq_len, offset, mode, seed=None):
    size = {**FULL, "seq_len": seq_len, "seed": 31 * seq_len + offset if seed is None else seed}
    made = definition.generate_inputs(size, "cuda")
    logits = made["routing_logits"]
    if mode == "local":
        logits[:, offset : offset + 32] += 6
    elif mode == "none":
        logits[:, offset : offset + 32] -= 50
    elif mode == "one":
        logits[:, offset] = 10
    elif mode == "equal":
        logits.zero_()
        made["routing_bias"].zero_()
    hidden = torch.randn(seq_len, 7168, device="cuda").clamp(-2, 2).to(torch.float8_e4m3fn)
    return [
        logits,
        made["routing_bias"],
        hidden,
        made["hidden_states_scale"],
        weights[0],
        made["gemm1_weights_scale"],
        weights[1],
        made["gemm2_weights_scale"],
        offset,
        2.5,
    ]


def check_on_gpu(module, inputs):
    """Twice into poisoned outputs: the error's norm within that of an fp8 intermediate, and no counter left behind.
    Returns the second output."""
    expected = definition.run(*inputs).float()
    for _ in range(2):
        out = torch.full(expected.shape, float("nan"), dtype=torch.bfloat16, device="cuda")
        module.run(*inputs, out)
        assert (out.float() - expected).norm() <= 0.03 * expected.norm()
    return out.float()


@pytest.mark.gpu
@pytest.mark.parametrize("variant", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "seq_len, offset, mode",
    [
        (1, 0, "none"),
        (1, 224, "local"),
        (3, 17, "local"),
        (8, 0, "equal"),
        (9, 100, "one"),
        (15, 96, ""),
        (16, 32, "local"),
        (16, 200, "one"),
        (64, 96, "one"),
        (65, 96, "one"),
        (129, 32, "local"),
        (257, 32, ""),
        (1000, 100, ""),
        (2049, 64, "one"),
        (3001, 128, "local"),
        (1500, 224, "none"),
    ],
)
def test_every_variant_against_the_definition(module, weights, monkeypatch, variant, seq_len, offset, mode):
    if variant == 0 and seq_len > module.MOST_ROUTED:
        pytest.skip("the kernels for up to 16 tokens")
    monkeypatch.setattr(module, "choose_variant", lambda seq_len: variant)
    check_on_gpu(module, gpu_inputs(weights, seq_len, offset, mode))


def workloads():
    return Catalog.open(ROOT).workloads(DEFINITION)


@pytest.mark.gpu
@pytest.mark.parametrize("workload", workloads(), ids=lambda workload: f"seq_len={workload.axes['seq_len']}")
def test_the_workloads(module, weights, workload):
    """Their routing, by their seeds, and at least 99 % of the elements within the contest's tolerance."""
    contract = Catalog.open(ROOT).definition(DEFINITION)
    case = case_of_workload(contract, workload)
    inputs = gpu_inputs(weights, workload.axes["seq_len"], case.scalars["local_expert_offset"], "", case.seed)
    expected = definition.run(*inputs).float()
    error = (check_on_gpu(module, inputs) - expected).abs()
    contest = next(tolerance for tolerance in contract.tolerances if tolerance.name == "contest")
    within = (error <= contest.atol) | (error <= contest.rtol * expected.abs())
    assert within.float().mean() >= 0.99


@pytest.mark.gpu
def test_random_sizes_and_offsets(module, weights):
    generator = torch.Generator().manual_seed(7)
    for _ in range(20):
        seq_len = int(2 ** (torch.rand((), generator=generator) * 13.5))
        offset = int(torch.randint(0, 225, (), generator=generator))
        check_on_gpu(module, gpu_inputs(weights, seq_len, offset, ["", "local", "one"][seq_len % 3]))


@pytest.mark.gpu
def test_in_a_graph(module, weights):
    inputs = gpu_inputs(weights, 56, 96, "")
    expected = definition.run(*inputs).float()
    out = torch.empty(expected.shape, dtype=torch.bfloat16, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # out may lie where the reference still computes
    with torch.cuda.stream(stream):
        module.run(*inputs, out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        module.run(*inputs, out)
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert (out.float() - expected).norm() <= 0.03 * expected.norm()


SANITIZED = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("derby_moe_sm90", sys.argv[1])
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
inputs = torch.load(sys.argv[2], map_location="cuda", weights_only=True)
out = torch.full((inputs[2].shape[0], 7168), float("nan"), dtype=torch.bfloat16, device="cuda")
module.run(*inputs, out)
assert out.isfinite().all()
"""


@pytest.mark.gpu
@pytest.mark.parametrize("seq_len", [8, 20])  # on either side of the limit up to which the first GEMM routes for itself
@pytest.mark.parametrize("tool, flags", [("memcheck", ""), ("racecheck", "-DDERBY_RACECHECK")])
def test_under_compute_sanitizer(module, weights, tmp_path, seq_len, tool, flags):
    """Racecheck with a build of its own, see experts_parts.cuh."""
    sanitizer = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if sanitizer is None:
        pytest.skip("no compute-sanitizer on the PATH or in /usr/local/cuda/bin")
    torch.save(gpu_inputs(weights, seq_len, 96, "local"), tmp_path / "inputs.pt")
    (tmp_path / "run.py").write_text(SANITIZED)
    found = subprocess.run(
        [
            sanitizer,
            "--tool",
            tool,
            "--error-exitcode",
            "9",
            sys.executable,
            tmp_path / "run.py",
            module.__file__,
            tmp_path / "inputs.pt",
        ],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
            "NVCC_APPEND_FLAGS": flags,
            "XDG_CACHE_HOME": str(tmp_path),
        },
    )
    assert found.returncode == 0, found.stdout[-2000:]
