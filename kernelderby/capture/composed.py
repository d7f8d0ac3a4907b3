"""Operators that a framework composes of elementwise ones: sequences of calls, as data (composed.toml)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from kernelderby.capture.mapping import MappedCall, UnmappedLaunch
from kernelderby.capture.rules import CLASSES, RuleMismatch, bind
from kernelderby.catalog import Catalog, constraints
from kernelderby.catalog.spaces import UnfitDraw, sizes_of
from kernelderby.profile.operators import OperatorCall
from kernelderby.store.fields import Name, read_toml

_FILE = Path(__file__).parent / "composed.toml"
NOTE = "composed of smaller operators"


class _Sequence(Struct, forbid_unknown_fields=True):
    id: Name
    operators: tuple[str, ...]
    definition: Name
    sizes_from: str
    shape: str
    sizes: dict[Name, str]
    other: str = ""


class _Sequences(Struct, forbid_unknown_fields=True):
    sequence: tuple[_Sequence, ...]


@dataclass(slots=True)
class _Outer:
    """An outermost call, the places of its kernels, and whether a rule maps one of them."""

    call: OperatorCall
    places: list[int] = field(default_factory=list)
    is_mapped: bool = False


@cache
def _sequences() -> tuple[_Sequence, ...]:
    return read_toml(_FILE, _Sequences).sequence


def composed(
    catalog: Catalog, launched: Sequence[tuple[tuple[OperatorCall, ...], MappedCall | UnmappedLaunch]]
) -> Mapping[int, MappedCall]:
    """Place -> the composed operator to which the launch there belongs. launched: the operators around each launch, and
    the rules' results."""
    outers: dict[int, _Outer] = {}
    for place, (chain, found) in enumerate(launched):
        outer = outers.setdefault(id(chain[0]), _Outer(chain[0]))
        outer.places.append(place)
        outer.is_mapped |= isinstance(found, MappedCall)
    ordered = sorted(outers.values(), key=lambda each: each.call.start_ns)
    result: dict[int, MappedCall] = {}
    start = 0
    while start < len(ordered):
        end = start + 1
        for sequence in _sequences():
            matched = _matched(sequence, ordered, start)
            mapped = _mapped(catalog, sequence, matched) if matched else None
            if matched and mapped:
                result |= {place: mapped for outer in matched for place in outer.places}
                end = ordered.index(matched[-1], start) + 1
                break
        start = end
    return result


def _matched(sequence: _Sequence, calls: Sequence[_Outer], start: int) -> list[_Outer] | None:
    """The calls of the sequence that begins there, without other calls in between."""
    found, place = list[_Outer](), start
    for name in sequence.operators:
        if place == len(calls):
            return None
        call = calls[place].call.name
        if name.startswith("("):
            place += call == name.strip("()")
        elif call == name.removesuffix("?") and not calls[place].is_mapped:
            found.append(calls[place])
            place += 1
        elif not name.endswith("?"):
            return None
    return found


def _mapped(catalog: Catalog, sequence: _Sequence, calls: Sequence[_Outer]) -> MappedCall | None:
    definition = catalog.definitions.get(sequence.definition)
    source = next(each.call for each in calls if each.call.name == sequence.sizes_from)
    types = [operand.type for each in calls for operand in each.call.operands if operand.type in CLASSES["half"]]
    if definition is None or not types or not source.operands or source.operands[0].dims is None:
        return None
    sizes: dict[str, int] = {}
    try:
        bind(0, tuple(sequence.shape.split()), source.operands[0].dims, sizes)
        second = source.operands[1].dims if len(source.operands) > 1 else None
        if sequence.other and second is not None:
            bind(1, tuple(sequence.other.split()), second, sizes)
        known = {*definition.axes, *definition.inputs}
        given: dict[str, Any] = {name: size for name, size in sizes.items() if name in known}
        given |= {name: constraints.formula_value(text, sizes) for name, text in sequence.sizes.items()}
        fitting = sizes_of(definition, given)
    except (RuleMismatch, UnfitDraw, constraints.NotArithmetic):
        return None
    told = OperatorCall(
        " + ".join(dict.fromkeys(each.call.name.removeprefix("aten::") for each in calls)), source.operands
    )
    return MappedCall(told, definition, fitting, fitting.uuid(definition), sequence.id, NOTE)
