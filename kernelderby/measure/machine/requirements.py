"""Whether a machine can run a solution, and if not, why. Such a solution is skipped with the reason; it never fails."""

from __future__ import annotations

import importlib.util
import operator
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

from kernelderby.catalog import Solution
from kernelderby.catalog.libraries import how_to_install
from kernelderby.measure.fence.folders import own_caches, writable
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.machine.tools import find_tool
from kernelderby.measure.wire.process import worker_environment

_IMPORT_SECONDS = 120
_OF_LANGUAGE = {"triton": "triton", "tilelang": "tilelang", "cuda": "flashinfer_bench", "cpp": "flashinfer_bench"}
_TRIAL = """
import sys
from kernelderby.measure.fence.confine import confine

confine(sys.argv[1:])
import torch, {name}, os
os._exit(0)
"""


def why_not(solution: Solution, machine: Machine, imports: bool = True) -> str | None:
    """Why a solution cannot run on a machine, None if it can. imports: whether to import the modules that it needs;
    otherwise they are only looked up, and none of their code runs."""
    requires = solution.requires
    if machine.gpu is None:
        if machine.device == "cuda" or not requires.cpu:
            return f"needs a GPU: {machine.gpu_missing}"
    elif problem := _capability_problem(solution, machine.gpu.compute_capability):
        return problem
    for module in filter(None, ("torch", _OF_LANGUAGE.get(solution.language))):
        if not _is_installed(module):
            return f"module {module} is not installed{how_to_install(module)}"
    for module in requires.modules:
        if problem := (module_problem if imports else missing_module)(module):
            return problem
    for name in (*requires.executables, *(["nvcc"] if solution.language == "cuda" else [])):
        if not find_tool(name):
            return f"{name} is neither on the PATH nor in the CUDA toolkit; install the CUDA toolkit"
    return None


def try_modules(solutions: Iterable[Solution]) -> None:
    """Imports the modules that the solutions need, each in its own process and several at a time, so that why_not()
    knows the outcome. torch alone takes seconds to import, and a machine may have a dozen libraries."""
    names = dict.fromkeys(name for solution in solutions for name in solution.requires.modules)
    with ThreadPoolExecutor(max_workers=max(2, min(8, os.cpu_count() or 1))) as pool:
        list(pool.map(module_problem, names))


def _capability_problem(solution: Solution, capability: str) -> str | None:
    least, most = solution.requires.minimum_compute_capability, solution.requires.maximum_compute_capability
    for limit, words, fails in ((least, "newer", operator.lt), (most, "older", operator.gt)):
        if limit and fails(_pair(capability), _pair(limit)):
            return f"needs compute capability {limit} or {words}; this GPU has {capability}"
    return None


def _pair(capability: str) -> tuple[int, int]:
    major, _, minor = capability.partition(".")
    return int(major), int(minor or 0)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def missing_module(name: str) -> str | None:
    """Why a module is missing, None if it is found. Nothing of it is imported."""
    if not all(part.isidentifier() for part in name.split(".")):
        return f"{name!r:.60} is no name of a module"
    if not _is_installed(name):
        return f"module {name} is not installed{how_to_install(name.partition('.')[0])}"
    first, *others = name.split(".")
    found = importlib.util.find_spec(first)  # for a module without parents nothing runs
    for part in others:
        places = found.submodule_search_locations if found else None
        # Without the parent's name: for a folder without __init__.py Python would look for the imported parent.
        found = PathFinder.find_spec(part, places) if found and places else None
    return None if found else f"module {name} is not installed"


@cache
def module_problem(name: str) -> str | None:
    """Why a module cannot be imported, None if it can. It is imported in a process behind a worker's fences, because a
    set chooses it, and because a library built for another CUDA can crash its process."""
    if problem := missing_module(name):
        return problem
    with tempfile.TemporaryDirectory(prefix="kernelderby-") as folder:
        try:
            # -P and an empty folder, since files in the current directory belong to the set, not to the machine.
            done = subprocess.run(
                [sys.executable, "-P", "-c", _TRIAL.format(name=name), *map(str, writable(Path(folder), Path(folder)))],
                cwd="/",
                capture_output=True,
                text=True,
                timeout=_IMPORT_SECONDS,
                stdin=subprocess.DEVNULL,
                env={**worker_environment(), **own_caches(Path(folder)), "TMPDIR": folder},
            )
        except subprocess.TimeoutExpired:
            return f"module {name} took over {_IMPORT_SECONDS} s to import"
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return f"module {name} does not load: {lines[-1][:300]}"
