"""Layer maps: the modules of a model's layer, their order, and the patterns of their kernels.

A map is a TOML file, ours under maps/ or anyone's by path:

    title = "what it is a map of"
    layers = 61                            # layers of the model: one forward pass runs so many
    [groups."dense mlp"]                   # optional, one per group that differs from the rest
    layers = 3                             # layers that have it (default: all)
    instead_of = ["moe"]                   # it replaces these groups, so it is no part of the usual layer
    [[modules]]                            # in the order in which they are launched
    group = "attention"
    name = "self.o_proj"
    ranges = ["o_proj$"]                   # NVTX ranges (regular expressions); a range decides before a pattern does
    kernels = [                            # kernels in order of launch; patterns are searched in names.normal_form
        { label = "quantisation", match = "per_token_group_quant", optional = true },
        { label = "fp8 GEMM", match = "fp8_gemm", repeat = true },
    ]
    [[overlaps]]                           # modules that run beside each other: the longest counts, not the sum
    parts = ["moe/combine", "shared expert"]     # a group, or a group/module

A module may stand at several places (combine: send, then receive); they add up to one module.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct

from kernelderby.errors import DerbyError
from kernelderby.profile.names import normal_form
from kernelderby.store.fields import convert, must_be, read_toml, suggestion
from kernelderby.store.patterns import Pattern

FOLDER = Path(__file__).parent / "maps"
CACHE_LIMIT = 100_000  # texts of ranges; those that carry a number would grow it without end
LayerLine = tuple[str, str, str]  # group, module, kernel label


Layers = Annotated[int, must_be("the number of layers, a whole number from 1 on", ge=1, le=10**6)]


class _Kernel(Struct):
    match: str
    label: str | None = None
    optional: bool = False
    repeat: bool = False


class _Module(Struct):
    group: str
    name: str
    ranges: tuple[str, ...] = ()
    kernels: tuple[str | _Kernel, ...] = ()


class _Group(Struct):
    layers: Layers | None = None
    instead_of: tuple[str, ...] = ()


class _Overlap(Struct):
    parts: tuple[str, ...] = ()


class _Map(Struct):
    """The file of a layer map."""

    layers: Layers
    modules: Annotated[tuple[_Module, ...], must_be("a list of [[modules]] in order of launch", min_length=1)]
    title: str | None = None
    groups: dict[str, _Group] = {}
    overlaps: tuple[_Overlap, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel of a layer. match: None for any kernel inside the module's NVTX range."""

    line: LayerLine
    place: int  # index of its [[modules]] entry
    match: Pattern | None
    optional: bool = False
    repeat: bool = False


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """layers: how many layers of the model have it. instead_of: groups that it replaces there."""

    name: str
    layers: int
    instead_of: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayerMap:
    """ranges: the ranges of each [[modules]] entry, by place. overlaps: the parts of each overlap; a part is a set of
    modules."""

    name: str
    title: str
    layers: int
    groups: dict[str, LayerGroup]
    steps: tuple[Step, ...]
    ranges: tuple[tuple[Pattern, ...], ...]
    overlaps: tuple[tuple[frozenset[tuple[str, str]], ...], ...]
    _found: dict[tuple[str, frozenset[int]], tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)
    _named: dict[str, frozenset[int]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def lines(self) -> list[LayerLine]:
        return list(dict.fromkeys(step.line for step in self.steps if step.match is not None))

    def usual(self, group: str) -> bool:
        """Whether layers of the usual kind have this group. Groups that replace others in a few layers are not
        usual."""
        return group not in self.groups or not self.groups[group].instead_of

    def candidates(self, kernel: str, ranges: tuple[str, ...] = ()) -> tuple[int, ...]:
        """Indices of the steps that match a kernel, by its innermost range that names a module, otherwise by
        pattern."""
        key = (kernel, self._places(ranges) if ranges and self._has_ranges else frozenset())
        if key not in self._found:
            self._found[key] = self._steps_of(normal_form(kernel), key[1])
        return self._found[key]

    @cached_property
    def _has_ranges(self) -> bool:
        return any(self.ranges)

    def _places(self, ranges: tuple[str, ...]) -> frozenset[int]:
        """Places of the modules that the innermost matching range names."""
        for text in reversed(ranges):
            if text not in self._named:
                if len(self._named) > CACHE_LIMIT:
                    self._named.clear()
                self._named[text] = frozenset(
                    place
                    for place, patterns in enumerate(self.ranges)
                    if any(pattern.search(text) for pattern in patterns)
                )
            if self._named[text]:
                return self._named[text]
        return frozenset()

    def _steps_of(self, kernel: str, places: frozenset[int]) -> tuple[int, ...]:
        fits = [index for index, step in enumerate(self.steps) if step.match and step.match.search(kernel)]
        if not places:
            return tuple(fits)
        within = [index for index in fits if self.steps[index].place in places]
        return tuple(
            within or (index for index, step in enumerate(self.steps) if step.match is None and step.place in places)
        )


def shipped() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_map(name: str | Path) -> LayerMap:
    """A shipped map by name ("deepseek_decode"), or any map by path. DerbyError: an unknown map, or a wrong field."""
    path = Path(name)
    if path.suffix != ".toml":
        path = FOLDER / f"{name}.toml"
        if not path.is_file():
            raise DerbyError(f"no layer map {str(name)!r}; there are {', '.join(shipped())}, or give a .toml file")
    return parse_map(path.stem, read_toml(path), path)


def parse_map(name: str, data: dict[str, Any], path: Path) -> LayerMap:
    convert(path, data, _Map)
    layers, entries = data["layers"], data["modules"]
    steps: list[Step] = []
    ranges = []
    for place, entry in enumerate(entries):
        where = f"{path}: modules[{place}]"
        if not entry.get("group") or not entry.get("name"):
            raise DerbyError(f"{where}: needs group and name; add them")
        _known(where, entry, {"group", "name", "ranges", "kernels"})
        if not entry.get("kernels") and not entry.get("ranges"):
            raise DerbyError(f"{where}: needs kernels or ranges, otherwise nothing can belong to it; add one")
        ranges.append(tuple(Pattern(where, text) for text in entry.get("ranges", ())))
        steps += _steps(where, place, entry)
    groups = _groups(path, data.get("groups", {}), [step.line[0] for step in steps], layers)
    overlaps = tuple(_overlap(path, entry, steps) for entry in data.get("overlaps", ()))
    return LayerMap(name, data.get("title", name), layers, groups, tuple(steps), tuple(ranges), overlaps)


def _steps(where: str, place: int, entry: dict[str, Any]) -> list[Step]:
    group, module = entry["group"], entry["name"]
    steps = []
    for kernel in entry.get("kernels", ()):
        kernel = {"match": kernel} if isinstance(kernel, str) else kernel
        _known(f"{where}: kernels", kernel, {"label", "match", "optional", "repeat"})
        if not kernel.get("match"):
            raise DerbyError(f"{where}: kernels: each needs match; add it, a regular expression")
        line = (group, module, kernel.get("label", kernel["match"]))
        steps.append(
            Step(
                line, place, Pattern(where, kernel["match"]), kernel.get("optional", False), kernel.get("repeat", False)
            )
        )
    if entry.get("ranges"):  # any other kernel inside its range; required if the range is the only sign of the module
        steps.append(Step((group, module, ""), place, None, optional=bool(steps), repeat=True))
    return steps


def _groups(path: Path, data: dict[str, Any], order: list[str], layers: int) -> dict[str, LayerGroup]:
    groups = {name: LayerGroup(name, layers) for name in dict.fromkeys(order)}
    for name, entry in data.items():
        where = f"{path}: groups.{name}"
        if name not in groups:
            raise DerbyError(f"{where}: no module is of this group; remove it, or give one of them this group")
        _known(where, entry, {"layers", "instead_of"})
        for other in entry.get("instead_of", ()):
            if other not in groups:
                raise DerbyError(f"{where}: instead_of: no group {other!r}; there are {', '.join(groups)}")
        groups[name] = LayerGroup(name, entry.get("layers", layers), tuple(entry.get("instead_of", ())))
    return groups


def _overlap(path: Path, entry: dict[str, Any], steps: list[Step]) -> tuple[frozenset[tuple[str, str]], ...]:
    modules = dict.fromkeys(step.line[:2] for step in steps)
    parts: list[frozenset[tuple[str, str]]] = []
    names = [*dict.fromkeys(group for group, _ in modules), *(f"{group}/{name}" for group, name in modules)]
    for text in entry.get("parts", ()):
        part = frozenset(key for key in modules if text == key[0] or text == f"{key[0]}/{key[1]}")
        if not part:
            raise DerbyError(f"{path}: overlaps: no group or group/module {text!r:.60}; {suggestion(text, names)}")
        if any(part & other for other in parts):
            raise DerbyError(f"{path}: overlaps: {text!r} stands in two parts of one overlap; remove it from one")
        parts.append(part)
    if len(parts) < 2:
        raise DerbyError(f"{path}: overlaps: parts: names less than two groups or modules; add what runs beside it")
    return tuple(parts)


def _known(where: str, entry: dict[str, Any], fields: set[str]) -> None:
    unknown = sorted(set(entry) - fields)
    if unknown:
        raise DerbyError(f"{where}: unknown field {unknown[0]!r}; there are {', '.join(sorted(fields))}")
