"""Loads code of a trace set: a definition's module, a solution's entry point."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelderby.catalog import Definition, Solution
from kernelderby.measure.wire.sources import import_file, write_once

PYTHON_LANGUAGES = ("python", "triton", "tilelang")
_LETTERS = 40  # of a solution's name in a folder's: with four bytes each, the folder's fits on every disk
_BY_NAME = """from pathlib import Path

from kernelderby.measure.wire.sources import import_file

path = Path({path!r})
import_file(path, __name__, path.parent)
"""


class BuildFailed(Exception):
    """The solution's code does not load, compile or name its entry point."""


def load_solution(definition: Definition, solution: Solution) -> Callable[..., Any]:
    """The entry point, which takes positional arguments: the inputs, then the outputs if it writes into them.
    BuildFailed with the reason if there is none. Exceptions of the solution's code during the import pass through.
    """
    if solution.language not in PYTHON_LANGUAGES:
        return _build_compiled(definition, solution)
    folder = write_once(f"{solution.name[:_LETTERS]}-{solution.text_hash}", solution.sources)
    _without_bytecode(folder)
    file = solution.entry_point.partition("::")[0]
    return _function(_imported(folder / file, _module_name(solution)), solution.entry_point)


def load_setup(solution: Solution) -> Callable[..., Any] | None:
    """The setup function of a solution that load_solution() has loaded; None if it names none."""
    if solution.setup is None:
        return None
    if solution.language not in PYTHON_LANGUAGES:
        raise BuildFailed(f"setup: a {solution.language} solution has none; write the solution in Python")
    file = solution.setup.partition("::")[0]
    module = sys.modules[_module_name(solution)]
    if file != solution.entry_point.partition("::")[0]:
        module = _imported(Path(str(module.__file__)).parent / file, f"{_module_name(solution)}_setup")
    return _function(module, solution.setup)


def solution_module(solution: Solution) -> ModuleType:
    """The module of a Python solution that load_solution() has loaded, for further names in it."""
    if solution.language not in PYTHON_LANGUAGES:
        raise BuildFailed(f"a {solution.language} solution is no module; write the solution in Python")
    return sys.modules[_module_name(solution)]


def _module_name(solution: Solution) -> str:
    """Without dots, so that it can be imported."""
    return re.sub(r"\W", "_", f"kernelderby_solution_{solution.name[:_LETTERS]}_{solution.text_hash}")


def _imported(path: Path, name: str) -> ModuleType:
    if path.suffix != ".py":
        raise BuildFailed(f"{path.name}: is no Python file; name a .py file")
    # A process that multiprocessing starts anew (spawn) gets this sys.path and imports the module by its name.
    sys.path.append(str(write_once(f"by-name-{name}", {f"{name}.py": _BY_NAME.format(path=str(path))})))
    return import_file(path, name, path.parent)


def _function(module: ModuleType, place: str) -> Callable[..., Any]:
    """place: file::function."""
    file, _, symbol = place.partition("::")
    function: object = getattr(module, symbol, None)
    if not callable(function):
        raise BuildFailed(f"{place}: {file} has no function {symbol!r}")
    return function


def _build_compiled(definition: Definition, solution: Solution) -> Callable[..., Any]:
    """CUDA and C++ go through flashinfer-bench's builders (TVM-FFI or torch extension)."""
    try:
        from flashinfer_bench.compile import BuilderRegistry
        from flashinfer_bench.data import Definition as BenchDefinition
        from flashinfer_bench.data import Solution as BenchSolution
    except ImportError as error:
        raise BuildFailed(
            f"{solution.language} solutions are built by flashinfer-bench, which is missing: {error}; "
            "pip install flashinfer-bench"
        ) from error
    described = json.loads(definition.path.read_text()) | {"reference": definition.reference}
    packed = {
        "name": solution.name,
        "definition": solution.definition,
        "author": solution.author,
        "spec": {
            "language": solution.language,
            "entry_point": solution.entry_point,
            "target_hardware": ["any"],
            "dependencies": list(solution.dependencies),
            "binding": solution.binding,
            "destination_passing_style": solution.destination_passing_style,
        },
        "sources": [{"path": path, "content": content} for path, content in solution.sources.items()],
    }
    built: Callable[..., Any] = BuilderRegistry.get_instance().build(
        BenchDefinition.model_validate(described), BenchSolution.model_validate(packed)
    )
    return built


def _without_bytecode(folder: Path) -> None:
    """Removes bytecode, which would run instead of the sources. Another process may do the same at the same time."""
    for place, folders, _ in os.walk(folder):
        if "__pycache__" in folders:
            folders.remove("__pycache__")
            shutil.rmtree(Path(place) / "__pycache__", ignore_errors=True)
