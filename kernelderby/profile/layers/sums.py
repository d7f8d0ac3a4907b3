"""The times of one profile or one published table by layer: a column of the layer table. All times are us per layer.

Overlapping time counts once. With events it is the union of intervals, at every level. With module times only, the
longest of the modules that the map declares to overlap counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from kernelderby.profile.layers.map import LayerLine, LayerMap

Module = tuple[str, str]


@dataclass(frozen=True, slots=True)
class UnexplainedKernels:
    """Kernels of one name that no module explains. inside_us: the part that ran inside layers, None if unknown."""

    name: str
    instances: int
    total_us: float
    inside_us: float | None = None


@dataclass(frozen=True, slots=True)
class InseparableKernels:
    """Kernels of one name that the map has in several groups, and that cannot be told apart without events."""

    name: str
    modules: tuple[Module, ...]
    instances: int
    layer_us: float


@dataclass(frozen=True, slots=True)
class PrintedSum:
    """A sum that a document prints, beside the sum of its rows. group: None for all layers or end to end. layers:
    number of layers in the sum, if the document gives it."""

    what: str
    group: str | None
    printed_us: float
    computed_us: float | None
    agrees: bool | None
    layers: int | None = None


@dataclass
class LayerColumn:
    """form: "module table", or the form of the profile. names: line -> its kernels. seen: group -> number of layers
    counted. layer_us: one layer of the usual kind. model_us: all layers of one forward pass. overlapped_us: the sum of
    the groups minus layer_us. unattributed_us, busy_us, wall_us: of the whole profile, summed over its
    GPUs, None for a table.
    """

    title: str
    form: str
    source: str = ""
    facts: list[str] = field(default_factory=list)
    gpu: str | None = None
    complete: bool = True
    lines: dict[LayerLine, float] = field(default_factory=dict)
    names: dict[LayerLine, set[str]] = field(default_factory=dict)
    instances: dict[LayerLine, int] = field(default_factory=dict)
    modules: dict[Module, float] = field(default_factory=dict)
    groups: dict[str, float] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    overlapped_us: float = 0.0
    layer_us: float = 0.0
    model_us: float = 0.0
    inseparable: list[InseparableKernels] = field(default_factory=list)
    printed: list[PrintedSum] = field(default_factory=list)
    leftovers: list[UnexplainedKernels] = field(default_factory=list)
    attributed_us: float | None = None
    unattributed_us: float | None = None
    busy_us: float | None = None
    wall_us: float | None = None
    passes: float | None = None
    notes: list[str] = field(default_factory=list)


def compute_sums(column: LayerColumn, layer_map: LayerMap | None, layers: int) -> None:
    """Computes modules, groups, layer and model from the lines' times, with the overlaps that the map declares."""
    for line, us in column.lines.items():
        column.modules[line[:2]] = column.modules.get(line[:2], 0.0) + us
    for (group, _), us in column.modules.items():
        column.groups[group] = column.groups.get(group, 0.0) + us
    hidden_of_all = 0.0
    for parts in layer_map.overlaps if layer_map else ():
        assert layer_map is not None  # the column has the parts
        hidden, groups = _hidden(column.modules, parts)
        if len(groups) == 1 and hidden:
            column.groups[groups.pop()] -= hidden
            continue
        column.overlapped_us += hidden
        hidden_of_all += hidden * min((layer_map.groups[group].layers for group in groups), default=0)
    usual = [group for group in column.groups if layer_map is None or layer_map.usual(group)]
    inseparable = sum(entry.layer_us for entry in column.inseparable)
    column.layer_us = sum(column.groups[group] for group in usual) + inseparable - column.overlapped_us
    column.model_us = sum(us * group_layers(layer_map, group, layers) for group, us in column.groups.items())
    column.model_us += inseparable * layers - hidden_of_all


def group_layers(layer_map: LayerMap | None, group: str, layers: int) -> int:
    return layer_map.groups[group].layers if layer_map and group in layer_map.groups else layers


def _hidden(modules: dict[Module, float], parts: Iterable[frozenset[Module]]) -> tuple[float, set[str]]:
    """(time of the parts that runs beside the longest part, groups with such parts)."""
    sums = [sum(modules.get(key, 0.0) for key in part) for part in parts]
    groups = {key[0] for part in parts for key in part if key in modules}
    return sum(sums) - max(sums), groups


def most_common(counts: Iterable[int]) -> int:
    """The most frequent count, the larger of two equally frequent ones; 0 without counts."""
    tally = Counter(counts)
    return max(tally, key=lambda count: (tally[count], count)) if tally else 0
