"""Solutions that an author writes once for many definitions: solutions/<author>/template/. not_raced() lists the
libraries that have a kernel for an operator but no solution, with the reason.

Its solution.toml and its sources (main.py.in becomes main.py) may contain $definition, $inputs, $outputs (names
separated by commas) and $arguments (inputs and outputs). Every definition gets a packed solution made from them, with
the definition's reference as reference.py beside the sources. [left_out] in solution.toml names the exceptions, with
the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any

from msgspec import Struct

from kernelderby.catalog.model import Definition, Solution
from kernelderby.catalog.solutions import refuse, written_solution
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
    """Definition -> why the template makes no solution for it."""
    path = folder / "solution.toml"
    return convert(f"{path}: left_out", read_toml(path).get("left_out", {}), dict[str, str])


def template_solutions(folder: Path, definitions: Mapping[str, Definition]) -> Iterator[Solution]:
    """The solutions of a template, one for each definition. DerbyError: a field is wrong, a definition is unknown, or a
    left-out definition still has a packed solution."""
    path = folder / "solution.toml"
    data: dict[str, Any] = read_toml(path)
    without = left_out(folder)
    data.pop("left_out", None)
    texts = {
        file.relative_to(folder).as_posix().removesuffix(ENDING): read_text(file)
        for file in files_under(folder, ENDING, refuse, hidden=False)
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
    return {"definition": definition.name, "inputs": inputs, "outputs": outputs, "arguments": f"{inputs}, {outputs}"}


class NotRaced(Struct, frozen=True, forbid_unknown_fields=True):
    """name: library and version, or the kernel of the library. operators: empty if the entry is not about single
    operators. needs: what a race would need; empty if the kernel does not fit the operator."""

    name: str
    operators: tuple[str, ...]
    why: str
    needs: str


class _AllNotRaced(Struct, frozen=True, forbid_unknown_fields=True):
    library: tuple[NotRaced, ...] = ()


def not_raced(root: Path, definitions: Iterable[str], told: Callable[[str], None]) -> tuple[NotRaced, ...]:
    """The entries of solutions/not_raced.toml, then the definitions that templates leave out, each with a reason. told:
    gets a line for each skipped part: a broken file, or an entry with an unknown operator."""
    path, known = root / "solutions" / "not_raced.toml", set(definitions)
    found: list[NotRaced] = []
    try:
        for folder in templates(root):
            found += _of_template(folder)
        listed = read_toml(path, _AllNotRaced).library if path.is_file() else ()
    except DerbyError as error:
        told(str(error))
        return tuple(found)
    for each in reversed(listed):
        unknown = [name for name in each.operators if name not in known]
        if unknown:
            told(f"{path}: {each.name}: {unknown[0]!r:.80} is no definition; {suggestion(unknown[0], known)}")
        else:
            found.insert(0, each)
    return tuple(found)


def _of_template(folder: Path) -> Iterator[NotRaced]:
    by_reason: dict[str, list[str]] = {}
    for definition, reason in left_out(folder).items():
        by_reason.setdefault(reason, []).append(definition)
    for reason, names in by_reason.items():
        yield NotRaced(folder.parent.name, tuple(names), f"{reason[:1].upper()}{reason[1:]}.", "")
