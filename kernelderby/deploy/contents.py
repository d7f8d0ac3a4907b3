"""What a package holds: the runtime, operators.json and the sources of its solutions, as path -> bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kernelderby import __version__
from kernelderby.catalog import Definition, TensorSpec
from kernelderby.deploy.winners import AllWinners, Winners

RUNTIME = Path(__file__).parent / "runtime"
NAME = "kernelderby_winners"


def contents(found: AllWinners) -> dict[str, bytes]:
    """Path inside the package -> bytes. CUDA sources stay behind: libraries.py brings what they become."""
    files = {path.name: path.read_bytes() for path in sorted(RUNTIME.glob("*.py"))}
    files["__init__.py"] = files.pop("package.py")
    files["operators.json"] = (json.dumps(_data(found), indent=1) + "\n").encode()
    for operator in found.operators:
        for solution in operator.solutions:
            for path, text in solution.sources.items():
                if path.endswith(".py"):
                    files[f"solutions/{solution.name}/{path}"] = text.encode()
    return files


def _data(found: AllWinners) -> dict[str, Any]:
    return {
        "version": __version__,
        "gpus": list(found.gpus),
        "protocol": found.protocol,
        "measured": " to ".join(dict.fromkeys(found.measured)),
        "operators": {each.definition.name: _operator(each) for each in found.operators},
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
    """Output -> the input in whose memory some solution of the package writes it: the one that most of them do."""
    maps = [each.in_place for each in found.solutions if each.in_place]
    best = max(maps, key=lambda each: (maps.count(each), len(each)), default={})
    return {name: best[name] for name in definition.outputs if name in best}
