"""The standing set of models' shapes: a few of every operator, chosen by a rule.

Each step takes, from all shapes that the committed configurations imply, the shape whose model, number of GPUs, load
and layer have been taken least so far; of equal ones the one with the smallest uuid, which is a hash. So everything
comes once before anything comes twice, and nobody picks shapes that suit a kernel.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct

from kernelderby.catalog import Catalog
from kernelderby.catalog.workloads import MODELS
from kernelderby.errors import DerbyError
from kernelderby.shapes.model import read_model
from kernelderby.shapes.rules import ModelShape, generated_inputs, shapes_of
from kernelderby.store.fields import Name, Size, lines_of, read_text, read_toml, record_of, suggestion
from kernelderby.store.files import write_whole

CONFIGS = Path(__file__).parent / "configs"


def configuration_file(path: Path) -> Path:
    """The file for a path, or for the name of a committed configuration. DerbyError if it is neither."""
    names = {each.stem: each for each in CONFIGS.glob("*.json")}
    if path.exists() or len(path.parts) != 1 or (path.suffix and path.name not in names):
        return path
    if path.name not in names:
        raise DerbyError(f"{path}: is no file, and no committed configuration; {suggestion(path.name, names)}")
    return names[path.name]


class _Standing(Struct, forbid_unknown_fields=True):
    per_operator: Size
    without: list[Name]
    tensor_parallel: dict[Name, list[Size]]


def standing_shapes(catalog: Catalog) -> list[ModelShape]:
    """The shapes operator by operator, each in the order in which they were taken."""
    plan = read_toml(CONFIGS.parent / "standing.toml", _Standing)
    by_operator: dict[str, dict[str, ModelShape]] = {}
    for name, sharing in plan.tensor_parallel.items():
        for tensor_parallel in sharing:
            for shape in shapes_of(catalog, read_model(CONFIGS / f"{name}.json", tensor_parallel)):
                if shape.definition.name not in plan.without:
                    by_operator.setdefault(shape.definition.name, {}).setdefault(shape.uuid, shape)
    found: list[ModelShape] = []
    for name, shapes in by_operator.items():
        listed = {(str(each.axes), str(each.scalars)) for each in catalog.workloads(name) if each.origin != MODELS}
        new = [shape for shape in shapes.values() if _place(shape) not in listed]
        found += _chosen(new, plan.per_operator)
    return found


def _place(shape: ModelShape) -> tuple[str, str]:
    axes = {name: size for name, size in shape.sizes.axes.items() if shape.definition.axes[name] is None}
    return str(axes), str(shape.sizes.scalars)


def _chosen(shapes: Iterable[ModelShape], count: int) -> list[ModelShape]:
    left = sorted(shapes, key=lambda shape: shape.uuid)
    taken = Counter[object]()
    found: list[ModelShape] = []
    while left and len(found) < count:
        one = min(left, key=lambda each: sum(taken[what] for what in _aspects(each)))
        left.remove(one)
        found.append(one)
        taken.update(_aspects(one))
    return found


def _aspects(shape: ModelShape) -> tuple[object, ...]:
    model = shape.model
    return model.name, (model.name, model.tensor_parallel), shape.load, shape.layer


def standing_lines(catalog: Catalog) -> dict[str, list[str]]:
    """Definition -> the lines of its workloads file, without costs."""
    lines: dict[str, list[str]] = {}
    for shape in standing_shapes(catalog):
        line = shape.line(generated_inputs(catalog, shape.definition))
        lines.setdefault(shape.definition.name, []).append(json.dumps(line, ensure_ascii=False))
    return lines


def write_standing(catalog: Catalog) -> list[Path]:
    """Writes the lines after those of other origins. Returns the changed files. Existing lines stay as they are, with
    their cost."""
    changed = []
    for name, lines in standing_lines(catalog).items():
        path = catalog.workloads_path(name)
        kept, costs = [], dict[str, str]()
        for each in lines_of(path) if path.is_file() else ():
            line, data = bytes(each.text).decode("utf-8", "replace"), record_of(path, each, dict[str, Any]) or {}
            if data.get("origin") != MODELS or not _is_ours(data):
                kept.append(line)
            else:
                costs[json.dumps({key: value for key, value in data.items() if key != "cost"}, ensure_ascii=False)] = (
                    line
                )
        text = "\n".join([*kept, *(costs.get(line, line) for line in lines)]) + "\n"
        if not path.is_file() or read_text(path) != text:
            write_whole(path, text)
            changed.append(path)
    return changed


def _is_ours(data: dict[str, object]) -> bool:
    """Whether the rules made the line. Hand-written lines of the same origin name no configuration."""
    source = data.get("source")
    return isinstance(source, dict) and "config" in source
