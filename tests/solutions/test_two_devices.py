"""The solutions on two GPUs of one process: what they set up once, they set up once on each.

Without a GPU, CUDA libraries are compiled as ever and linked with two_devices.cpp instead of the CUDA runtime: it keeps
the kernels' attributes for each of two devices and refuses launches that need more than was asked for there. Their
kernels are left as PTX and run nowhere. What they answered is recalled (nvcc.py) until a source changes.
"""

import ctypes
import dataclasses
import hashlib
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import nvcc
import pytest
import torch
from rowwise_cases import CATALOG, case_of, inputs_of, outputs_of, reference

from kernelderby.measure.judge.cases import case_of_workload
from kernelderby.measure.judge.correctness import compare, judge
from kernelderby.measure.worker.build import load_solution
from kernelderby.rows.measurement import Status

RUNTIME = Path(__file__).with_name("two_devices.cpp")
ARCHITECTURE = "90a"
LONG_DRAFTS = {
    "num_tokens": 8,
    "num_seqs": 4,
    "len_cu_seqlens": 5,
    "num_blocks": 64,
    "max_blocks_per_seq": 16384,
    "max_query_len": 2,
    "max_seq_len": 262144,
}
# Every library of the solutions for Hopper, in calls that ask for more shared memory than every kernel may have: the
# library's C function, definition, changes of SMALL_AXES.
CALLS = {
    "derby_attention_forward_sm90": ("attention_forward", {}),
    "derby_unified_attention_sm90": ("unified_attention", {}),
    "derby_short_attention": ("unified_attention", {"head_dim": 128}),
    "derby_decode_attention": ("unified_attention", {"head_dim": 128, **LONG_DRAFTS}),
    "derby_decode_wide": ("unified_attention", {"head_dim": 96, **LONG_DRAFTS}),
    "derby_attention_in_shares": ("unified_attention", {"head_dim": 256, **LONG_DRAFTS}),
    "derby_paged_attention_decode_sm90": (
        "paged_attention_decode",
        {"num_seqs": 1, "num_blocks": 300, "max_blocks_per_seq": 300, "max_context_len": 4800},
    ),
    "derby_mla_decode_attention_sm90": (
        "mla_decode_attention",
        {"batch_size": 1, "num_heads": 128, "cache_len": 1300, "max_context_len": 1300},
    ),
    "derby_mla_paged_decode_attention_sm90": (
        "mla_paged_decode_attention",
        {"batch_size": 1, "num_heads": 128, "num_blocks": 84, "max_blocks_per_seq": 84, "max_context_len": 1300},
    ),
    "derby_linear_sigmoid_mul_sm90": ("linear_sigmoid_mul", {}),
    "derby_block_scaled_mm_sm90": ("block_scaled_mm", {}),
    "derby_fused_moe_sm90": ("fused_moe", {}),
    "derby_fp8_blockscale_fused_moe_sm90": ("fp8_blockscale_fused_moe", {}),
}
MOE = "derby_moe_sm90"  # its tensors are too large to be made here
# The device of a call, and the one that the CUDA runtime names: who takes the second for the first launches in vain.
FIRST, DECEIVED, SECOND = (0, 0), (1, 0), (1, 1)


def edited(solution, *edits):
    """The solution; edits: (old, new), each in the one source that holds `old`."""
    sources = dict(solution.sources)
    for old, new in edits:
        (holder,) = [path for path, text in sources.items() if old in text]
        sources[holder] = sources[holder].replace(old, new)
    return dataclasses.replace(solution, sources=sources)


def loaded(solution):
    run = load_solution(CATALOG.definition(solution.definition), solution)
    return sys.modules[run.__module__]


def called_by(name):
    """The solution of CALLS that uses this library."""
    return CATALOG.solution(f"derby_{CALLS[name][0]}_sm90")


class Process:
    """What stands for a process with two GPUs. called: names of libraries -> what their C function returned for FIRST,
    DECEIVED and SECOND. paths: of all libraries called."""

    def __init__(self, nvcc):
        self.nvcc, self.called, self.paths = nvcc, {}, []

    def __call__(self, library, device, *arguments):
        path = library.build(ARCHITECTURE, self.nvcc.parent)
        function, runtime = library.load(path), ctypes.CDLL(str(path))
        addresses = [value.data_ptr() if isinstance(value, torch.Tensor) else value for value in arguments]
        errors = []
        for places in (FIRST, DECEIVED, SECOND):
            runtime.two_devices_use(*places)
            before = runtime.two_devices_launches()
            errors.append(function(*addresses, None))
            assert errors[-1] or runtime.two_devices_launches() > before, f"{library.name} launched nothing"
        self.called[library.name] = errors
        self.paths.append(path)

    def recalled(self, solutions, make):
        """make()'s answer, made again when these solutions, this module, RUNTIME or nvcc's release have changed."""
        sources = [nvcc.tokens(path) for path in (RUNTIME, Path(__file__))]
        wrapper = re.sub(r'"/[^"]*"', "", self.nvcc.read_text())  # without the folders of this machine
        facts = [nvcc.release(self.nvcc), wrapper, sources, [each.hash for each in solutions]]
        return nvcc.recalled(facts, make)

    def run(self, name, *edits):
        """The call of CALLS, of the solution with these edits: the errors for FIRST, DECEIVED and SECOND."""
        operator, changes = CALLS[name]
        solution = loaded(edited(called_by(name), *edits))
        case = case_of(operator, **changes)
        libraries = sys.modules[f"{solution.__name__}.cuda_library"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(libraries, "find_nvcc", lambda: str(self.nvcc))
            patch.setattr(libraries.CudaLibrary, "__call__", lambda *given: self(*given))
            properties = types.SimpleNamespace(multi_processor_count=132)
            patch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
            solution.run(*inputs_of(operator, case).values(), *outputs_of(operator, case).values())
        assert name in self.called, f"{sorted(self.called)} called, not {name}"
        return self.called[name]


@pytest.fixture
def process():
    """A Process. Its nvcc leaves kernels as PTX, not optimised, which takes seconds, and links RUNTIME, compiled once;
    what it makes is for these tests alone. A library's own functions come before those of a CUDA runtime that torch may
    have brought."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    places = [shutil.which("nvcc"), *(f"{home}/bin/nvcc" for home in homes if home)]
    compiler = next((place for place in places if place and os.access(place, os.X_OK)), None)
    if compiler is None:
        pytest.skip("no nvcc to compile the libraries with")
    runtime = nvcc.program(compiler, RUNTIME, "-O3", "-std=c++17", "-Xcompiler", "-fPIC", "-c").path
    text = (
        "#!/bin/sh\n"
        "for given; do\n"
        '    shift; set -- "$@" "$(printf %s "$given" | sed s/code=sm_/code=compute_/)"\n'
        "done\n"
        f'exec "{compiler}" "$@" -Xcicc -O0 -Xcompiler -O0 -cudart none -Xlinker -Bsymbolic-functions '
        f'-Xlinker "{runtime}"\n'
    )
    wrapper = runtime.with_name(hashlib.sha256(text.encode()).hexdigest()[:8]) / "nvcc"
    if not wrapper.exists():
        wrapper.parent.mkdir(exist_ok=True)
        fresh = wrapper.with_name(f"nvcc.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o700)
        fresh.replace(wrapper)
    return Process(wrapper)


def shared_by_all(path):
    """Symbols that the dynamic linker gives a whole process once (STB_GNU_UNIQUE), whichever library has them;
    `encode`, a function of the driver, may be."""
    said = subprocess.run(["nm", "-C", path], capture_output=True, text=True, check=True).stdout
    return [name for name in re.findall(r"^\S+ u (.*)", said, re.MULTILINE) if not name.endswith("::encode")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CALLS)
def test_a_call_on_the_first_device_and_on_the_second(name, process):
    """And that a library would fail that set its kernels up once a process."""

    def call():
        return [*process.run(name), [shared_by_all(path) for path in process.paths]]

    first, deceived, second, shared = process.recalled([called_by(name)], call)
    assert (first, second) == (0, 0) and deceived != 0
    assert not any(shared)


@pytest.mark.timeout(600)
def test_two_builds_in_one_process(process):
    """As when a solution is edited and called again. A template's statics are one for both unless its namespace has no
    name or it is static itself, and the second build's kernels are never set up."""
    name, header = "derby_decode_attention", "What the host sets up before the first launch"
    shared = ("namespace {\n\n// PLACES", "inline namespace shared {\n\n// PLACES")
    builds = [[], *([(header, f"{header}, build {number}")] for number in (2, 3, 4))]
    for build in builds[2:]:
        build.append(shared)

    def call():
        return [[process.run(name, *build)[::2], shared_by_all(process.paths[-1])] for build in builds]

    first, second, third, fourth = process.recalled([edited(called_by(name), *build) for build in builds], call)
    assert first[0] == second[0] == third[0] == [0, 0] != fourth[0]
    assert third[1]


@pytest.mark.timeout(600)
def test_the_library_of_large_tensors(process):
    """derby_moe_sm90's: each variant on each device."""

    def call():
        solution = loaded(CATALOG.solution(MOE))
        libraries = sys.modules[f"{solution.__name__}.cuda_library"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(libraries, "find_nvcc", lambda: str(process.nvcc))
            path = solution.library.build(ARCHITECTURE, process.nvcc.parent)
        function, runtime, address, works = solution.library.load(path), ctypes.CDLL(str(path)), 16, []
        given = [
            solution.Call(*[address] * 13, 1.0, 0, solution.MOST_ROUTED, *[address] * 3, variant, 132)
            for variant in range(4)
        ]
        for places in (FIRST, DECEIVED, SECOND):
            runtime.two_devices_use(*places)
            works.append([function(each, None) == 0 for each in given])
        return [*works, shared_by_all(path)]

    assert process.recalled([CATALOG.solution(MOE)], call) == [[True] * 4, [False] * 4, [True] * 4, []]


# On GPUs --------------------------------------------------------------------------------------------------------------


def derby_solutions():
    return [solution for solution in CATALOG.solutions.values() if solution.author == "kernelderby"]


def cases(solution):
    """Cases of CALLS if it has some, else SMALL_AXES; for a definition of one size, its first workload."""
    operator = solution.definition
    changes = [changes for other, changes in CALLS.values() if other == operator] or [{}]
    if operator.startswith("moe_fp8_block_scale"):
        return [case_of_workload(CATALOG.definition(operator), next(iter(CATALOG.workloads(operator))))]
    return [case_of(operator, **change) for change in changes]


def called(solution, run, case, device, given):
    """Outputs of a call with copies of the given inputs on the device, judged there; back on the first GPU, in the form
    in which the definition compares them."""
    operator = solution.definition
    canonical = getattr(reference(operator), "canonical_outputs", None)
    inputs = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    outputs = outputs_of(operator, case, device)
    run(*inputs.values(), *outputs.values())
    torch.cuda.synchronize(device)
    with torch.cuda.device(device):
        verdict = judge(CATALOG.definition(operator), reference(operator), inputs, outputs)
    assert verdict.status is Status.PASSED, (solution.name, device, verdict)
    outputs = canonical(outputs, inputs) if canonical else outputs
    return {name: tensor.to("cuda:0") for name, tensor in outputs.items()}


def on_both(solution, choose_device):
    """Calls on the first GPU, the second, and the first again; the results agree as the definition has it."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs in one process")
    run = load_solution(CATALOG.definition(solution.definition), solution)
    for case in cases(solution):
        given = inputs_of(solution.definition, case, "cuda:0")
        results = []
        for device in ("cuda:0", "cuda:1", "cuda:0"):
            with torch.cuda.device(device if choose_device else "cuda:0"):
                results.append(called(solution, run, case, device, given))
        for other in results[1:]:
            verdict = compare(CATALOG.definition(solution.definition), other, results[0])
            assert verdict.status is Status.PASSED, (solution.name, verdict)


@pytest.mark.gpu
@pytest.mark.timeout(900)  # nvcc
@pytest.mark.parametrize("solution", derby_solutions(), ids=lambda solution: solution.name)
def test_on_two_gpus(solution):
    on_both(solution, choose_device=True)


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [*dict.fromkeys(f"derby_{operator}_sm90" for operator, _ in CALLS.values())])
def test_on_a_gpu_that_is_not_the_current_one(name):
    """Which CUDA solutions take; Triton launches on the current device."""
    on_both(CATALOG.solution(name), choose_device=False)
