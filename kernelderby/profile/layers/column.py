"""A profile as a column of the layer table. Events are assigned by their place in the layer, sums by kernel pattern
only."""

from __future__ import annotations

from array import array
from collections import defaultdict

import numpy as np

from kernelderby.errors import DerbyError
from kernelderby.profile import intervals
from kernelderby.profile.layers.draft import DRAFT, longest_run
from kernelderby.profile.layers.map import LayerLine, LayerMap
from kernelderby.profile.layers.sums import (
    InseparableKernels,
    LayerColumn,
    Module,
    UnexplainedKernels,
    compute_sums,
    most_common,
)
from kernelderby.profile.layers.walk import NOWHERE, Matcher
from kernelderby.profile.names import short_name
from kernelderby.profile.spans import Profile, SpanKind
from kernelderby.store.counts import counted

ONE_OF = "one of "
MOSTLY = 0.5  # share of unattributed time above which the map is doubtful
_WHOLE = 0.05  # share of a pass: a recording holds whole passes except at its ends
_ENDS = 2  # number of layers at the ends of the model that may differ from the rest


def profile_column(profile: Profile, layer_map: LayerMap) -> LayerColumn:
    """DerbyError if no kernel of the profile is in the map."""
    column = LayerColumn(profile.path.name, profile.form, str(profile.path), gpu=profile.gpu)
    (_from_events if profile.has_events else _from_sums)(column, profile, layer_map)
    column.notes[:0] = [f"{column.title}: {warning}" for warning in profile.warnings]
    _doubts(column, layer_map)
    if profile.has_events:
        _check_fit(profile, layer_map, column)
    return column


def _doubts(column: LayerColumn, layer_map: LayerMap) -> None:
    """Warnings for the top of the table: the map may be another model's; modules without any kernel."""
    found = set(column.modules) | {module for one in column.inseparable for module in one.modules}
    shared = [name for _, name in column.modules if name.startswith(ONE_OF)]
    wanted = [
        module for module in dict.fromkeys(step.line[:2] for step in layer_map.steps) if _is_required(layer_map, module)
    ]
    missing = [module for module in wanted if module not in found and not any(module[1] in name for name in shared)]
    if missing:
        column.notes.append(f"{column.title}: no kernel of {', '.join('/'.join(module) for module in missing)}")
    share = (column.unattributed_us or 0.0) / column.busy_us if column.busy_us else 0.0
    if share > MOSTLY:
        column.facts.append(
            f"WARNING: {share:.0%} of its GPU work is in no module of {layer_map.name}; for another model "
            "give another --map"
        )


def _check_fit(profile: Profile, layer_map: LayerMap, column: LayerColumn) -> None:
    """A warning among the column's facts if one sign contradicts the map, a DerbyError if two do."""
    run = longest_run(profile)
    if run is None or _holds(run, layer_map):
        return
    said = (
        f"{counted(run, 'layer repeats', 'layers repeat')} in a row, but the map {layer_map.name} has "
        f"{layer_map.layers}"
    )
    passes = column.passes or 0.0
    if abs(passes - round(passes)) > _WHOLE:
        mend = "set layers in a copy of it, or leave --map out for a draft"
        if layer_map.name == DRAFT:  # steps followed one another without a kernel between their layers
            mend = "write the draft with --draft FILE, set layers in it, and give it with --map"
        raise DerbyError(f"{profile.path}: the map does not fit: {said}, which makes {passes:.2f} passes; {mend}")
    column.facts.append(f"WARNING: {said}: the map may be another model's")


def _holds(run: int, layer_map: LayerMap) -> bool:
    """Whether the run of layers is possible in this model: passes of one kind of its layers after another."""
    kinds = {layer_map.layers, *(group.layers for group in layer_map.groups.values())}
    for layers in kinds:
        passes = max(round(run / layers), 1)
        if abs(run - passes * layers) <= _ENDS * passes or (run < layers and layers <= 2 * _ENDS):
            return True
    return any(layers % run == 0 for layers in kinds)


class _Events:
    """Every span as numbers, in order of start (2 million take about 50 MB).

    kernels: (name, steps that it may be) of each kernel number. streams: (process, device, stream) of each number.
    """

    def __init__(self, profile: Profile, layer_map: LayerMap) -> None:
        start, end, kernel, stream = array("q"), array("q"), array("i"), array("i")
        kernels: dict[tuple[str, tuple[int, ...]], int] = {}
        streams: dict[tuple[int, int, int], int] = {}
        for span in profile.spans():
            start.append(span.start_ns)
            end.append(span.end_ns)
            key = (span.name, layer_map.candidates(span.name, span.ranges))
            kernel.append(kernels.setdefault(key, len(kernels)))
            place = (span.process, span.device, span.stream)
            stream.append(streams.setdefault(place, len(streams)))
        self.start, self.end = np.frombuffer(start, np.int64), np.frombuffer(end, np.int64)
        self.kernel, self.stream = np.frombuffer(kernel, np.int32), np.frombuffer(stream, np.int32)
        self.kernels, self.streams = list(kernels), list(streams)
        self.names = [short_name(name) for name, _ in kernels]
        gpus = {gpu: number for number, gpu in enumerate(dict.fromkeys(key[:2] for key in streams))}
        self.gpu = np.array([gpus[key[:2]] for key in streams])[self.stream]

    def union(self, wanted: np.ndarray) -> float:
        """The us in which a span of the mask `wanted` ran, summed over the GPUs."""
        masks = (wanted & (self.gpu == gpu) for gpu in np.unique(self.gpu))
        return sum(intervals.length(intervals.union(self.start[one], self.end[one])) for one in masks) / 1e3

    def wall(self) -> float:
        """The us from the first start to the last end, summed over the GPUs as in union()."""
        masks = (self.gpu == gpu for gpu in np.unique(self.gpu))
        return float(sum(self.end[one].max() - self.start[one].min() for one in masks)) / 1e3


def _from_events(column: LayerColumn, profile: Profile, layer_map: LayerMap) -> None:
    events = _Events(profile, layer_map)
    step, layer = _walk(events, layer_map)
    if not (step >= 0).any():
        raise _nothing(profile, layer_map)
    seen = _occurrences(events, layer_map, step, layer)
    column.seen = _layers_seen(layer_map, seen)
    uneven = [
        f"{'/'.join(module)} in {count} of {column.seen[module[0]]}"
        for module, count in seen.items()
        if count != column.seen[module[0]] and _is_required(layer_map, module)
    ]
    if uneven:
        column.notes.append(
            f"{column.title}: not in as many layers as their groups: {', '.join(uneven)}; "
            "averages are over the layers of the group"
        )
    lines = _lines(column, events, layer_map, step)
    unions: dict[tuple[str, ...], float] = {}
    for length in (3, 2, 1):
        for key in dict.fromkeys(line[:length] for line in lines):
            members = [spans for line, spans in lines.items() if line[:length] == key]
            unions[key] = events.union(np.logical_or.reduce(members))
    usual = [spans for line, spans in lines.items() if layer_map.usual(line[0])]
    usual_us = events.union(np.logical_or.reduce(usual)) if usual else 0.0
    column.attributed_us, column.busy_us = events.union(step >= 0), events.union(np.ones(len(step), bool))
    column.unattributed_us = column.busy_us - column.attributed_us
    column.wall_us = events.wall()
    _leftovers(column, events, step, layer)
    _per_layer(column, unions, usual_us, layer_map)


def _walk(events: _Events, layer_map: LayerMap) -> tuple[np.ndarray, np.ndarray]:
    """For every span its step (NOWHERE: none) and its layer, counted per stream (NOWHERE: outside)."""
    step, layer = (np.full(len(events.start), NOWHERE, np.int32) for _ in range(2))
    matcher = Matcher(layer_map)
    for stream in range(len(events.streams)):
        members = np.flatnonzero(events.stream == stream)
        walk = matcher.walk([events.kernels[kernel][1] for kernel in events.kernel[members].tolist()])
        step[members], layer[members] = walk.steps, walk.passes
    return step, layer


def _occurrences(events: _Events, layer_map: LayerMap, step: np.ndarray, layer: np.ndarray) -> dict[Module, int]:
    """The number of layers that contain each module; every stream counts its own layers."""
    modules = list(dict.fromkeys(one.line[:2] for one in layer_map.steps))
    module_of = np.array([modules.index(one.line[:2]) for one in layer_map.steps])
    matched = np.flatnonzero(step >= 0)
    found = np.stack([module_of[step[matched]], events.stream[matched], layer[matched]])
    numbers, counts = np.unique(np.unique(found, axis=1)[0], return_counts=True)
    return {modules[number]: int(count) for number, count in zip(numbers, counts, strict=True)}


def _lines(column: LayerColumn, events: _Events, layer_map: LayerMap, step: np.ndarray) -> dict[LayerLine, np.ndarray]:
    """The mask of the spans of each line. Writes names and instances into the column."""
    lines: dict[LayerLine, np.ndarray] = {}
    kinds = len(events.kernels)
    matched = step >= 0
    for code in np.unique(step[matched].astype(np.int64) * kinds + events.kernel[matched]).tolist():
        group, module, label = layer_map.steps[code // kinds].line
        name = events.names[code % kinds]
        line = (group, module, label or name)
        spans = (step == code // kinds) & (events.kernel == code % kinds)
        lines[line] = lines[line] | spans if line in lines else spans
        column.names.setdefault(line, set()).add(name)
    column.instances = {line: int(spans.sum()) for line, spans in lines.items()}
    return lines


def _leftovers(column: LayerColumn, events: _Events, step: np.ndarray, layer: np.ndarray) -> None:
    """Unattributed kernels by name, largest first. Without a step but with a layer: inside one."""
    stray = step == NOWHERE
    kernel, duration = events.kernel[stray], (events.end - events.start)[stray]
    size = len(events.kernels)
    counts = np.bincount(kernel, minlength=size)
    totals, inside = (np.bincount(kernel, weights, size) for weights in (duration, duration * (layer[stray] >= 0)))
    by_name: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for number in np.flatnonzero(counts):
        entry = by_name[events.names[number]]
        for place, values in enumerate((counts, totals, inside)):
            entry[place] += values[number]
    column.leftovers = sorted(
        (
            UnexplainedKernels(name, int(count), float(total) / 1e3, float(within) / 1e3)
            for name, (count, total, within) in by_name.items()
        ),
        key=lambda one: -one.total_us,
    )


def _per_layer(column: LayerColumn, unions: dict[tuple[str, ...], float], usual_us: float, layer_map: LayerMap) -> None:
    """Averages over the layers that have the group. usual_us: the union over a whole layer of the usual kind."""
    for key, total in unions.items():
        mean = total / column.seen[key[0]]
        if len(key) == 1:
            column.groups[key[0]] = mean
        else:
            group, module, *kernel = key
            if kernel:
                column.lines[group, module, kernel[0]] = mean
            else:
                column.modules[group, module] = mean
    usual = [group for group in column.groups if layer_map.usual(group)]
    overlapping = {key[0] for parts in layer_map.overlaps for part in parts for key in part} & set(usual)
    hidden = sum(unions[group,] for group in usual) - usual_us
    column.overlapped_us = max(0.0, hidden) / max((column.seen[group] for group in overlapping or usual), default=1)
    column.layer_us = sum(column.groups[group] for group in usual) - column.overlapped_us
    column.passes = _passes(column, layer_map)
    column.model_us = (column.attributed_us or 0.0) / column.passes


def _passes(column: LayerColumn, layer_map: LayerMap) -> float:
    """Forward passes in the profile, from the group that most layers have."""
    group = max(column.seen, key=lambda name: (layer_map.groups[name].layers, column.seen[name]))
    return column.seen[group] / layer_map.groups[group].layers


def _layers_seen(layer_map: LayerMap, seen: dict[Module, int]) -> dict[str, int]:
    """For each group the number of layers that have it: the most frequent count among its required modules."""
    by_group: dict[str, list[int]] = defaultdict(list)
    for wanted in (True, False):
        for module, count in seen.items():
            if _is_required(layer_map, module) is wanted and (wanted or not by_group[module[0]]):
                by_group[module[0]].append(count)
    return {group: most_common(counts) for group, counts in by_group.items() if counts}


def _is_required(layer_map: LayerMap, module: tuple[str, str]) -> bool:
    return any(step.line[:2] == module and not step.optional for step in layer_map.steps)


def _from_sums(column: LayerColumn, profile: Profile, layer_map: LayerMap) -> None:
    totals: dict[LayerLine, float] = defaultdict(float)
    shared = []
    counts: dict[str, list[int]] = defaultdict(list)
    attributed = busy = 0.0
    for row in profile.sums():
        us, name = row.total_ns / 1e3, short_name(row.name)
        busy += us
        steps = layer_map.candidates(row.name)
        modules = tuple(dict.fromkeys(layer_map.steps[index].line[:2] for index in steps))
        if not steps:
            column.leftovers.append(
                UnexplainedKernels(name if row.kind is SpanKind.KERNEL else row.name, row.instances, us)
            )
            continue
        attributed += us
        if len({group for group, _ in modules}) > 1:
            shared.append((name, modules, row.instances, us))
            continue
        line = _line(layer_map, steps, modules, name)
        totals[line] += us
        column.instances[line] = column.instances.get(line, 0) + row.instances
        column.names.setdefault(line, set()).add(name)
    if not attributed:
        raise _nothing(profile, layer_map)
    for line, count in column.instances.items():
        if _is_once_a_layer(layer_map, line):
            counts[line[0]].append(count)
    if not counts:
        raise DerbyError(
            f"{profile.path}: no kernel in this profile stands once in a layer of {layer_map.name}, so the number "
            "of layers is unknown; take a profile with events (an nsys SQLite export)"
        )
    layers = most_common(count for values in counts.values() for count in values)
    groups = dict.fromkeys(line[0] for line in totals)
    column.seen = {group: most_common(counts[group]) or layers for group in groups}
    column.lines = {line: us / column.seen[line[0]] for line, us in totals.items()}
    column.inseparable = [InseparableKernels(name, modules, count, us / layers) for name, modules, count, us in shared]
    column.busy_us, column.attributed_us, column.unattributed_us = busy, attributed, busy - attributed
    compute_sums(column, layer_map, layer_map.layers)
    column.passes = _passes(column, layer_map)
    if shared:
        column.notes.append(
            f"{column.title}: has sums only, so {counted(len(shared), 'kernel')} that several groups have are in "
            "no group; the layer has them"
        )


def _line(layer_map: LayerMap, steps: tuple[int, ...], modules: tuple[tuple[str, str], ...], name: str) -> LayerLine:
    lines = {layer_map.steps[index].line for index in steps}
    if len(lines) == 1:
        return lines.pop()
    if len(modules) == 1:
        return (*modules[0], name)
    return (modules[0][0], ONE_OF + ", ".join(module for _, module in modules), name)


def _is_once_a_layer(layer_map: LayerMap, line: LayerLine) -> bool:
    steps = [step for step in layer_map.steps if step.line == line]
    return len(steps) == 1 and not steps[0].optional and not steps[0].repeat


def _nothing(profile: Profile, layer_map: LayerMap) -> DerbyError:
    return DerbyError(f"{profile.path}: no kernel in it is in the layer map {layer_map.name}; give another --map")
