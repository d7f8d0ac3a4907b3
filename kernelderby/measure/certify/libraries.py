"""The libraries of CUDA solutions for an architecture, built by their own loaders, in workers behind the fences."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernelderby.catalog import Catalog, Solution
from kernelderby.errors import DerbyError
from kernelderby.measure.certify.fenced import fenced
from kernelderby.measure.wire.process import interruptible
from kernelderby.measure.wire.replies import LibrariesSeen, text
from kernelderby.measure.wire.sources import cache_folder
from kernelderby.measure.worker.build import BuildFailed, load_solution, solution_module
from kernelderby.store.files import read_bytes

_NAME = re.compile(r"\w{1,100}", re.ASCII)  # it becomes a part of a path


def library_files(
    catalog: Catalog, solutions: Sequence[Solution], architecture: str, told: Callable[[str], None]
) -> dict[str, dict[str, bytes] | str]:
    """Solution -> name -> every CudaLibrary of its modules, or in one line why there is none. architecture: "90a".
    told: of each solution that is built. A cache of the solution's own keeps what was built."""

    def of_one(solution: Solution) -> dict[str, bytes] | str:
        told(solution.name)
        try:
            return _files(catalog, solution, architecture)
        except DerbyError as error:
            return str(error)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool, interruptible():
        return dict(zip([each.name for each in solutions], pool.map(of_one, solutions), strict=True))


def _files(catalog: Catalog, solution: Solution, architecture: str) -> dict[str, bytes]:
    with fenced(catalog, solution) as ask:
        paths = ask(LibrariesSeen, libraries_here, architecture=architecture).paths
    if wrong := next((name for name in paths if not _NAME.fullmatch(name)), None):
        raise DerbyError(f"a library is called {text(wrong, 80)!r}; name it by letters, digits and underscores")
    own = cache_folder().resolve()
    for name, path in paths.items():  # the worker has ended, and may have read less than this process
        if not Path(path).resolve().is_relative_to(own):
            raise DerbyError(f"{name}: was built at {text(path, 200)!r}, outside of the cache; build it there")
    return {name: read_bytes(Path(path).resolve()) for name, path in paths.items()}


def libraries_here(root: Path, definition: str, solution: str, architecture: str) -> LibrariesSeen:
    """As library_files() of one, in this process: a worker's."""
    catalog = Catalog.open(root)
    chosen = catalog.solution(solution)
    try:
        load_solution(catalog.definition(definition), chosen)
        main = solution_module(chosen).__name__
        own = [each for name, each in [*sys.modules.items()] if name == main or name.startswith(f"{main}.")]
        libraries = [each for one in own for each in vars(one).values() if type(each).__name__ == "CudaLibrary"]
        return LibrariesSeen({each.name: str(each.build(architecture)) for each in libraries})
    except (BuildFailed, RuntimeError, ImportError) as error:
        raise DerbyError(str(error)) from None
