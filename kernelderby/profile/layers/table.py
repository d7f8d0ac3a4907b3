"""Layer tables: layer group -> module -> kernel of a served model, for one profile or several side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernelderby.profile.filters import Selection, StepsOfKind, selected
from kernelderby.profile.layers.column import profile_column
from kernelderby.profile.layers.draft import draft_of
from kernelderby.profile.layers.map import LayerLine, LayerMap, load_map
from kernelderby.profile.layers.published import is_module_table, table_columns
from kernelderby.profile.layers.sums import LayerColumn, compute_sums
from kernelderby.profile.sources import open_profile
from kernelderby.profile.spans import Profile
from kernelderby.profile.steps.annotations import read_annotation
from kernelderby.profile.steps.find import ProfileStep, steps_of, windows_of


@dataclass(frozen=True, slots=True)
class LayerRatio:
    """A column's time over the first column's, for the kernels that both have: `shared` of `of` kernels."""

    ratio: float
    shared: int
    of: int

    @property
    def is_partial(self) -> bool:
        return self.shared < self.of


@dataclass(frozen=True, slots=True)
class LayerTable:
    """lines: every kernel line of any column, in order of launch. Ratios are over the first column."""

    layer_map: LayerMap | None
    layers: int
    columns: tuple[LayerColumn, ...]
    lines: tuple[LayerLine, ...]

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys(line[0] for line in self.lines))

    @property
    def modules(self) -> list[tuple[str, str]]:
        order = {group: place for place, group in enumerate(self.groups)}
        return sorted(dict.fromkeys(line[:2] for line in self.lines), key=lambda module: order[module[0]])

    def of(self, prefix: tuple[str, ...]) -> list[LayerLine]:
        """Lines of a group, (group,), or of a module, (group, module)."""
        return [line for line in self.lines if line[: len(prefix)] == prefix]

    def usual(self) -> list[LayerLine]:
        return [line for line in self.lines if self.layer_map is None or self.layer_map.usual(line[0])]

    def coverage(self, column: LayerColumn, lines: Iterable[LayerLine]) -> tuple[int, int]:
        """(lines that the column has a time for, lines that any column has one for)."""
        timed = [line for line in lines if any(line in other.lines for other in self.columns)]
        return sum(line in column.lines for line in timed), len(timed)

    def compare(
        self, column: LayerColumn, lines: Sequence[LayerLine], total: str | tuple[Any, ...] | None = None
    ) -> LayerRatio | None:
        """The ratio to the first column. total: "layer", "model", (group,) or (group, module). If both columns are
        whole, their own totals (overlap counted once) are compared; otherwise the sums of the lines that both have."""
        first = self.columns[0]
        either = [line for line in lines if line in column.lines or line in first.lines]
        both = [line for line in either if line in column.lines and line in first.lines]
        if total is not None and (len(both) == len(either) or (first.complete and column.complete)):
            ours, theirs = _total(column, total), _total(first, total)
            return LayerRatio(ours / theirs, len(either), len(either)) if ours and theirs else None
        ours, theirs = (self._total_of(one, both, total) for one in (column, first))
        return LayerRatio(ours / theirs, len(both), len(either)) if theirs else None

    def _total_of(self, column: LayerColumn, lines: Sequence[LayerLine], total: str | tuple[Any, ...] | None) -> float:
        """The total of some of a column's lines. Overlaps that the map declares count once here too."""
        part = LayerColumn("", "", lines={line: column.lines[line] for line in lines})
        compute_sums(part, self.layer_map, self.layers)
        return sum(part.lines.values()) if total is None else _total(part, total) or 0.0

    def as_data(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "layer_map": self.layer_map.name if self.layer_map else None,
            "layers": self.layers,
            "columns": [self._column_data(column) for column in self.columns],
        }

    def _column_data(self, column: LayerColumn) -> dict[str, Any]:
        data = {
            key: value
            for key, value in asdict(column).items()
            if key not in ("lines", "names", "instances", "modules", "groups")
        }
        data["groups"] = [
            {
                "group": group,
                "layer_us": column.groups.get(group),
                "layers_seen": column.seen.get(group),
                "against_first": self._ratio(column, self.of((group,)), (group,)),
            }
            for group in self.groups
        ]
        data["modules"] = [
            {
                "group": module[0],
                "module": module[1],
                "layer_us": column.modules.get(module),
                "against_first": self._ratio(column, self.of(module), module),
            }
            for module in self.modules
        ]
        data["kernels"] = [
            {
                "group": line[0],
                "module": line[1],
                "kernel": line[2],
                "names": sorted(column.names.get(line, ())),
                "layer_us": column.lines.get(line),
                "instances": column.instances.get(line),
                "against_first": self._ratio(column, [line]),
            }
            for line in self.lines
        ]
        data["layer_against_first"] = self._ratio(column, self.usual(), "layer")
        return data

    def _ratio(
        self, column: LayerColumn, lines: Sequence[LayerLine], total: str | tuple[Any, ...] | None = None
    ) -> dict[str, Any] | None:
        found = self.compare(column, lines, total) if column is not self.columns[0] else None
        return asdict(found) if found else None


def _total(column: LayerColumn, total: str | tuple[Any, ...]) -> float | None:
    if total == "layer":
        return column.layer_us
    if total == "model":
        return column.model_us
    return column.groups.get(total[0]) if len(total) == 1 else column.modules.get((total[0], total[1]))


def layer_table(
    files: Sequence[Path], map_name: str | Path | None = None, selection: Selection | None = None
) -> LayerTable:
    """The columns of all files side by side: module tables (TOML) and profiles. A profile has a column for each kind of
    serving step if annotations tell them apart. The map is the given one, otherwise that of the first module table,
    otherwise a draft from the first profile. selection: use only that part of the profiles. DerbyError: no layer is
    found, the map is another model's, or a file cannot be read."""
    layer_map = load_map(map_name) if map_name is not None else None
    found: dict[Path, list[LayerColumn]] = {}
    told = ""
    for path in filter(is_module_table, files):
        found[path], layer_map = table_columns(path, layer_map)
    for path in files:
        if path in found:
            continue
        profile = selected(open_profile(path), selection)
        if layer_map is None:
            made = draft_of(profile)
            layer_map, told = made.layer_map(path), made.how
        found[path] = [profile_column(each, layer_map) for each in _by_kind(profile)]
        if told:
            found[path][0].facts.append(f"no --map: {told}; --draft FILE writes it")
            told = ""
        for column, each in zip(found[path], _by_kind(profile), strict=True):
            column.title = path.name if each is profile else f"{path.name} {each.form.rpartition(', ')[2]}"
    columns = [column for path in files for column in found[path]]
    for path in files:
        if sum(column.title == path.name for column in columns) > 1:
            found[path][0].title = str(path)
    layers = layer_map.layers if layer_map else 1
    return LayerTable(layer_map, layers, tuple(columns), tuple(_order(layer_map, columns)))


def _by_kind(profile: Profile) -> list[Profile]:
    """One part for each kind of serving step, by the annotations; the profile itself if there is one kind only."""
    if not profile.has_events or not any(read_annotation(each.name) for each in profile.range_instances()):
        return [profile]
    steps = steps_of(profile)
    kinds: dict[str, list[ProfileStep]] = {}
    for step in steps.steps:
        kinds.setdefault(step.title.partition(",")[0], []).append(step)
    if len(kinds) < 2:
        return [profile]
    return [StepsOfKind(profile, kind, windows_of(each)) for kind, each in kinds.items()]


def _order(layer_map: LayerMap | None, columns: Sequence[LayerColumn]) -> list[LayerLine]:
    """First the map's lines that a column has, in the map's order, group by group, with the groups of unusual layers
    last. Other lines follow the last line of their module, or of their group, or come at the end."""
    known = [line for column in columns for line in (*column.names, *column.lines)]
    present = set(known)
    of_map = {line: None for line in (layer_map.lines if layer_map else ()) if line in present}
    runs: dict[str, list[list[LayerLine]]] = {}  # group -> its lines; those in one list stay together
    of_module: dict[tuple[str, str], list[LayerLine]] = {}  # -> the list that its next line goes to
    for line in {**of_map, **dict.fromkeys(known)}:
        if line in of_map or line[:2] not in of_module:
            of_module[line[:2]] = []
            runs.setdefault(line[0], []).append(of_module[line[:2]])
        of_module[line[:2]].append(line)
    groups = sorted(layer_map.groups, key=lambda name: not layer_map.usual(name)) if layer_map else []
    return [line for group in dict.fromkeys([*groups, *runs]) for run in runs.get(group, ()) for line in run]
