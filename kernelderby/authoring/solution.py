"""A solution's files: solution.toml, and a source that is correct before anybody edits it (the reference computes, and
a kernel in the chosen language copies its result)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from kernelderby.authoring.operator import expect_new
from kernelderby.catalog import Catalog, Definition
from kernelderby.errors import DerbyError
from kernelderby.store.files import write_whole

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class Language:
    """written: the language in solution.toml. files: templates. kernels: pattern of its kernels' names."""

    written: str
    modules: tuple[str, ...] = ()
    executables: tuple[str, ...] = ()
    cpu: bool = False
    files: tuple[str, ...] = ("main.py",)
    kernels: str = "^@name@"


LANGUAGES = {
    "python": Language("python", cpu=True, kernels="at::native::"),
    "triton": Language("triton", ("triton",), cpu=True),
    "cuda": Language("python", executables=("nvcc",), files=("main.py", "kernel.cu")),
    "cute-dsl": Language("python", ("cutlass",), kernels="kernel_cutlass"),
    "tilelang": Language("tilelang", ("tilelang",)),
    "helion": Language("python", ("helion",), cpu=True, kernels="_helion_"),
}


def write_solution(catalog: Catalog, name: str, definition: Definition, language: str, author: str) -> list[Path]:
    """Writes the solution's folder. DerbyError for a name that is taken or not allowed."""
    expect_new(catalog, "solution", name, ("--author", author))
    if language not in LANGUAGES:
        raise DerbyError(f"--language: {language!r:.80} is none of {', '.join(LANGUAGES)}")
    folder = catalog.root / "solutions" / author / definition.op_type / definition.name / name
    chosen, words = LANGUAGES[language], _words(name, definition)
    written = {"solution.toml": _about(name, definition, language, author), "reference.py": definition.reference}
    for file in chosen.files:
        template = (_TEMPLATES / f"{language.replace('-', '_')}.{file}.template").read_text(encoding="utf-8")
        written[file] = re.sub(r"@(\w+)@", lambda found: words[found[1]], template)
    for file, text in written.items():
        write_whole(folder / file, text)
    return [folder / file for file in written]


def _words(name: str, definition: Definition) -> dict[str, str]:
    inputs, outputs = list(definition.inputs), list(definition.outputs)
    shapes = [
        f"{each} {spec.dtype}" + ("" if spec.shape is None else f" [{', '.join(spec.shape)}]")
        for each, spec in (*definition.inputs.items(), *definition.outputs.items())
    ]
    return {
        "name": name,
        "definition": definition.name,
        "inputs": ", ".join(inputs),
        "outputs": ", ".join(outputs),
        "contract": "\n    ".join([*shapes[: len(inputs)], "->", *shapes[len(inputs) :]]),
    }


def _about(name: str, definition: Definition, language: str, author: str) -> str:
    chosen = LANGUAGES[language]
    kernels = chosen.kernels.replace("@name@", name)
    return f"""name = "{name}"
definition = "{definition.name}"
author = "{author}"
language = "{chosen.written}"
entry_point = "main.py::run"
destination_passing_style = true
target_hardware = ["NVIDIA GPU"{', "CPU"' if chosen.cpu else ""}]
dependencies = []
description = "{language}: say here what it does differently."

[requires]
modules = {json.dumps(list(chosen.modules))}
executables = {json.dumps(list(chosen.executables))}
cpu = {str(chosen.cpu).lower()}

[[stages]]
name = "S1"
title = "the whole operator"
kernels = ["{kernels}"]
"""
