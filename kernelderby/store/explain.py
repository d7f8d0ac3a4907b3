"""msgspec's error about a broken value as our one line: place, field, problem, mend."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from kernelderby.errors import DerbyError

_NAMED, _NAMED_LETTERS = 16, 500  # names in one message, and letters of one that are held against others
DESCRIBED = "derby"  # key of msgspec.Meta.extra: what a value must be, in words

_WORDS = {
    "str": "a string", "int": "an integer", "float": "a number", "bool": "true or false", "object": "an object",
    "array": "a list", "null": "null",
}  # fmt: skip
_KINDS = {
    **{"StrType": "str", "IntType": "int", "FloatType": "float", "BoolType": "bool"},
    **{"DictType": "object", "StructType": "object", "ListType": "array", "VarTupleType": "array"},
}  # of msgspec.inspect
_STEP = re.compile(r"\.([^.\[\]`]+)|\[(\d+)\]|\[(\.\.\.)\]")


def explained(
    where: Path | str, error: msgspec.ValidationError, data: Any, kind: type, lax: bool = False
) -> DerbyError:
    """data: what was to become a kind; None where it cannot be had. lax: as in fields.convert."""
    message, _, place = str(error).partition(" - at `")
    steps, value = _located(str(error), place, data, kind, lax)
    node = _node_at(_type_info(kind), steps)
    field = _field(steps)
    if found := re.fullmatch(r"Object missing required field `(.+)`", message):
        inner = _node_at(node, [found[1]])
        return DerbyError(f"{where}: {_field([*steps, found[1]])}: is missing; add it ({_described(inner)})")
    if found := re.fullmatch(r"Object contains unknown field `(.+)`", message, re.DOTALL):
        fields = [each.encode_name for each in getattr(_plain(node), "fields", ())]
        return DerbyError(f"{where}: {_field([*steps, found[1]]):.80}: is no field; {suggestion(found[1], fields)}")
    if found := re.fullmatch(r"Invalid enum value '?(.*?)'?", message, re.DOTALL):
        known = [str(each) for each in _choices(node)]
        return DerbyError(f"{where}: {field}: {value!r:.60} is unknown; {suggestion(str(value), known)}")
    if "out of range" in message and not isinstance(value, int | float):  # the value that holds it was found, not it
        return DerbyError(f"{where}: {field}{': ' if field else ''}holds a number out of range; write a finite one")
    if re.match(r"Expected|Invalid|Integer value out of range|Number out of range", message):
        must = _described(node, message)
        instead = "" if data is None else f", not {value!r:.60}"
        return DerbyError(f"{where}: {field}{': ' if field else ''}must be {must}{instead}; mend the field")
    return DerbyError(f"{where}: {field}{'.' if field else ''}{message}")  # of a __post_init__


def _located(error: str, place: str, data: Any, kind: type, lax: bool) -> tuple[list[str | int], Any]:
    """The keys that lead to the broken value, and the value. msgspec writes [...] for the key of a dict: it is the one
    with which alone the error stays."""
    steps: list[str | int] = []
    value = data
    for name, index, any_key in _STEP.findall(place.partition("` in `")[2] or place):
        if any_key and isinstance(value, dict):
            keys = list(value)
            while len(keys) > 1:  # one by one takes hours where there are many
                half = keys[: len(keys) // 2]
                held = _with(data, steps, {key: value[key] for key in half})
                keys = half if _fails(error, held, kind, lax) else keys[len(half) :]
            alone = _with(data, steps, {key: value[key] for key in keys})
            if not keys or not _fails(error, alone, kind, lax):
                break
            step, data = keys[0], alone
        else:
            step = int(index) if index else name
        try:
            value = value[step]
        except (LookupError, TypeError):
            break
        steps.append(step)
    return steps, value


def _fails(error: str, data: Any, kind: type, lax: bool) -> bool:
    try:
        msgspec.convert(data, kind, strict=not lax)
    except msgspec.ValidationError as found:
        return str(found) == error
    return False


def _with(data: Any, steps: list[str | int], inner: Any) -> Any:
    """The data, with something else at the place that the steps lead to."""
    if not steps:
        return inner
    copied: Any = list(data) if isinstance(data, list) else dict(data)
    copied[steps[0]] = _with(data[steps[0]], steps[1:], inner)
    return copied


def _field(steps: Iterable[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")


def _node_at(node: Any, steps: Iterable[str | int]) -> Any:
    """The msgspec.inspect type of a value; None where the type does not say."""
    for step in steps:
        members = [_plain(each) for each in getattr(_plain(node), "types", [node])]
        node = next((found for each in members if (found := _inner(each, step)) is not None), None)
        if node is None:
            return None
    return node


def _inner(node: Any, step: str | int) -> Any:
    if isinstance(node, (msgspec.inspect.StructType, msgspec.inspect.DataclassType)):
        return next((field.type for field in node.fields if field.encode_name == step), None)
    if isinstance(node, msgspec.inspect.DictType):
        return node.value_type
    return getattr(node, "item_type", None) if isinstance(step, int) else None


def _plain(node: Any) -> Any:
    return node.type if isinstance(node, msgspec.inspect.Metadata) else node


def _described(node: Any, message: str = "") -> str:
    """What a value must be, in words: those of its type, else those of msgspec's message."""
    for each in [node, *getattr(_plain(node), "types", [])]:
        if isinstance(each, msgspec.inspect.Metadata) and each.extra and DESCRIBED in each.extra:
            return str(each.extra[DESCRIBED])
    found = re.match(r"Expected `([^`]+)`(.*?)(?:, got .*)?$", message, re.DOTALL)
    if found:
        kinds = [_WORDS.get(kind, kind) for kind in found[1].split(" | ")]
        return " or ".join(kinds) + found[2]
    choices = _choices(node)
    if choices:
        return " or ".join(map(str, choices))
    return _WORDS.get(_KINDS.get(type(_plain(node)).__name__, ""), "as the documentation says")


def _choices(node: Any) -> list[Any]:
    """Of an enum or a Literal."""
    for each in [_plain(node), *map(_plain, getattr(_plain(node), "types", []))]:
        if isinstance(each, msgspec.inspect.LiteralType):
            return list(each.values)
        if isinstance(each, msgspec.inspect.EnumType):
            return [member.value for member in each.cls]
    return []


def _unknown(data: Any, node: Any, prefix: str) -> Iterator[str]:
    for each in map(_plain, getattr(_plain(node), "types", [node])):
        if isinstance(each, msgspec.inspect.StructType) and isinstance(data, dict):
            fields = {field.encode_name: field.type for field in each.fields}
            for name, value in data.items():
                if name not in fields:
                    yield f"{prefix}{name}: is no field; {suggestion(name, fields)}"
                else:
                    yield from _unknown(value, fields[name], f"{prefix}{name}.")
        elif hasattr(each, "item_type") and isinstance(data, list):
            for position, value in enumerate(data):
                yield from _unknown(value, each.item_type, f"{prefix.removesuffix('.')}[{position}].")


def unknown_fields(data: Any, kind: type) -> list[str]:
    """What nobody reads, most often misspelt: "requires.cpus: is no field; did you mean cpu?". The first of them."""
    return [*islice(_unknown(data, _type_info(kind), ""), _NAMED)]


@cache
def _type_info(kind: type) -> msgspec.inspect.Type:
    return msgspec.inspect.type_info(kind)


def suggestion(name: str, known: Iterable[str]) -> str:
    """The near names of an unknown one, or those that there are when none is near."""
    known = sorted(known)
    near = get_close_matches(name[:_NAMED_LETTERS], known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    return f"known: {', '.join(known[:_NAMED])}{more}" if known else "there is none yet"
