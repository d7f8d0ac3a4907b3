"""The CUDA libraries of solutions, built here for one architecture by the solutions' own loader.

A library has C functions that solutions call through ctypes, so it knows nothing of torch and loads under any.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernelderby.catalog import Solution
from kernelderby.errors import DerbyError

_BUILD = """
import importlib.util, json, pathlib, sys
folder, file, architecture = sys.argv[1:]
spec = importlib.util.spec_from_file_location("solution", pathlib.Path(folder, file))
module = importlib.util.module_from_spec(spec)
sys.modules["solution"] = module
spec.loader.exec_module(module)
own = [each for name, each in sys.modules.items() if name.partition(".")[0] == "solution"]
libraries = [each for one in own for each in vars(one).values() if type(each).__name__ == "CudaLibrary"]
print(json.dumps({each.name: str(each.build(architecture)) for each in libraries}))
"""


def has_libraries(solution: Solution) -> bool:
    return any(path.endswith(".cu") for path in solution.sources)


def build_libraries(
    solutions: Sequence[Solution], architecture: str, told: Callable[[str], None], python: str = sys.executable
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Path inside the package -> bytes, and of solutions that could not be built the reason, one line each.
    architecture: "90a". The user's cache keeps what was built. python: one that has torch and triton."""
    files: dict[str, bytes] = {}
    failed: dict[str, str] = {}

    def build(solution: Solution) -> None:
        told(solution.name)
        try:
            for name, path in _built(solution.sources, solution.entry_point, architecture, python).items():
                files[f"solutions/{solution.name}/{name}_sm{architecture}.so"] = Path(path).read_bytes()
        except DerbyError as problem:
            failed[solution.name] = str(problem)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(build, filter(has_libraries, solutions)))
    return dict(sorted(files.items())), failed


def _built(sources: Mapping[str, str], entry: str, architecture: str, python: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="derby-export-") as scratch:
        for path, text in sources.items():
            place = Path(scratch, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        command = [python, "-B", "-c", _BUILD, scratch, entry.partition("::")[0], architecture]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise DerbyError(last.removeprefix("RuntimeError: "))
    built: dict[str, str] = json.loads(done.stdout)
    return built
