"""CUDA solutions without a GPU: their kernels compiled with g++ against cuda_on_host/ and called on CPU tensors through
their own run(), or compiled with nvcc and looked at."""

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import nvcc
import pytest
import rowwise_cases

HEADERS = Path(__file__).parent / "cuda_on_host"
OPERATORS = ("topk_filter", "moe_align_block_size", "moe_count_and_sort", "reshape_and_cache", "causal_conv1d")


@functools.cache
def emulated(operator, *edits):
    """derby_<operator>'s module, its sources edited (old, new), and its library replaced by one for CPU tensors: a
    namespace of its functions. Skips where there is no g++."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to compile the kernels for the CPU")
    module = rowwise_cases.module(operator, *edits)
    source = Path(module.__file__).parent / module.library.sources[0]
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "on_host.so"
        # The sanitizer of undefined behaviour: misaligned vectors and indices beyond an array end the process. Mutants
        # run once on little, so they are compiled the fastest way.
        how = ["-O0"] if edits else ["-O1", "-fsanitize=undefined", "-fno-sanitize-recover=undefined"]
        subprocess.run(
            [
                compiler,
                *how,
                "-std=c++20",
                "-shared",
                "-fPIC",
                "-w",
                f"-I{HEADERS}",
                "-x",
                "c++",
                str(source),
                "-o",
                str(made),
            ],
            check=True,
        )
        function = module.library.load(made)

    def call(device, *arguments):
        addresses = [value.data_ptr() if hasattr(value, "data_ptr") else value for value in arguments]
        assert function(*addresses, None) == 0, "cudaErrorInvalidValue"

    module.library = call
    return module


def nvcc_report(operator, architecture):
    """What ptxas says of derby_<operator>'s kernels (nvcc.Kernel). Skips without nvcc."""
    module = rowwise_cases.module(operator)
    try:
        compiler = module.cuda_library.find_nvcc()
    except RuntimeError as error:
        pytest.skip(str(error))
    return nvcc.compiled(compiler, Path(module.__file__).parent / "kernel.cu", architecture).kernels
