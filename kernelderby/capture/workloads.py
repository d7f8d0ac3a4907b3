"""A capture as a trace set of its own: the operators' definitions and solutions, and its shapes as workloads."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct

from kernelderby.capture.capture import Capture, CapturedShape
from kernelderby.catalog import Catalog, Definition
from kernelderby.catalog.spaces import line_of
from kernelderby.catalog.workloads import tensor_bytes
from kernelderby.errors import DerbyError
from kernelderby.rows.row import RanWorkload
from kernelderby.shapes.rules import LARGEST, generated_inputs
from kernelderby.store.fields import convert, read_jsonl
from kernelderby.store.files import read_bytes, write_jsonl, write_whole

ORIGIN = "capture"


def line(catalog: Catalog, found: Capture, shape: CapturedShape, origin: str) -> dict[str, Any]:
    """The line of a workloads file. importance: percent of the profile's GPU time; call_count: number of calls
    there."""
    definition = shape.definition
    source: dict[str, str | int] = {
        "profile": ", ".join(path.name for path in found.paths)[:200],
        "operator": ", ".join(shape.operators)[:200] or "-",
        "time_us": round(shape.time_ns / 1e3),
    }
    if found.gpu:
        source["gpu"] = found.gpu
    if shape.note:
        source["note"] = shape.note
    data = line_of(definition, shape.sizes, generated_inputs(catalog, definition), origin, source)
    if shape.calls:
        data["call_count"] = max(1, round(shape.calls))
    if shape.time_ns and found.total_ns:
        data["importance"] = float(f"{100 * shape.time_ns / found.total_ns:.4g}")
    return data


def fitting(found: Capture) -> tuple[list[CapturedShape], list[CapturedShape]]:
    """The shapes that fit into a judge's memory, and the shapes of more than LARGEST bytes."""
    small = [each for each in found.shapes if tensor_bytes(each.definition, each.sizes.axes) <= LARGEST]
    return small, [each for each in found.shapes if each not in small]


def write_set(catalog: Catalog, found: Capture, out: Path, origin: str = ORIGIN) -> list[Path]:
    """Writes the set and returns its files. Existing workloads stay, but a workload of this capture replaces an older
    one of the same shape. DerbyError for a folder with other contents, and for the set itself."""
    if os.path.realpath(out) == os.path.realpath(catalog.root):
        raise DerbyError(f"--out: {out} is the set itself; name another folder")
    if out.is_dir() and any(out.iterdir()) and not (out / "definitions").is_dir():
        raise DerbyError(f"--out: {out} holds other files and no set; name a new folder")
    if out.exists() and not out.is_dir():
        raise DerbyError(f"--out: {out} is a file; name a folder")
    lines: dict[str, list[dict[str, Any]]] = {}
    for shape in fitting(found)[0]:
        lines.setdefault(shape.definition.name, []).append(line(catalog, found, shape, origin))
    if not lines:
        raise DerbyError("--out: nothing in these files is a definition of the set; there is no workload to write")
    written: list[Path] = []
    for name, own in lines.items():
        definition = catalog.definition(name)
        written += _copied(catalog, definition, out)
        path = out / "workloads" / definition.op_type / f"{name}.jsonl"
        write_jsonl(path, _with_older(path, own))
        written.append(path)
    return written


class _Older(Struct):
    workload: RanWorkload


def _with_older(path: Path, own: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """DerbyError for a broken line: the file is not written anew without it."""
    mine = {each["workload"]["uuid"] for each in own}
    older = read_jsonl(path, dict[str, Any]) if path.is_file() else ()
    return [*(raw for where, raw in older if convert(where, raw, _Older).workload.uuid not in mine), *own]


def _copied(catalog: Catalog, definition: Definition, out: Path) -> Iterable[Path]:
    """Copies the definition and its packed solutions. Equal files stay."""
    sources = [definition.path, *([definition.source_path] if definition.source_path else [])]
    sources += [solution.json_path for solution in catalog.solutions_of(definition.name)]
    for source in sources:
        target = out / source.relative_to(catalog.root)
        content = read_bytes(source)
        if not target.is_file() or read_bytes(target) != content:
            write_whole(target, content)
            yield target
