"""Sources that a set holds as text become files in the user's cache, and modules."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

from kernelderby.errors import DerbyError
from kernelderby.store.files import cache_home, write_folder


def cache_folder() -> Path:
    """The user's cache folder. DerbyError for a user without a home."""
    base = cache_home()
    if not os.path.isabs(base):
        raise DerbyError("there is no home folder for the cache of compiled code; set $XDG_CACHE_HOME")
    return Path(base, "kernelderby")


def write_once(name: str, files: dict[str, str]) -> Path:
    """A cache folder with these files. Its name contains their hash, and a rename makes it appear whole or not at
    all."""
    folder = cache_folder() / name
    if _holds(folder, files):
        return folder
    made = write_folder(folder, files)
    if made != folder and _holds(folder, files):  # another process was first
        shutil.rmtree(made)
        return folder
    return made


def _holds(folder: Path, files: dict[str, str]) -> bool:
    return all(
        (folder / path).is_file() and (folder / path).read_text(encoding="utf-8") == content
        for path, content in files.items()
    )


def import_file(path: Path, name: str, beside: Path | None = None) -> ModuleType:
    """beside: a folder whose files it may import relatively (`from .kernels import ...`)."""
    places = None if beside is None else [str(beside)]
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=places)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name}: is no Python file; name a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs, because dataclasses and Triton look their module up
    spec.loader.exec_module(module)
    return module
