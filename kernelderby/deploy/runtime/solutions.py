"""The solutions that a package brings: which of them can run on a device, and their functions.

Nothing is compiled: a CUDA library lies beside its solution, and one that does not is not available. Triton compiles a
kernel at its first call outside a capture.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent / "solutions"
PREFIX = (__package__ or "").replace(".", "_")
log = logging.getLogger(PREFIX)
_functions: dict[str, Callable[..., Any] | None] = {}
_told: set[str] = set()


def tell(line: str, about: str | None = None) -> None:
    """Logs a line once in a process. about: of the lines about the same thing only the first is logged, whatever sizes
    they name, since a server meets new sizes for as long as it runs."""
    if (about or line) not in _told:
        _told.add(about or line)
        log.warning(line)


def can_run(about: Mapping[str, Any], device: torch.device, is_measured: bool) -> bool:
    """about: the solution's entry in operators.json. is_measured: the device is of the kind that the times are of."""
    if about["kind"] == "plain":
        return True
    if device.type != "cuda" or (about["kind"] == "own" and not is_measured):
        return False
    least, most = about["capability"]
    capability = list(torch.cuda.get_device_capability(device))
    if (least and capability < least) or (most and capability > most):
        return False
    return all(map(is_installed, about["modules"]))


@cache
def is_installed(module: str) -> bool:
    """Nothing of it is imported: util.find_spec() would import its parents, and raise where they are missing."""
    first, *others = module.split(".")
    try:
        found = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        return False
    for part in others:
        places = found.submodule_search_locations if found else None
        # Without the parent's name: for a folder without __init__.py Python would look for the imported parent.
        found = PathFinder.find_spec(part, places) if places else None
    return found is not None


def function_of(name: str, about: Mapping[str, Any]) -> Callable[..., Any] | None:
    """The entry point, called with the inputs, and with the outputs unless it returns them; None, with a line in the
    log, if it does not load."""
    if name not in _functions:
        try:
            _functions[name] = _load(name, about["entry"])
        except Exception as error:  # noqa: BLE001  a library of another version may raise anything
            tell(f"{name} does not load and is passed over: {type(error).__name__}: {str(error)[:160]}")
            _functions[name] = None
    return _functions[name]


def _load(name: str, entry: str) -> Callable[..., Any]:
    file, _, symbol = entry.partition("::")
    full_name = f"{PREFIX}_{name}"
    spec = importlib.util.spec_from_file_location(full_name, FOLDER / name / file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[full_name] = module  # before it runs: Triton looks its module up
    spec.loader.exec_module(module)
    own = [each for key, each in sys.modules.items() if key == full_name or key.startswith(f"{full_name}.")]
    for library in {id(each): each for one in own for each in vars(one).values() if _is_library(each)}.values():
        library.build = _Built(library)
    function: Callable[..., Any] = getattr(module, symbol)
    return function


def _is_library(value: object) -> bool:
    return type(value).__name__ == "CudaLibrary"


class _Built:
    """Stands in for a CudaLibrary's build(), which would compile: gives the library beside the solution."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def __call__(self, architecture: str, folder: object = None) -> Path:
        path = Path(self.library.folder) / f"{self.library.name}_sm{architecture}.so"
        if not path.is_file():
            raise ValueError(f"{path.name} is not in this package; export it anew where nvcc is")
        return path


def check_libraries() -> list[str]:
    """The names of the package's CUDA libraries, after this machine's loader has loaded each. OSError for one that it
    cannot load. Needs no GPU: kernels are loaded when they are first called."""
    found = sorted(FOLDER.glob("*/*_sm*.so"))
    for path in found:
        ctypes.CDLL(str(path))
    return [path.name for path in found]
