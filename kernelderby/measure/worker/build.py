"""Load what a trace set holds as text: a definition's module, a solution's entry point."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelderby.catalog import Definition, Solution
from kernelderby.errors import DerbyError
from kernelderby.files import write_folder

PYTHON_LANGUAGES = ("python", "triton", "tilelang")


class BuildFailed(Exception):
    """The solution's code does not load, compile or name its entry point."""


def cache_folder() -> Path:
    """DerbyError for a user without a home."""
    base, home = os.environ.get("XDG_CACHE_HOME"), os.path.expanduser("~")
    if not base and not os.path.isabs(home):
        raise DerbyError("there is no home to cache in what a solution compiles; set $XDG_CACHE_HOME")
    return Path(base or f"{home}/.cache") / "kernelderby"


def load_definition_module(definition: Definition) -> ModuleType:
    """The module with run() and, in our own sets, generate_inputs(), count_cost() and SMALL_AXES."""
    if definition.source_path is not None:
        return _import_file(definition.source_path, f"kernelderby_definition_{definition.name}")
    digest = hashlib.sha256(definition.reference.encode()).hexdigest()[:16]
    folder = _write_once(f"definition-{definition.name}-{digest}", {"reference.py": definition.reference})
    return _import_file(folder / "reference.py", f"kernelderby_definition_{definition.name}")


def load_solution(definition: Definition, solution: Solution) -> Callable[..., Any]:
    """The entry point, to be called with positional arguments: the inputs, then the outputs if it writes into them.

    BuildFailed with the reason when it cannot be had. Whatever the solution's own code raises on import goes through.
    """
    if solution.language not in PYTHON_LANGUAGES:
        return _build_compiled(definition, solution)
    folder = _write_once(f"{solution.name}-{solution.text_hash}", solution.sources)
    _without_bytecode(folder)
    file = solution.entry_point.partition("::")[0]
    return _function(_import_file(folder / file, _module_name(solution)), solution.entry_point)


def load_setup(solution: Solution) -> Callable[..., Any] | None:
    """The setup function of a solution that load_solution() has loaded; None where it names none."""
    if solution.setup is None:
        return None
    if solution.language not in PYTHON_LANGUAGES:
        raise BuildFailed(f"setup: a {solution.language} solution has none; write the solution in Python")
    file = solution.setup.partition("::")[0]
    module = sys.modules[_module_name(solution)]
    if file != solution.entry_point.partition("::")[0]:
        module = _import_file(Path(str(module.__file__)).parent / file, f"{_module_name(solution)}_setup")
    return _function(module, solution.setup)


def solution_module(solution: Solution) -> ModuleType:
    """The module of a Python solution that load_solution() has loaded, for what stands in it beside the entry point."""
    if solution.language not in PYTHON_LANGUAGES:
        raise BuildFailed(f"a {solution.language} solution is no module; write the solution in Python")
    return sys.modules[_module_name(solution)]


def _module_name(solution: Solution) -> str:
    return f"kernelderby_solution_{solution.name}_{solution.text_hash}"


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
    spec = {
        "language": solution.language,
        "entry_point": solution.entry_point,
        "target_hardware": ["any"],
        "dependencies": list(solution.dependencies),
        "binding": solution.binding,
        "destination_passing_style": solution.destination_passing_style,
    }
    sources = [{"path": path, "content": content} for path, content in solution.sources.items()]
    described = json.loads(definition.path.read_text())
    described["reference"] = definition.reference
    built: Callable[..., Any] = BuilderRegistry.get_instance().build(
        BenchDefinition.model_validate(described),
        BenchSolution.model_validate(
            {
                "name": solution.name,
                "definition": solution.definition,
                "author": solution.author,
                "spec": spec,
                "sources": sources,
            }
        ),
    )
    return built


def _write_once(name: str, files: dict[str, str]) -> Path:
    """A cache folder of these files. The name holds their hash; a rename makes it appear whole or not at all."""
    folder = cache_folder() / name
    if _holds(folder, files):
        return folder
    made = write_folder(folder, files)
    if made != folder and _holds(folder, files):  # another process was first
        shutil.rmtree(made)
        return folder
    return made


def _without_bytecode(folder: Path) -> None:
    """What somebody left there would run instead of the sources. Another process may do the same at the same time."""
    for place, folders, _ in os.walk(folder):
        if "__pycache__" in folders:
            folders.remove("__pycache__")
            shutil.rmtree(Path(place) / "__pycache__", ignore_errors=True)


def _holds(folder: Path, files: dict[str, str]) -> bool:
    return all(
        (folder / path).is_file() and (folder / path).read_text(encoding="utf-8") == content
        for path, content in files.items()
    )


def _import_file(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BuildFailed(f"{path.name}: is no Python file; name a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses and Triton look their module up
    spec.loader.exec_module(module)
    return module
