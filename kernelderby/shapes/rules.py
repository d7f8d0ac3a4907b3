"""The rules of rules.toml, applied to a model: every shape of every operator that it implies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from kernelderby.catalog import Catalog, Definition, constraints
from kernelderby.catalog.spaces import Sizes, UnfitDraw, line_of, sizes_of
from kernelderby.catalog.workloads import MODELS, tensor_bytes
from kernelderby.errors import DerbyError
from kernelderby.shapes.model import Model
from kernelderby.store.fields import Name, read_toml

LARGEST = 4 << 30  # bytes of the inputs and outputs of one shape; the judge holds two sets of them
_FOLDER = Path(__file__).parent


class _Rule(Struct, forbid_unknown_fields=True):
    operator: Name
    layer: Name
    load: Name
    sizes: dict[Name, str]
    when: str = "True"
    forms: list[Name] = []

    @property
    def operators(self) -> list[Name]:
        return [self.operator, *self.forms]


class _RulesFile(Struct, forbid_unknown_fields=True):
    load: dict[Name, list[dict[Name, int]]]
    rule: list[_Rule]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """load: the entry of the rules' loads, as text."""

    definition: Definition
    sizes: Sizes
    model: Model
    layer: str
    load: str

    @property
    def uuid(self) -> str:
        return self.sizes.uuid(self.definition)

    def line(self, generated: Sequence[str]) -> dict[str, Any]:
        """The line of a workloads file. generated: the inputs that generate_inputs makes."""
        source: dict[str, str | int] = {
            "model": self.model.name,
            "config": self.model.config,
            "tensor_parallel": self.model.tensor_parallel,
            "layer": self.layer,
        }
        return line_of(self.definition, self.sizes, generated, MODELS, source)


@cache
def _rules() -> _RulesFile:
    return read_toml(_FOLDER / "rules.toml", _RulesFile)


def shapes_of(catalog: Catalog, model: Model, tokens: Sequence[int] = ()) -> list[ModelShape]:
    """Every shape once, in the order of the rules, without shapes of more than LARGEST bytes. tokens: tokens of a step,
    instead of the rules' own. Operators that the set lacks have no shapes."""
    found = dict[str, ModelShape]()
    for rule, operator in [(each, name) for each in _rules().rule for name in each.operators]:
        definition = catalog.definitions.get(operator)
        if definition is None:
            continue
        for entry in loads_of(rule.load, tokens):
            sizes = _sizes(definition, rule, model.facts, entry)
            if sizes is not None and tensor_bytes(definition, sizes.axes) <= LARGEST:
                told = " ".join(f"{name}={value}" for name, value in entry.items())
                shape = ModelShape(definition, sizes, model, rule.layer, told)
                found.setdefault(shape.uuid, shape)
    return list(found.values())


def token_counts(words: Sequence[str]) -> tuple[int, ...]:
    """DerbyError for a word that is no number of tokens."""
    for word in words:
        if not word.isdecimal() or not 1 <= int(word) <= 1 << 20:
            raise DerbyError(f"--tokens: {word!r:.40} is no number of tokens from 1 to {1 << 20}; give whole numbers")
    return tuple(int(word) for word in words)


def loads_of(name: str, tokens: Sequence[int] = ()) -> list[dict[Name, int]]:
    """The entries of a load. tokens: tokens of a step, instead of the rules' own."""
    if tokens and name in ("tokens", "batch"):
        return [{"tokens": count} for count in tokens]
    return _rules().load[name]


def _sizes(
    definition: Definition, rule: _Rule, facts: Mapping[str, int | float], entry: Mapping[str, int]
) -> Sizes | None:
    """The sizes by the rule; None if the rule does not apply to the model."""
    values: dict[str, Any] = {**facts, **entry}
    given: dict[str, Any] = {name: size for name, size in definition.axes.items() if size is not None}
    try:
        if not constraints.formula_value(rule.when, values):
            return None
        for name, formula in rule.sizes.items():
            is_text = name not in definition.axes and name not in definition.inputs
            given[name] = values[name] = formula if is_text else constraints.formula_value(formula, values)
        return sizes_of(definition, given)
    except (constraints.NotArithmetic, UnfitDraw):
        return None


def generated_inputs(catalog: Catalog, definition: Definition) -> tuple[str, ...]:
    """The names of the inputs that generate_inputs makes, from the definition's listed workloads. DerbyError if the
    definition has a generator but no listed workload."""
    if definition.custom_inputs_entrypoint is None:
        return ()
    for workload in catalog.workloads(definition.name):
        return tuple(name for name, spec in workload.inputs.items() if spec["type"] == "safetensors")
    raise DerbyError(
        f"{catalog.workloads_path(definition.name)}: lists no workload that would tell which inputs are generated; "
        "add the first by hand"
    )


def loads() -> Iterator[tuple[str, str, str]]:
    """(operator, layer, load) of every rule, for readers."""
    for rule in _rules().rule:
        yield from ((operator, rule.layer, rule.load) for operator in rule.operators)
