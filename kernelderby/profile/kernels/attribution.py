"""What a kernel's name tells: library, source file, role, element type and architecture.

The rules are data: rules/*.toml, and rules/names.csv for plain names that only one project has. Rules about a name's
shape come last. A name without a matching rule has the library `unknown`. Its role is still given if its words show
one.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, cached_property, lru_cache
from pathlib import Path

from msgspec import Struct

from kernelderby.errors import DerbyError
from kernelderby.profile.kernels.needles import Needles, alternatives
from kernelderby.profile.names import normal_form, split
from kernelderby.profile.spans import SpanKind
from kernelderby.store.fields import read_text, read_toml

RULES = Path(__file__).parent / "rules"
UNKNOWN = "unknown"


class _Entry(Struct):
    pattern: str
    examples: tuple[str, ...]
    id: str | None = None
    library: str | None = None
    role: str | None = None
    dtype: str | None = None
    architecture: str | None = None
    source: str | None = None
    guess: bool = False


class _Rules(Struct):
    """A file of rules."""

    library: str | None = None
    rule: tuple[_Entry, ...] = ()
    role: tuple[_Entry, ...] = ()
    dtype: tuple[_Entry, ...] = ()
    architecture: tuple[_Entry, ...] = ()


class Role(StrEnum):
    GEMM = "GEMM"
    GROUPED_GEMM = "grouped GEMM"
    ATTENTION = "attention"
    NORM = "norm"
    ROPE = "rope"
    ACTIVATION = "activation"
    QUANTISATION = "quantisation"
    ELEMENTWISE = "elementwise"
    COPY = "copy"
    REDUCTION = "reduction"
    SORT_SCAN = "sort/scan"
    SAMPLING = "sampling"
    ROUTING = "routing"
    GATHER_SCATTER = "gather/scatter"
    CONVOLUTION = "convolution"
    POOLING = "pooling/resize"
    COMMUNICATION = "communication"
    MEMCPY = "memcpy"
    FFT = "FFT"
    SOLVER = "solver"
    MEMSET = "memset"
    WAIT = "wait"  # waits for the host or for a time
    UNKNOWN = UNKNOWN


@dataclass(frozen=True, slots=True)
class Attribution:
    """source_file: "repository/path", if the name determines it. rule: id of the rule, "" if none matched. is_guess:
    other libraries have kernels of that name, or only the name's shape points to the library. dtype: the narrowest type
    in the name, as flashinfer-bench names it. architecture: "sm_80", "sm_90+" for that and later ones, or AMD's
    "gfx942".
    """

    library: str
    role: Role
    source_file: str | None = None
    dtype: str | None = None
    architecture: str | None = None
    rule: str = ""
    is_guess: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """value: the library; in the tables of roles, dtypes and architectures that value. role: None leaves the role to
    the words of the name."""

    id: str
    pattern: re.Pattern[str]
    value: str
    role: Role | None
    source: str | None
    is_guess: bool
    examples: tuple[str, ...]


class RuleTable(tuple[Rule, ...]):
    """Rules in the order in which they are tried."""

    @cached_property
    def _parts(self) -> list[tuple[Rule, str]]:
        """The alternatives of each rule's pattern."""
        return [(rule, part) for rule in self for part in alternatives(rule.pattern.pattern, rule.pattern.flags)]

    @cached_property
    def _needles(self) -> Needles:
        return Needles([part for _, part in self._parts], [rule.pattern.flags for rule, _ in self._parts])

    def asked(self, text: str) -> Iterator[tuple[Rule, re.Pattern[str]]]:
        """The alternatives that may match the text, in order."""
        for place in self._needles.places(text):
            rule, part = self._parts[place]
            yield rule, _compiled(part, rule.pattern.flags)


_compiled = cache(re.compile)


_BYTES = {"int8", "uint8"}
_LAST = "99_shapes.toml"  # asked after names.csv


def attribute(name: str, kind: SpanKind = SpanKind.KERNEL) -> Attribution:
    """The facts in a name, which may be demangled, mangled, short, or cut off by a GUI. Copies and memsets belong to
    the driver."""
    if kind is SpanKind.MEMCPY:
        return Attribution("CUDA", Role.MEMCPY, rule="memcpy")
    if kind is SpanKind.MEMSET:
        return Attribution("CUDA", Role.MEMSET, rule="memset")
    return _attribute(name)


@lru_cache(maxsize=65536)
def _attribute(name: str) -> Attribution:
    text = normal_form(name)
    qualified, template, _parameters = split(text)
    typed = f"{qualified}<{template}>" if template else qualified
    dtype = first_match(table("dtype"), typed)
    architecture = first_match(table("architecture"), text)
    known = Attribution(
        UNKNOWN,
        Role.UNKNOWN,
        dtype=dtype[0].value if dtype else None,
        architecture=architecture[1].expand(architecture[0].value) if architecture else None,
    )
    matched = first_match(rules(), text)
    library = None if matched else _known_library(qualified, text)
    if matched is None and library is None:
        matched = first_match(last_rules(), text)
    if matched is None:
        role = _role_of_words(qualified, text)
        return replace(known, library=library or UNKNOWN, role=role, rule="name" if library else "")
    rule, match = matched
    if rule.role is Role.COMMUNICATION and known.dtype in _BYTES:  # they move bytes of any type
        known = replace(known, dtype=None)
    return replace(
        known,
        library=rule.value,
        role=rule.role or _role_of_words(qualified, text),
        source_file=match.expand(rule.source) if rule.source else None,
        rule=rule.id,
        is_guess=rule.is_guess,
    )


def first_match(candidates: RuleTable, text: str) -> tuple[Rule, re.Match[str]] | None:
    """The first rule whose pattern occurs in the text, with the match."""
    for rule, part in candidates.asked(text):
        if part.search(text) and (match := rule.pattern.search(text)):
            return rule, match
    return None


def _role_of_words(qualified: str, text: str) -> Role:
    for where in dict.fromkeys((qualified, text)):
        if matched := first_match(table("role"), where):
            return Role(matched[0].value)
    return Role.UNKNOWN


@cache
def rules() -> RuleTable:
    """The rules of rules/<number>_<topic>.toml, in the order in which they are tried."""
    paths = sorted(path for path in RULES.glob("[0-9]*.toml") if path.name != _LAST)
    return RuleTable(rule for path in paths for rule in _read(path, "rule"))


@cache
def last_rules() -> RuleTable:
    """The rules that are tried after names.csv."""
    return RuleTable(_read(RULES / _LAST, "rule"))


@cache
def table(kind: str) -> RuleTable:
    """The rules of rules/roles.toml, dtypes.toml or architectures.toml; kind: role, dtype or architecture."""
    return RuleTable(_read(RULES / f"{kind}s.toml", kind))


# What Triton kernels with a `repr` append: their constants, in capitals, _GROUP_K_128_BLOCK_SIZE_M_16 ...
_CONSTANTS = re.compile(r"_[A-Z][A-Z0-9]+_.*$")


def _known_library(qualified: str, text: str) -> str | None:
    names = known_names()
    known = (
        names.get(qualified)
        or names.get(_CONSTANTS.sub("", qualified))
        or names.get(f"{qualified}_kernel")  # tables often omit this word
        or names.get(f"{qualified}Kernel")
    )
    if known is None or (known[1] and text != qualified):
        return None
    return known[0]


@cache
def known_names() -> dict[str, tuple[str, bool]]:
    """Function name without namespace -> its library ("Triton" if several carry the same kernel), and whether it is a
    Triton kernel, which has neither template arguments nor parameters."""
    lines = (line for line in read_text(RULES / "names.csv").split("\n") if not line.startswith("#"))
    return {row["name"]: (row["library"], row["language"] == "triton") for row in csv.DictReader(lines)}


def _read(path: Path, kind: str) -> list[Rule]:
    found = read_toml(path, _Rules)
    entries: tuple[_Entry, ...] = getattr(found, kind)
    if not entries:
        raise DerbyError(f"{path}: {kind}: is missing; add [[{kind}]] with pattern and examples")
    return [_rule(path, kind, entry.id or f"{kind}.{number}", entry, found) for number, entry in enumerate(entries, 1)]


def _rule(path: Path, kind: str, identifier: str, entry: _Entry, found: _Rules) -> Rule:
    try:
        value = entry.library or found.library if kind == "rule" else getattr(entry, kind)
        if not value:
            raise ValueError(f"{'library' if kind == 'rule' else kind} is missing")
        pattern = re.compile(entry.pattern, re.IGNORECASE if kind == "role" else 0)
        role = Role(entry.role) if entry.role else None
        return Rule(identifier, pattern, value, role, entry.source, entry.guess, entry.examples)
    except (ValueError, re.error) as error:
        where = f"{path.name}: {kind} {identifier}"
        raise DerbyError(f"{where}: {error}; see the first lines of 10_communication.toml") from error
