"""tuned.py: FOUND = {GPU name: {"date": ..., "table": {tuning key: configuration}}}, read and written as text."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from msgspec import Struct

from kernelderby.errors import DerbyError
from kernelderby.fields import convert, read_text
from kernelderby.files import write_whole

NAME = "tuned.py"
Found = dict[str, dict[str, Any]]
_MEND = "restore it from git, or write FOUND = {} and tune again"


class _OfGpu(Struct, forbid_unknown_fields=True):
    date: str
    table: dict[str, dict[str, str | int | float | bool]]


def read(path: Path) -> Found:
    """FOUND of a file; {} where there is none. It is parsed, never run."""
    if not os.path.lexists(path):
        return {}
    source = read_text(path)
    try:
        tree = ast.parse(source)
        values = [
            node.value
            for node in tree.body
            if isinstance(node, ast.Assign) and [getattr(target, "id", None) for target in node.targets] == ["FOUND"]
        ]
        found = ast.literal_eval(values[0]) if len(values) == 1 else None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise DerbyError(f"{path}: FOUND: is no plain table ({str(error)[:120]}); {_MEND}") from None
    if not isinstance(found, dict):
        raise DerbyError(f"{path}: FOUND: must be given once, as a dict; {_MEND}")
    convert(f"{path}: FOUND", found, dict[str, _OfGpu])
    return found


def merged(found: Found, gpu: str, date: str, table: dict[str, dict[str, Any]], left: Collection[str] = ()) -> Found:
    """found with a GPU's new rows. Other GPUs, and keys of this one that were not tuned now, stay; keys in `left` go,
    since the heuristic serves them as well."""
    kept = {key: config for key, config in found.get(gpu, {}).get("table", {}).items() if key not in left}
    return {**found, gpu: {"date": date, "table": {**kept, **table}}}


def text(solution: str, found: Found) -> str:
    """The file. The same table gives the same text: GPUs and keys are sorted."""
    lines = [f'"""Written by `derby tune {solution}`: GPU name -> {{date, table: tuning key -> configuration}}."""', ""]
    if not found:
        return "\n".join([*lines, "FOUND = {}", ""])
    lines.append("FOUND = {")
    for gpu, entry in sorted(found.items()):
        lines += [f"    {json.dumps(gpu)}: {{", f'        "date": {json.dumps(entry["date"])},', '        "table": {']
        lines += [
            f"            {json.dumps(key)}: {_literal(config)}," for key, config in sorted(entry["table"].items())
        ]
        lines += ["        },", "    },"]
    return "\n".join([*lines, "}", ""])


def _literal(config: dict[str, Any]) -> str:
    return (
        "{"
        + ", ".join(
            f"{json.dumps(name)}: {json.dumps(value) if isinstance(value, str) else repr(value)}"
            for name, value in config.items()
        )
        + "}"
    )


def write(path: Path, solution: str, found: Found) -> None:
    """In one step: a reader sees the old file or the new one, and a kill leaves one of them."""
    write_whole(path, text(solution, found))
