"""FlashInfer's files (FLASHINFER_TRACE_DUMP=1): a JSON for every operator, without the load.

The files have no times and no loads. Variable sizes come from the loads of shapes/rules.toml, or from --tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from kernelderby.capture.capture import CapturedShape, Unmapped
from kernelderby.catalog import Catalog, Definition, constraints
from kernelderby.catalog.spaces import Sizes, UnfitDraw, sizes_of
from kernelderby.errors import DerbyError
from kernelderby.shapes.rules import loads_of
from kernelderby.store.fields import Name, read_json, read_toml

RULES = Path(__file__).parent / "fi_trace.toml"


class _DumpedAxis(Struct):
    type: str
    value: int | None = None


class _DumpedTensor(Struct):
    dtype: str = ""


class _Dumped(Struct):
    name: str
    axes: dict[str, _DumpedAxis]
    inputs: dict[str, _DumpedTensor]
    op_type: str = ""
    tags: list[str] = []


class _DumpRule(Struct, forbid_unknown_fields=True):
    """dtypes: types of the inputs, under FlashInfer's names."""

    api: str
    definition: Name
    load: Name
    sizes: dict[Name, str]
    when: str = "True"
    dtypes: dict[str, str] = {}


class _DumpRules(Struct, forbid_unknown_fields=True):
    rule: tuple[_DumpRule, ...]


def is_dump(path: Path) -> bool:
    """Whether it is a folder, or a JSON whose first bytes are FlashInfer's."""
    if path.is_dir():
        return True
    if path.suffix != ".json" or not path.is_file():
        return False
    head = _head(path)
    return b'"op_type"' in head and b'"fi_api:' in head


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(4096)


def read_dumps(catalog: Catalog, path: Path, tokens: Sequence[int]) -> tuple[list[CapturedShape], list[Unmapped]]:
    """The shapes of the dumped operators, without times. DerbyError for a folder without such files."""
    inside = (each for each in path.glob("*.json") if each.is_file() and b'"op_type"' in _head(each))
    files = sorted(inside) if path.is_dir() else [path]
    if not files:
        raise DerbyError(
            f"{path}: is a folder without a .json of FlashInfer; name a profile file in it, or set "
            "FLASHINFER_TRACE_DUMP=1 and FLASHINFER_TRACE_DUMP_DIR"
        )
    found: dict[tuple[str, str], CapturedShape] = {}
    refused = []
    for file in files:
        dumped = read_json(file, _Dumped)
        shapes = _shapes(catalog, dumped, tokens)
        if isinstance(shapes, str):
            refused.append(Unmapped(_api(dumped), dumped.name, shapes, kernels={"-": 0}))
            continue
        for definition, sizes in shapes:
            key = definition.name, sizes.uuid(definition)
            found.setdefault(key, CapturedShape(definition, sizes, key[1], {_api(dumped): 1}))
    return list(found.values()), refused


def _api(dumped: _Dumped) -> str:
    return next((tag.removeprefix("fi_api:") for tag in dumped.tags if tag.startswith("fi_api:")), dumped.op_type)


@cache
def _rules() -> tuple[tuple[re.Pattern[str], _DumpRule], ...]:
    return tuple((re.compile(entry.api), entry) for entry in read_toml(RULES, _DumpRules).rule)


def _shapes(catalog: Catalog, dumped: _Dumped, tokens: Sequence[int]) -> list[tuple[Definition, Sizes]] | str:
    """One shape for each entry of the rule's load, or a text that says why there is none."""
    reason = "no operator of the set"
    facts = {name: axis.value for name, axis in dumped.axes.items() if axis.value is not None}
    for pattern, entry in _rules():
        definition = catalog.definitions.get(entry.definition)
        if definition is None or not pattern.fullmatch(_api(dumped)):
            continue
        other = [
            kind for name, kind in entry.dtypes.items() if name in dumped.inputs and not _is_type(dumped, name, kind)
        ]
        if other:
            reason = f"is not of {', '.join(other)}"
            continue
        shapes = [_sizes(definition, entry, facts | load) for load in loads_of(entry.load, tokens)]
        if fitting := [(definition, sizes) for sizes in shapes if sizes is not None]:
            return fitting
        reason = f"its sizes are none of {definition.name}"
    return reason


def _is_type(dumped: _Dumped, name: str, kind: str) -> bool:
    found = dumped.inputs[name].dtype
    return found == kind or (kind == "bfloat16" and found == "float16") or found in ("", "unknown")


def _sizes(definition: Definition, entry: _DumpRule, values: Mapping[str, Any]) -> Sizes | None:
    known: dict[str, Any] = dict(values)
    given: dict[str, Any] = {name: size for name, size in definition.axes.items() if size is not None}
    try:
        if not constraints.formula_value(entry.when, known):
            return None
        for name, formula in entry.sizes.items():
            value = formula[1:] if formula.startswith("=") else constraints.formula_value(formula, known)
            if definition.axes.get(name) not in (None, value):
                return None
            given[name] = known[name] = value
        return sizes_of(definition, given)
    except (constraints.NotArithmetic, UnfitDraw):
        return None
