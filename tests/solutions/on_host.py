"""CUDA solutions without a GPU: their kernels compiled with g++ against cuda_on_host/ and called on CPU tensors through
their own run(), or compiled with nvcc and looked at."""

import faulthandler
import functools
import hashlib
import itertools
import os
import shutil
import subprocess
from pathlib import Path

import nvcc
import pytest
import rowwise_cases

from kernelderby.catalog.code import running_parts

HEADERS = Path(__file__).parent / "cuda_on_host"
OPERATORS = ("topk_filter", "moe_align_block_size", "moe_count_and_sort", "reshape_and_cache", "causal_conv1d")


# Mutants run once on little, so they are compiled the fastest way.
FAST = ("-O0",)
SHARE = 3  # `make test` takes one mutant in SHARE, DERBY_TESTS_ALL=1 all: each compiles for seconds
# The sanitizer of undefined behaviour: misaligned vectors and indices beyond an array end the process.
SANITIZED = ("-O1", "-fsanitize=undefined", "-fno-sanitize-recover=undefined")


def shared_library(source, *how, header="cuda_bf16.h", beside=()):
    """The file of a CUDA source, compiled by g++ against cuda_on_host/: once on this machine (nvcc.py). header: of
    cuda_on_host/, which the source includes; it is compiled once too. beside: what else of the source's folder counts.
    Skips where there is no g++."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to compile the kernels for the CPU")
    # Each library has its own inline variables: unique symbols would be one in the process, of several types.
    command = [compiler, *how, "-std=c++17", "-fPIC", "-fno-gnu-unique", "-w", f"-I{HEADERS}", "-x"]
    built, key = nvcc.kept_folder(), _key(tuple(command))
    parts = [key, header, *(path.read_text() for path in (source, *beside))]
    made = built / f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:24]}.so"
    if not made.exists():
        first = built / f"{key}-{header}"
        if not first.exists():
            _written(first.with_name(f"{first.name}.gch"), [*command, "c++-header", HEADERS / header])
            first.write_text(f'#include "{HEADERS / header}"\n')  # read where g++ cannot use what it made of it
        _written(made, [*command, "c++", "-shared", "-include", first, source])
    return made


@functools.cache
def _key(command):
    return nvcc.digest_of(command, [HEADERS])


def _written(path, command):
    """Runs a compiler that writes this file; whole or not at all, since other processes look for it."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    subprocess.run([*command, "-o", unfinished], check=True)
    unfinished.replace(path)


@functools.cache
def emulated(operator, *edits):
    """derby_<operator>'s module, its sources edited (old, new), and its library replaced by one for CPU tensors: a
    namespace of its functions. Skips where there is no g++."""
    module = rowwise_cases.module(operator, *edits)
    folder = Path(module.__file__).parent
    source = folder / module.library.sources[0]
    headers = sorted(each for each in folder.iterdir() if each.suffix == ".cuh")
    function = module.library.load(shared_library(source, *(FAST if edits else SANITIZED), beside=headers))

    def call(device, *arguments):
        addresses = [value.data_ptr() if hasattr(value, "data_ptr") else value for value in arguments]
        assert function(*addresses, None) == 0, "cudaErrorInvalidValue"

    module.library = call
    return module


def recalled_for(*solutions, compiler=""):
    """Of a test of mutants, or of what a compiler of that version makes: it is passed where it has passed before
    (nvcc.recalled()) with these solutions, their definitions and workloads, cuda_on_host/, its own module, this one and
    rowwise_cases."""

    def decorate(test):
        @functools.wraps(test)
        def run(*arguments, **named):
            counts = [_what_counts(test.__code__.co_filename, solutions), compiler]
            nvcc.recalled(counts, lambda: test(*arguments, **named))

        return run

    return decorate


@functools.cache
def _what_counts(path, names):
    here = Path(__file__).parent
    files = [Path(path), Path(__file__), Path(rowwise_cases.__file__)]
    files += [each for each in HEADERS.rglob("*") if each.is_file()]
    texts = {str(each.relative_to(here)): each.read_text() for each in files}
    catalog = rowwise_cases.CATALOG
    found = [catalog.solution(name) for name in names]
    operators = [
        (catalog.definition(each.definition).reference, catalog.workloads_path(each.definition).read_text())
        for each in found
    ]
    return [running_parts(texts), [each.hash for each in found], operators]


def share_of(mutants):
    """The share of a list or a dict that this run takes."""
    taken = list(mutants)[:: 1 if "DERBY_TESTS_ALL" in os.environ else SHARE]
    return {name: mutants[name] for name in taken} if isinstance(mutants, dict) else taken


def diagonal(*lists):
    """Combinations of values: each value of each list at least once, with DERBY_TESTS_ALL=1 every combination."""
    if "DERBY_TESTS_ALL" in os.environ:
        return list(itertools.product(*lists))
    return [tuple(each[i % len(each)] for each in lists) for i in range(max(map(len, lists)))]


def in_a_fork(call):
    """call()'s result from a process of its own: a kernel that waits for ever ends its process, and the result is
    None."""
    child = os.fork()
    if child == 0:
        try:
            faulthandler.disable()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os._exit(call())
        finally:
            os._exit(99)  # whatever it raised: the tests go on in one process
    status = os.waitpid(child, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else None


def nvcc_of(solution):
    """nvcc as the solution's module finds it. Skips without it."""
    try:
        return solution.cuda_library.find_nvcc()
    except RuntimeError as error:
        pytest.skip(str(error))


def nvcc_report(operator, architecture):
    """ptxas's report on derby_<operator>'s kernels (nvcc.Kernel). Skips without nvcc."""
    module = rowwise_cases.module(operator)
    return nvcc.kernels_of(nvcc_of(module), Path(module.__file__).parent / "kernel.cu", architecture)
