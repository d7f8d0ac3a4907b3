"""CUDA solutions without a GPU: their kernels compiled with g++ against cuda_on_host/ and called on CPU tensors through
their own run(), or compiled with nvcc and looked at."""

import ast
import faulthandler
import functools
import hashlib
import itertools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import nvcc
import pytest
import rowwise_cases

import kernelderby
from kernelderby.catalog.code import running_parts

HEADERS = Path(__file__).parent / "cuda_on_host"
INTERPRETER = Path(kernelderby.__file__).parent / "measure" / "worker" / "interpreter.py"
FIXTURES = Path(__file__).parent / "conftest.py"
ABOUT_RUNS = ("interpreted", "nvcc")  # modules that say in which process a test runs, and keep what was compiled
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
    """Of a test of kernels on the CPU, sound ones or mutants, or of what a compiler of that version makes: it is passed
    where it has passed before (nvcc.recalled()) with these solutions, their definitions, and what the test uses of the
    tests' modules, of cuda_on_host/ and of the workloads. "{name}" in a solution stands for the test's parameter. A
    change of the package does not count: its judge has tests of its own."""

    def decorate(test):
        @functools.wraps(test)
        def run(*arguments, **named):
            names = tuple(each.format(**named) for each in solutions)
            counts = [_what_counts(test.__code__.co_filename, test.__name__, names), compiler]
            nvcc.recalled(counts, lambda: test(*arguments, **named))

        return run

    return decorate


@functools.cache
def interpreter():
    """What counts beside a solution that Triton interprets: Triton's release, and the functions that replace some."""
    replaced = running_parts({"interpreter.py": INTERPRETER.read_text()})
    return f"{version('triton')} {hashlib.sha256(repr(replaced).encode()).hexdigest()[:16]}"


@functools.cache
def _what_counts(path, test, names):
    catalog = rowwise_cases.CATALOG
    found = [catalog.solution(name) for name in names]
    texts = used_by(Path(path), test)
    texts |= _headers_named_in([*texts.values(), *(text for each in found for text in each.sources.values())])
    with_workloads = any("workloads" in text for text in texts.values())
    operators = [
        (catalog.definition(name).reference, catalog.workloads_path(name).read_text() if with_workloads else "")
        for name in (each.definition for each in found)
    ]
    return [running_parts(texts), [each.hash for each in found], operators]


def _headers_named_in(texts):
    """The files of cuda_on_host/ whose names stand in these texts or in each other; those of its folders, and of
    attention_on_host/, where a string names the folder."""
    paths = [path for folder in (HEADERS, HEADERS.parent / "attention_on_host") for path in folder.rglob("*")]
    left = {os.path.relpath(path, HEADERS): path.read_text() for path in paths if path.is_file()}
    folders = {path: {*Path(path).parts[:-1]} - {".."} for path in left}
    quoted = {folder for each in folders.values() for folder in each if any(f'"{folder}"' in text for text in texts)}
    left, found = {path: text for path, text in left.items() if folders[path] <= quoted}, {}
    while new := {path: text for path, text in left.items() if any(_names(each, path) for each in texts)}:
        found |= new
        left = {path: text for path, text in left.items() if path not in new}
        texts = [*new.values()]
    return found


def _names(text, path):
    return re.search(rf"\b{re.escape(Path(path).name)}", text)


def used_by(path, test):
    """File -> the text of what a test uses of its module, of conftest.py and of the tests' modules that these import:
    what defines a name that stands in the test, in a string too, or in what it uses; and what a used module does when
    it is imported. Left out are ABOUT_RUNS."""
    used, seen, left = {}, set(), [(path, test)]
    while left:
        one, name = left.pop()
        # This decorator says what counts; it does not count itself.
        if (one, name) in seen or name == "recalled_for":
            continue
        seen.add((one, name))
        module = _Module.of(one)
        if source := module.imported.get(name):
            left.append(source)
        parts = [part for part in module.parts if part.defined is None or name in part.defined]
        if all(part.defined is None for part in parts):
            continue
        used.setdefault(one, set()).update(parts)
        names = {name for part in parts for name in part.names}
        left += [(place, each) for place in (one, *module.whole) for each in names]
        left += [(FIXTURES, each) for part in _Module.of(FIXTURES).parts for each in names & (part.defined or set())]
    return {
        one.name: "\n".join(part.text for part in _Module.of(one).parts if part in used[one]) for one in sorted(used)
    }


@dataclass(frozen=True)
class _Part:
    """A statement of a module. defined: the names that it defines; None: it acts. names: all that stand in it."""

    text: str
    names: frozenset[str]
    defined: frozenset[str] | None


@dataclass(frozen=True)
class _Module:
    """imported: name -> module and name there, whole: modules that are imported as such; of the tests' modules."""

    parts: list[_Part]
    imported: dict[str, tuple[Path, str]]
    whole: list[Path]

    @staticmethod
    @functools.cache
    def of(path):
        text = path.read_text()
        lines, parts, imported, whole = text.splitlines(), [], {}, []
        for node in ast.parse(text).body:
            if isinstance(node, ast.Import):
                whole += filter(None, (_place(path, each.name) for each in node.names))
            elif isinstance(node, ast.ImportFrom):
                if place := _place(path, node.module):
                    imported |= {each.asname or each.name: (place, each.name) for each in node.names}
            elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):  # a docstring
                first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
                own = "\n".join(lines[first - 1 : node.end_lineno])
                parts.append(_Part(own, frozenset(re.findall(r"[A-Za-z_]\w*", own)), _defined(node)))
        return _Module(parts, imported, whole)


def _place(path, module):
    """The file of a module that this one imports, if it is one of the tests'."""
    folders = () if module in ABOUT_RUNS else (path.parent, Path(__file__).parents[1])
    places = (folder / f"{module}.py" for folder in folders)
    return next((place for place in places if place.is_file()), None)


def _defined(node):
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return frozenset({node.name})
    if not isinstance(node, (ast.Assign, ast.AnnAssign)):
        return None
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names = (each for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))
    return frozenset(each.id for each in names if isinstance(each.ctx, ast.Store)) or None


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
