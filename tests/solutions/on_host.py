"""CUDA solutions on the CPU: their kernels compiled with g++ against cuda_on_host/, called through their own run()."""

import functools
import importlib.util
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

from kernelderby.catalog import Catalog

ROOT = Path(__file__).resolve().parents[2]
HEADERS = Path(__file__).parent / "cuda_on_host"
CATALOG = Catalog.open(ROOT)


def write(solution, folder):
    """The solution's sources, its shared files among them, as a loader lays them out."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in solution.sources.items():
        (folder / path).write_text(text)
    return folder


@functools.cache
def module_of(name, folder):
    """main.py of the solution of this name, from a copy under `folder`."""
    path = write(CATALOG.solutions[name], folder / name) / "main.py"
    spec = importlib.util.spec_from_file_location(f"on_host_{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@functools.cache
def definition_of(name):
    path = CATALOG.definitions[name].source_path
    spec = importlib.util.spec_from_file_location(f"on_host_definition_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def emulated(name, folder):
    """main.py of a CUDA solution, whose library runs on CPU tensors. Skips where there is no g++."""
    module = module_of(name, folder)
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to compile the kernels for the CPU")
    library = folder / name / "on_host.so"
    source = folder / name / module.library.sources[0]
    # With the sanitizer of undefined behaviour: misaligned vectors and indices beyond an array end the test.
    subprocess.run([compiler, "-O1", "-std=c++20", "-shared", "-fPIC", "-w", "-fsanitize=undefined",
                    "-fno-sanitize-recover=undefined", f"-I{HEADERS}", f"-I{folder / name}", "-x", "c++", str(source),
                    "-o", str(library)], check=True)
    function = module.library.load(library)

    def call(self, device, *arguments):
        addresses = [value.data_ptr() if hasattr(value, "data_ptr") else value for value in arguments]
        assert function(*addresses, None) == 0

    module.library.__class__ = type("OnHost", (type(module.library),), {"__call__": call})
    return module


def nvcc_report(name, folder, architecture):
    """What ptxas says of the solution's kernels: [(registers, bytes spilled, bytes of stack)], one a kernel. Skips where
    there is no nvcc."""
    module = module_of(name, folder)
    try:
        nvcc = module.cuda_library.find_nvcc()
    except RuntimeError as error:
        pytest.skip(str(error))
    source = folder / name / module.library.sources[0]
    done = subprocess.run([nvcc, "-O3", "-std=c++17", f"-gencode=arch=compute_{architecture},code=sm_{architecture}",
                           "-cubin", "-Xptxas", "-v", "-o", str(folder / name / "kernel.cubin"), str(source)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return types.SimpleNamespace(text=done.stderr)
