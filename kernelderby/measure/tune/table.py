"""Reads and writes tuned.py as text.

    FOUND = {GPU name: {"date": ..., "table": {tuning key: configuration},
                        "configs": [configuration, ...], "losses": [[tuning key, [loss or None, ...]], ...]}}

table: the best configuration of each key. losses: for each measured shape and each of `configs`, by how many
thousandths its time was above the least time there; None if it was not measured. common/choice.py interpolates between
them.

Users of a rival have no tuned.py, but their library reads its own files. A solution requests such files by tuning keys
of the form `FILE.json ENTRY`. For example vLLM's tables of experts have an entry for each number of tokens; vLLM looks
for them first in $VLLM_TUNED_CONFIG_FOLDER.
"""

from __future__ import annotations

import ast
import json
import os
import textwrap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from kernelderby.errors import DerbyError
from kernelderby.store.fields import convert, read_json, read_text
from kernelderby.store.files import write_whole

NAME = "tuned.py"
Found = dict[str, dict[str, Any]]
Shape = tuple[str, Mapping[str, float]]  # tuning key, text of a configuration -> its time
_INDENTED: Any = {
    "initial_indent": " " * 12,
    "subsequent_indent": " " * 13,
    "break_long_words": False,
    "break_on_hyphens": False,
}
_MEND = "restore it from git, or write FOUND = {} and tune again"


class _OfGpu(Struct, forbid_unknown_fields=True):
    date: str
    table: dict[str, dict[str, str | int | float | bool]]
    configs: list[dict[str, str | int | float | bool]] = []
    losses: list[tuple[str, list[int | None]]] = []


def read(path: Path) -> Found:
    """The FOUND of a file; {} without a file. The file is parsed, never run."""
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


def merged(
    found: Found,
    gpu: str,
    date: str,
    table: dict[str, dict[str, Any]],
    left: Collection[str] = (),
    shapes: Sequence[Shape] = (),
) -> Found:
    """`found` with a GPU's new rows, and new losses of measured shapes. Other GPUs, and keys that were not tuned now,
    stay. Keys in `left` are removed, since the heuristic serves them as well. The former losses of a key with a new
    shape are removed."""
    before = found.get(gpu, {})
    kept = {key: config for key, config in before.get("table", {}).items() if key not in left}
    again = {key for key, _ in shapes}
    points = [point for point in shapes_of(before) if point[0] not in again] + list(shapes)
    return {**found, gpu: {"date": date, "table": {**kept, **table}, **_losses(points)}}


def shapes_of(entry: dict[str, Any]) -> list[Shape]:
    """The measured shapes of a GPU's entry, with times in units of the least one."""
    texts = [json.dumps(config, sort_keys=True) for config in entry.get("configs", [])]
    return [
        (key, {text: 1 + loss / 1000 for text, loss in zip(texts, losses, strict=True) if loss is not None})
        for key, losses in entry.get("losses", [])
    ]


def _losses(shapes: Sequence[Shape]) -> dict[str, Any]:
    if not shapes:
        return {}
    texts = sorted({text for _, times in shapes for text in times})
    rows = []
    for key, times in shapes:
        least = min(times.values())
        rows.append([key, [round(1000 * (times[text] / least - 1)) if text in times else None for text in texts]])
    return {"configs": [json.loads(text) for text in texts], "losses": sorted(rows, key=lambda row: str(row[0]))}


def text(solution: str, found: Found) -> str:
    """The text of the file. The same table gives the same text, since GPUs and keys are sorted."""
    lines = [f'"""Written by `derby tune {solution}`: GPU name -> {{date, table: tuning key -> configuration}}."""', ""]
    if any(entry.get("losses") for entry in found.values()):
        lines = [
            f'"""Written by `derby tune {solution}`: GPU name -> {{date, table: tuning key -> configuration,',
            "losses: of measured shapes, by how many thousandths each of `configs` was above the least time}.",
            '"""',
            "",
        ]
    if not found:
        return "\n".join([*lines, "FOUND = {}", ""])
    lines.append("FOUND = {")
    for gpu, entry in sorted(found.items()):
        lines += [f"    {json.dumps(gpu)}: {{", f'        "date": {json.dumps(entry["date"])},', '        "table": {']
        lines += [
            f"            {json.dumps(key)}: {_literal(config)}," for key, config in sorted(entry["table"].items())
        ]
        lines.append("        },")
        if entry.get("losses"):
            lines += ['        "configs": [', *(f"            {_literal(config)}," for config in entry["configs"])]
            lines += ["        ],", '        "losses": [']
            for key, losses in entry["losses"]:
                lines += textwrap.wrap(f"[{json.dumps(key)}, {losses!r}],", 104, **_INDENTED)
            lines.append("        ],")
        lines.append("    },")
    return "\n".join([*lines, "}", ""])


def _literal(config: dict[str, Any]) -> str:
    fields = (
        f"{json.dumps(name)}: {json.dumps(value) if isinstance(value, str) else repr(value)}"
        for name, value in config.items()
    )
    return f"{{{', '.join(fields)}}}"


def write(path: Path, solution: str, found: Found) -> None:
    """Writes in one step, so a reader sees the old or the new file, also after a kill."""
    write_whole(path, text(solution, found))


def write_library_files(folder: Path, table: Mapping[str, Mapping[str, Any]]) -> list[Path]:
    """Writes the files that the keys of a table name into the folder. Entries of other keys stay. DerbyError: an
    existing file is not a JSON object, or cannot be written."""
    files: dict[str, dict[str, Any]] = {}
    for key, config in table.items():
        name, _, entry = key.rpartition(" ")
        if name.endswith(".json") and Path(name).name == name:
            files.setdefault(name, {})[entry] = config
    for name, entries in files.items():
        path = folder / name
        found = {**(read_json(path) if path.exists() else {}), **entries}
        ordered = {entry: found[entry] for entry in sorted(found, key=lambda entry: (len(entry), entry))}
        write_whole(path, json.dumps(ordered, indent=4) + "\n")
    return [folder / name for name in sorted(files)]
