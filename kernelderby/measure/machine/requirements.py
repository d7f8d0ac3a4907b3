"""Can a solution run on a machine, and if not, why? What cannot is skipped with the reason, never failed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from kernelderby.catalog import Solution
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.machine.tools import find_tool

_IMPORT_SECONDS = 120


def why_not(solution: Solution, machine: Machine) -> str | None:
    """The reason why a solution cannot run on a machine, None when it can."""
    requires = solution.requires
    if machine.gpu is None:
        if machine.device == "cuda" or not requires.cpu:
            return f"needs a GPU: {machine.gpu_missing}"
    else:
        problem = _capability_problem(solution, machine.gpu.compute_capability)
        if problem:
            return problem
    for module in ("torch", *_of_language(solution)):
        if not _is_installed(module):
            return f"module {module} is not installed"
    for module in requires.modules:
        problem = module_problem(module)
        if problem:
            return problem
    for name in (*requires.executables, *(["nvcc"] if solution.language == "cuda" else [])):
        if not find_tool(name):
            return f"{name} is neither on the PATH nor in the CUDA toolkit; install the CUDA toolkit"
    return None


def try_modules(solutions: Iterable[Solution]) -> None:
    """Imports the modules that they need, each in a process of its own and several at a time, so that why_not() knows
    the outcome: torch alone takes seconds to import, and a machine may have a dozen libraries."""
    names = dict.fromkeys(name for solution in solutions for name in solution.requires.modules)
    with ThreadPoolExecutor(max_workers=max(2, min(8, os.cpu_count() or 1))) as pool:
        list(pool.map(module_problem, names))


def _capability_problem(solution: Solution, capability: str) -> str | None:
    requires = solution.requires
    if requires.minimum_compute_capability and _pair(capability) < _pair(requires.minimum_compute_capability):
        return f"needs compute capability {requires.minimum_compute_capability} or newer; this GPU has {capability}"
    if requires.maximum_compute_capability and _pair(capability) > _pair(requires.maximum_compute_capability):
        return f"needs compute capability {requires.maximum_compute_capability} or older; this GPU has {capability}"
    return None


def _pair(capability: str) -> tuple[int, int]:
    major, _, minor = capability.partition(".")
    return int(major), int(minor or 0)


def _of_language(solution: Solution) -> tuple[str, ...]:
    return {
        "triton": ("triton",),
        "tilelang": ("tilelang",),
        "cuda": ("flashinfer_bench",),
        "cpp": ("flashinfer_bench",),
    }.get(solution.language, ())


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


@cache
def module_problem(name: str) -> str | None:
    """Why a module cannot be imported, None when it can. Imported in a process of its own: a library built for
    another CUDA can take its process down."""
    if not all(part.isidentifier() for part in name.split(".")):
        return f"{name!r:.60} is no name of a module"
    if not _is_installed(name):
        return f"module {name} is not installed"
    try:
        # -P and a folder of its own: what lies in the current directory is the set's, not the machine's.
        done = subprocess.run(
            [sys.executable, "-P", "-c", f"import torch, {name}, os; os._exit(0)"],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=_IMPORT_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"module {name} took over {_IMPORT_SECONDS} s to import"
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return f"module {name} does not load: {lines[-1][:300]}"
