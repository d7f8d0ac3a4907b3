"""The files of a package: the runtime, operators.json and the sources of its solutions, as path -> bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kernelderby import __version__
from kernelderby.catalog import Definition, TensorSpec
from kernelderby.deploy.winners import AllWinners, Winners
from kernelderby.hardware import find_gpu
from kernelderby.store.files import read_bytes

RUNTIME = Path(__file__).parent / "runtime"
NAME = "kernelderby_winners"
LICENCES = ("LICENSE", "NOTICE")


def contents(found: AllWinners) -> dict[str, bytes]:
    """Path inside the package -> bytes. CUDA sources are left out, since the package has their compiled libraries;
    but a header that a solution's Python names, to read it, is there."""
    files = {path.name: path.read_bytes() for path in sorted(RUNTIME.glob("*.py"))}
    files["__init__.py"] = files.pop("package.py")
    files["operators.json"] = (json.dumps(_data(found), indent=1) + "\n").encode()
    for operator in found.operators:
        for solution in operator.solutions:
            python = "".join(text for path, text in solution.sources.items() if path.endswith(".py"))
            for path, text in solution.sources.items():
                if path.endswith(".py") or (path.endswith(".cuh") and f'"{path}"' in python):
                    files[f"solutions/{solution.name}/{path}"] = text.encode()
    return files


def licences(root: Path) -> dict[str, bytes]:
    """Name -> text of the licences in the set. A package with the set's sources carries them."""
    return {name: read_bytes(root / name) for name in LICENCES if (root / name).is_file()}


def _data(found: AllWinners) -> dict[str, Any]:
    return {
        "version": __version__,
        "gpus": list(found.gpus),
        "protocol": found.protocol,
        **_copying(found.gpus[0]),
        "measured": " to ".join(dict.fromkeys(found.measured)),
        "operators": {each.definition.name: _operator(each) for each in found.operators},
    }


def _copying(name: str) -> dict[str, float]:
    """The cost of a copy on the GPU (runtime/copies.py): bytes per us of its memory, and the us of an empty kernel in a
    graph. Defaults for an unknown GPU: a terabyte per second, and one us."""
    gpu = find_gpu(name)
    reached = (gpu.at_ceilings() or gpu) if gpu else None
    launch_us = gpu.measured.empty_kernel_us.get("graph") if gpu and gpu.measured else None
    return {
        "bytes_per_us": reached.memory_bytes_per_second / 1e6 if reached else 1e6,
        "launch_us": 1.0 if launch_us is None else launch_us,
    }


def _operator(found: Winners) -> dict[str, Any]:
    definition = found.definition
    return {
        "constants": {axis: size for axis, size in definition.axes.items() if size is not None},
        "constraints": list(definition.constraints),
        "inputs": {name: _tensor(spec) for name, spec in definition.inputs.items()},
        "outputs": {name: _tensor(spec) for name, spec in definition.outputs.items()},
        "in_place": _in_place(found, definition),
        **found.data(),
    }


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"shape": None if spec.shape is None else list(spec.shape), "dtype": spec.dtype}


def _in_place(found: Winners, definition: Definition) -> dict[str, str]:
    """Output -> the input in whose memory solutions of the package write it. If they differ, the most frequent
    input."""
    maps = [each.in_place for each in found.solutions if each.in_place]
    best = max(maps, key=lambda each: (maps.count(each), len(each)), default={})
    return {name: best[name] for name in definition.outputs if name in best}
