"""rules/*.toml: the definition of each framework operator, and the position of its sizes among the arguments.

A rule reads a call's operands by place. `inputs` names the dimensions of each: "*tokens hidden" (a starred name is the
product of all dimensions that the others leave), "tokens 2 8" (a number must stand there), "_" for any; "?n" for an
operand that may be missing, which `has_2` tells for place 2. A name that stands twice has one size. `values` names
plain numbers ("3", or "3|1e-6" where it may be missing). `types` tells what an operand's elements are. `sizes` are
formulas of these names for what the definition calls otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from kernelderby.catalog import constraints
from kernelderby.errors import DerbyError
from kernelderby.profile.operators import Operand
from kernelderby.store.counts import counted
from kernelderby.store.fields import Name, read_toml

RULES = Path(__file__).parent / "rules"
CLASSES = {
    "half": ("bfloat16", "float16"),
    "fp8": ("float8_e4m3fn",),
    "index": ("int32", "int64"),
    "float": ("float32",),
    "any": (),
}


class CaptureEntry(Struct, forbid_unknown_fields=True):
    """container: inner calls that match a rule keep their kernels. model: the facts of a model's configuration that the
    rule needs. operator: a regular expression for the whole name."""

    id: Name
    operator: str
    definition: Name
    inputs: dict[str, str]
    examples: tuple[str, ...]
    values: dict[Name, str] = {}
    types: dict[str, str] = {}
    sizes: dict[Name, str] = {}
    when: str = "True"
    needs: str = ""
    container: bool = False
    note: str = ""


class _RuleFile(Struct, forbid_unknown_fields=True):
    rule: tuple[CaptureEntry, ...]


class RuleMismatch(Exception):
    """The rule does not fit this call; the message says why."""


@dataclass(frozen=True, slots=True)
class CaptureRule:
    entry: CaptureEntry
    operator: re.Pattern[str]
    _patterns: dict[int, tuple[bool, tuple[str, ...]]] = field(default_factory=dict)

    def read(self, operands: tuple[Operand, ...], facts: Mapping[str, Any]) -> dict[str, Any]:
        """name -> size or number, with the facts and the formulas of `sizes`. RuleMismatch names the missing part."""
        values: dict[str, Any] = dict(facts)
        own: dict[str, int] = {}
        for place, (optional, names) in self._patterns.items():
            operand = operands[place] if place < len(operands) else Operand(None)
            values[f"has_{place}"] = own[f"has_{place}"] = int(operand.dims is not None)
            if operand.dims is not None:
                bind(place, names, operand.dims, own)
            elif not optional:
                raise RuleMismatch(f"no sizes of argument {place}")
        values |= own
        for name, where in self.entry.values.items():
            values[name] = _number(operands, name, where)
        for text, kind in self.entry.types.items():
            _check_type(operands, int(text), kind)
        return self._with_formulas(values)

    def _with_formulas(self, values: dict[str, Any]) -> dict[str, Any]:
        try:
            if not constraints.formula_value(self.entry.when, values):
                raise RuleMismatch(self.entry.needs or f"is none where {self.entry.when}")
            for name, formula in self.entry.sizes.items():
                is_text = formula.startswith("=")
                values[name] = formula[1:] if is_text else constraints.formula_value(formula, values)
        except constraints.NotArithmetic:
            raise RuleMismatch(self.entry.needs or "a size is not in the trace") from None
        return values


def bind(place: int, names: tuple[str, ...], dims: tuple[int, ...], known: dict[str, int]) -> None:
    """Enters the sizes of an operand's named dimensions into `known`. RuleMismatch if the dimensions do not fit or
    contradict known sizes."""
    starred = next((index for index, name in enumerate(names) if name.startswith("*")), None)
    left: list[int] = list(dims)
    if starred is None:
        if len(dims) != len(names):
            raise RuleMismatch(f"argument {place} has {counted(len(dims), 'dimension')}")
    else:
        after = len(names) - starred - 1
        if len(dims) < starred + after:
            raise RuleMismatch(f"argument {place} has {counted(len(dims), 'dimension')}")
        product = 1
        for size in dims[starred : len(dims) - after]:
            product *= size
        left = [*dims[:starred], product, *dims[len(dims) - after :]]
    for name, size in zip(names, left, strict=True):
        name = name.removeprefix("*")
        if name == "_":
            continue
        wanted = int(name) if name.isdigit() else known.setdefault(name, size)
        if wanted != size:
            raise RuleMismatch(f"argument {place} is {'x'.join(map(str, dims))}")


def _number(operands: tuple[Operand, ...], name: str, where: str) -> Any:
    place, _, default = where.partition("|")
    text = operands[int(place)].value if int(place) < len(operands) else ""
    for given in (text, default):
        if given in ("True", "False"):
            return given == "True"
        try:
            number = float(given)
        except ValueError:
            continue
        return int(number) if number.is_integer() and not any(mark in given for mark in ".e") else number
    raise RuleMismatch(f"its {name} is not in the trace")


def _check_type(operands: tuple[Operand, ...], place: int, kind: str) -> None:
    found = operands[place].type if place < len(operands) else ""
    wanted = CLASSES[kind]
    if found and wanted and found not in wanted:
        raise RuleMismatch(f"{found} elements")


@cache
def rules() -> tuple[CaptureRule, ...]:
    """All rules, ordered by file name, then by position in the file."""
    return tuple(
        _rule(path, entry) for path in sorted(RULES.glob("*.toml")) for entry in read_toml(path, _RuleFile).rule
    )


def _rule(path: Path, entry: CaptureEntry) -> CaptureRule:
    try:
        patterns = {
            int(place): (text.startswith("?"), tuple(text.removeprefix("?").split()))
            for place, text in entry.inputs.items()
        }
        unknown = {kind for kind in entry.types.values() if kind not in CLASSES}
        if unknown:
            raise ValueError(f"types: {', '.join(unknown)}")
        return CaptureRule(entry, re.compile(entry.operator), patterns)
    except (re.error, ValueError) as error:
        raise DerbyError(f"{path}: rule {entry.id}: {error}; mend it") from None


@cache
def rules_of(operator: str) -> tuple[CaptureRule, ...]:
    """The rules whose expression matches this whole name."""
    return tuple(rule for rule in rules() if rule.operator.fullmatch(operator))
