"""The CUDA libraries of solutions, built here for one architecture by the solutions' own loader.

A library has C functions that solutions call through ctypes, so it knows nothing of torch and loads under any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kernelderby.catalog import Solution

# Solutions, an architecture ("90a"), told -> solution -> its libraries' files by name, or why there are none.
Build = Callable[[Sequence[Solution], str, Callable[[str], None]], Mapping[str, dict[str, bytes] | str]]


def has_libraries(solution: Solution) -> bool:
    return any(path.endswith(".cu") for path in solution.sources)


def build_libraries(
    solutions: Sequence[Solution], architecture: str, build: Build, told: Callable[[str], None]
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Path inside the package -> bytes, and of solutions that could not be built the reason, one line each."""
    files: dict[str, bytes] = {}
    failed: dict[str, str] = {}
    for solution, found in build([*filter(has_libraries, solutions)], architecture, told).items():
        if isinstance(found, str):
            failed[solution] = found
        else:
            files |= {f"solutions/{solution}/{name}_sm{architecture}.so": data for name, data in found.items()}
    return dict(sorted(files.items())), failed
