"""Winners for FlashInfer's trace_apply, which replaces calls of its API by one solution per definition.

Its definitions have constant hidden sizes, other axis names, and no eps, because its templates pass none. So each of
our definitions has several twins: one definition for each hidden size, under the name that FlashInfer derives from a
call. Its solution is the one that was fastest over the measured shapes of that size. A file translates the call and
takes the eps from it. Sizes at which FlashInfer or another library was fastest have no twin.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any

from kernelderby.catalog import Solution
from kernelderby.deploy.winners import AllWinners, TimedShape, Winners, choosing_axes, kind_of
from kernelderby.errors import DerbyError
from kernelderby.store.files import write_whole

FILE = "twin.py"


@dataclass(frozen=True, slots=True)
class Twin:
    """of: our definition. size: the axis of ours that is constant in theirs. width: their hidden_size for one of our
    sizes. source: the translating file; {main} is the solution's module."""

    of: str
    name: str
    op_type: str
    api: str
    size: str
    width: Callable[[int], int]
    tokens: str
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[tuple[str, ...], str | None]]  # name -> axes, parameter of the API that it fills
    passes_outputs: bool
    source: str


_HEAD = '''"""Written by derby export: FlashInfer's call -> {solution}."""

import importlib
import os
import sys

import torch

__path__ = [os.path.dirname(__file__)]
main = importlib.import_module(f"{{__name__}}.{main}")


'''
_EPS = '''def eps_of_call():
    """FlashInfer gives a solution no eps: it stands in the call that its adapter holds."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != "flashinfer.trace_apply.adapt":
        frame = frame.f_back
    call = frame.f_locals.get("namespace") if frame else None
    if not isinstance(call, dict) or "eps" not in call:
        raise RuntimeError("this FlashInfer does not tell the eps of a call; take the twins of norms away")
    return float(call["eps"])


'''
_ROWS = ("batch_size", "hidden_size")
TWINS = (
    Twin(
        *(
            "rms_norm",
            "rmsnorm",
            "rmsnorm",
            "flashinfer.norm.rmsnorm",
            "hidden_size",
            lambda width: width,
            "batch_size",
        ),
        {"hidden_states": _ROWS, "weight": ("hidden_size",)},
        {"output": (_ROWS, None)},
        True,
        f"{_EPS}def run(hidden_states, weight, output):\n"
        "    main.{run}(hidden_states, weight, eps_of_call(), output)\n",
    ),
    Twin(
        *("fused_add_rms_norm", "fused_add_rmsnorm", "rmsnorm", "flashinfer.norm.fused_add_rmsnorm"),
        *("hidden_size", lambda width: width, "batch_size"),
        {"hidden_states": _ROWS, "residual": _ROWS, "weight": ("hidden_size",)},
        {"output": (_ROWS, "input"), "residual": (_ROWS, "residual")},
        False,
        f"{_EPS}def run(hidden_states, residual, weight):\n"
        "    main.{run}(hidden_states, residual, weight, eps_of_call(), hidden_states, residual)\n"
        "    return hidden_states, residual\n",
    ),
    Twin(
        *("silu_and_mul", "silu_and_mul", "activation", "flashinfer.activation.silu_and_mul"),
        *("intermediate_size", lambda width: 2 * width, "num_tokens"),
        {"input": ("num_tokens", "hidden_size")},
        {"output": (("num_tokens", "hidden_div_2"), None)},
        False,
        "def run(input):\n"
        "    tokens, width = input.shape\n"
        "    output = torch.empty(tokens, width // 2, dtype=input.dtype, device=input.device)\n"
        "    main.{run}(input.view(tokens, 2, width // 2), output)\n"
        "    return output\n",
    ),
)


@dataclass(frozen=True, slots=True)
class WrittenTwins:
    """chosen: FlashInfer's definition -> our solution. left: definitions at which a library is fastest, with its
    solution."""

    folder: Path
    chosen: dict[str, str]
    left: dict[str, str]


def export_twins(found: AllWinners, folder: Path) -> WrittenTwins:
    """Writes definitions/ and solutions/ of a folder for $FLASHINFER_TRACE_APPLY_PATH. DerbyError if the folder holds
    other JSON files, such as those of a former export (FlashInfer would load them too), or if no operator has a
    twin."""
    files: dict[Path, str] = {}
    chosen: dict[str, str] = {}
    left: dict[str, str] = {}
    by_name = {each.definition.name: each for each in found.operators}
    if not by_name.keys() & {twin.of for twin in TWINS}:
        raise DerbyError(f"--definitions: only {', '.join(twin.of for twin in TWINS)} have twins in FlashInfer")
    for twin in TWINS:
        operator = by_name.get(twin.of)
        for size, solution in _fastest(operator, twin.size).items() if operator else ():
            name = f"{twin.name}_h{twin.width(size)}"
            if kind_of(solution) != "own":
                left[name] = solution.name
                continue
            chosen[name] = solution.name
            definition, packed = twin_json(twin, size, solution)
            files[folder / "definitions" / twin.op_type / f"{name}.json"] = _text(definition)
            place = folder / "solutions" / solution.author / twin.op_type / name
            files[place / f"{packed['name']}.json"] = _text(packed)
    others = {path for part in ("definitions", "solutions") for path in (folder / part).rglob("*.json")} - set(files)
    if others:
        raise DerbyError(
            f"{min(others)}: is not of this export, and FlashInfer would load it too; give an empty folder"
        )
    for path, text in files.items():
        write_whole(path, text)
    return WrittenTwins(folder, chosen, left)


def twin_json(twin: Twin, size: int, solution: Solution) -> tuple[dict[str, Any], dict[str, Any]]:
    """FlashInfer's definition and solution for one hidden size of ours."""
    name = f"{twin.name}_h{twin.width(size)}"
    axes: dict[str, Any] = {twin.tokens: {"type": "var"}}
    axes["hidden_size"] = {"type": "const", "value": twin.width(size)}
    axes |= {axis: {"type": "var"} for shape, _ in twin.outputs.values() for axis in shape if axis not in axes}
    definition = {
        "name": name,
        "op_type": twin.op_type,
        "axes": axes,
        "inputs": {each: {"shape": list(shape), "dtype": "bfloat16"} for each, shape in twin.inputs.items()},
        "outputs": {
            each: {"shape": list(shape), "dtype": "bfloat16"} | ({"param": param} if param else {})
            for each, (shape, param) in twin.outputs.items()
        },
        "tags": [f"fi_api:{twin.api}"],
    }
    file, _, function = solution.entry_point.partition("::")
    head = _HEAD.format(solution=solution.name, main=file.removesuffix(".py"))
    sources = {**solution.sources, FILE: head + twin.source.format(run=function)}
    packed = {
        "name": f"{solution.name}_h{twin.width(size)}",
        "definition": name,
        "author": solution.author,
        "description": solution.description,
        "spec": {
            "language": solution.language,
            "entry_point": f"{FILE}::run",
            "destination_passing_style": twin.passes_outputs,
            "target_hardware": ["sm90"],
            "dependencies": list(solution.dependencies),
        },
        "sources": [{"path": path, "content": text} for path, text in sources.items()],
    }
    return definition, packed


def _fastest(operator: Winners, axis: str) -> dict[int, Solution]:
    """Size of the axis -> the solution with the least geometric mean over the shapes at which it and all its rivals
    have times."""
    place = choosing_axes(operator.definition).index(axis)
    groups: dict[int, list[TimedShape]] = {}
    for shape in operator.shapes:
        groups.setdefault(shape.sizes[place], []).append(shape)
    solutions = {each.name: each for each in operator.solutions}
    found = {}
    for size, shapes in sorted(groups.items()):
        common = set(solutions).intersection(*(shape.us for shape in shapes))
        means = {name: exp(sum(log(shape.us[name]) for shape in shapes) / len(shapes)) for name in common}
        if means:
            found[size] = solutions[min(means, key=lambda name: (means[name], name))]
    return found


def _text(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=2) + "\n"
