"""Solutions that an author writes once for many definitions: solutions/<author>/template/.

Its solution.toml and its sources (main.py.in becomes main.py) hold $definition, $inputs, $outputs (names with commas
between) and $arguments (both).
Every definition gets a packed solution of them, with its reference beside the sources as reference.py. [left_out] in
solution.toml names the definitions that get none, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any

from kernelderby.catalog.model import Definition, Solution
from kernelderby.catalog.solutions import written_solution
from kernelderby.errors import DerbyError
from kernelderby.store.fields import convert, read_text, read_toml, suggestion
from kernelderby.store.files import files_under, folders_below

REFERENCE, ENDING = "reference.py", ".in"


def templates(root: Path) -> list[Path]:
    """Every solutions/<author>/template/ that has a solution.toml, sorted."""
    return [
        folder
        for folder in folders_below(root / "solutions", 2)
        if folder.name == "template" and (folder / "solution.toml").is_file()
    ]


def left_out(folder: Path) -> dict[str, str]:
    """Definition -> why the template makes no solution of it."""
    path = folder / "solution.toml"
    return convert(f"{path}: left_out", read_toml(path).get("left_out", {}), dict[str, str])


def made(folder: Path, definitions: Mapping[str, Definition]) -> Iterator[Solution]:
    """The solutions of a template, one a definition. DerbyError: a field is wrong, a definition unknown, or a packed
    solution of a definition that is left out is still there."""
    path = folder / "solution.toml"
    data: dict[str, Any] = read_toml(path)
    without = left_out(folder)
    data.pop("left_out", None)
    texts = {
        file.relative_to(folder).as_posix().removesuffix(ENDING): read_text(file)
        for file in files_under(folder, ENDING, _refuse, hidden=False)
    }
    for name in without:
        if name not in definitions:
            raise DerbyError(f"{path}: left_out: {name!r:.80} is no definition; {suggestion(name, definitions)}")
    for definition in definitions.values():
        words = _words(definition)
        own: dict[str, Any] = json.loads(Template(json.dumps(data)).safe_substitute(words))
        place = folder.parent / definition.op_type / definition.name / f"{own.get('name')}.json"
        if definition.name not in without:
            sources = {file: Template(text).safe_substitute(words) for file, text in texts.items()}
            yield written_solution(path, place, {**sources, REFERENCE: definition.reference}, own)
        elif place.is_file():
            raise DerbyError(f"{place}: {path} leaves {definition.name} out; remove the file")


def _words(definition: Definition) -> dict[str, str]:
    inputs, outputs = ", ".join(definition.inputs), ", ".join(definition.outputs)
    return {
        "definition": definition.name,
        "inputs": inputs,
        "outputs": outputs,
        "arguments": f"{inputs}, {outputs}",
    }


def _refuse(problem: str) -> None:
    raise DerbyError(problem)
