"""Published or measured module tables: TOML files (profiles/*.toml) whose columns become columns of the layer table.

kind = "module table"
source = "where the figures are from"       notes = ["what a reader must know"]
unit = "us"                       # of every number in the file
layer_map = "deepseek_decode"     # optional: gives order, overlaps and layers; otherwise layers = N here
[[columns]]                       # id (key of the rows), title, gpu, conditions
[[printed]]                       # column, value, and group ("attention") or what ("61 layers", with layers = 61)
[rows]
attention = [{ module = "...", kernel = "...", <column id> = 4 }]     # in order of launch; no number: an empty cell
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeGuard

from msgspec import Struct

from kernelderby.errors import DerbyError
from kernelderby.profile.layers.document import module_table, read_document
from kernelderby.profile.layers.map import LayerLine, LayerMap, Layers, load_map
from kernelderby.profile.layers.sums import LayerColumn, PrintedSum, compute_sums
from kernelderby.profile.names import normal_form
from kernelderby.rows.samples import MOST_US
from kernelderby.store.fields import NotNegative, Number, convert, read_toml

KIND = "module table"


class _Heading(Struct):
    id: str | None = None
    title: str | None = None
    gpu: str | None = None
    conditions: str | None = None


class _Stated(Struct):
    column: str | None = None
    value: NotNegative | None = None
    group: str | None = None
    what: str | None = None
    layers: int | None = None


class _Table(Struct):
    """The file of a module table."""

    kind: str | None = None
    source: str | None = None
    notes: tuple[str, ...] = ()
    unit: str | None = None
    layer_map: str | None = None
    layers: Layers = 1
    columns: tuple[_Heading, ...] = ()
    printed: tuple[_Stated, ...] = ()
    rows: dict[str, tuple[dict[str, str | Number], ...]] = {}

    def __post_init__(self) -> None:
        for group, entries in self.rows.items():
            for position, entry in enumerate(entries):
                for field in ("module", "kernel"):
                    if not isinstance(entry.get(field, ""), str):
                        raise ValueError(f"rows.{group}[{position}].{field}: must be a string; mend the field")


def is_module_table(path: Path) -> bool:
    """Whether it is a TOML file of ours, or a document with such a table."""
    return path.suffix == ".toml" or module_table(path) is not None


def table_columns(path: Path, layer_map: LayerMap | None) -> tuple[list[LayerColumn], LayerMap | None]:
    """The file's columns, and their map: the given one, otherwise the file's own. DerbyError: a field is wrong."""
    data: dict[str, Any] = read_toml(path) if path.suffix == ".toml" else read_document(path)
    convert(path, data, _Table)
    if data.get("kind") != KIND:
        raise DerbyError(f'{path}: kind: a module table says kind = "{KIND}"; a layer map goes to --map')
    if data.get("unit") != "us":
        raise DerbyError(f'{path}: unit: is {data.get("unit")!r}; give the times in us and say unit = "us"')
    if not data.get("source"):
        raise DerbyError(f"{path}: source: is missing; say where the figures are from")
    if layer_map is None and data.get("layer_map"):
        layer_map = load_map(data["layer_map"])
    layers = layer_map.layers if layer_map else data.get("layers", 1)
    rows = _rows(path, data, layer_map)
    columns = []
    for entry in data.get("columns", ()):
        if "id" not in entry or "title" not in entry:
            raise DerbyError(f"{path}: columns: each needs id and title; add them")
        columns.append(_column(path, data, entry, rows, layer_map, layers))
    ids = [entry["id"] for entry in data.get("columns", ())]
    if not columns or len(set(ids)) < len(ids):
        raise DerbyError(f"{path}: columns: needs [[columns]], each with an id of its own; add or rename them")
    unknown = {key for _, row in rows for key in row} - {"module", "kernel", *ids}
    if unknown:
        raise DerbyError(f"{path}: rows: {min(unknown)!r} is no column; there are {', '.join(ids)}")
    columns[0].notes += [f"{path.name}: {note}" for note in data.get("notes", ())]
    return columns, layer_map


def _rows(path: Path, data: dict[str, Any], layer_map: LayerMap | None) -> list[tuple[LayerLine, dict[str, Any]]]:
    rows = []
    taken: dict[LayerLine, int] = {}
    for group, entries in data.get("rows", {}).items():
        for entry in entries:
            if not entry.get("module"):
                raise DerbyError(f"{path}: rows.{group}: each row needs a module; add it")
            line = _line(layer_map, group, entry["module"], entry.get("kernel", ""), taken)
            rows.append((line, entry))
    if not rows:
        raise DerbyError(f"{path}: rows: is empty; add the figures")
    return rows


def _line(layer_map: LayerMap | None, group: str, module: str, kernel: str, taken: dict[LayerLine, int]) -> LayerLine:
    """The map's line for a row: the module's first matching kernel that is not taken yet; otherwise a new line. taken:
    line -> rows that asked for it; the line is added."""
    name = normal_form(kernel)
    for step in layer_map.steps if layer_map else ():
        if step.line[:2] == (group, module) and step.match and step.match.search(name) and step.line not in taken:
            taken[step.line] = 1
            return step.line
    first = line = group, module, kernel
    while line in taken:
        taken[first] += 1
        line = group, module, f"{kernel} ({taken[first]})"
    taken[line] = 1
    return line


def _column(
    path: Path,
    data: dict[str, Any],
    entry: dict[str, Any],
    rows: list[tuple[LayerLine, dict[str, Any]]],
    layer_map: LayerMap | None,
    layers: int,
) -> LayerColumn:
    column = LayerColumn(entry["title"], KIND, data["source"], gpu=entry.get("gpu"), complete=False)
    if entry.get("conditions"):
        column.facts.append(entry["conditions"])
    for line, row in rows:
        column.names[line] = {row["kernel"]} if row.get("kernel") else set()
        value = row.get(entry["id"])
        if value is None:
            continue
        if not _is_time(value):
            where = f"{path}: rows: {'/'.join(line[:2])}: {entry['id']}"
            raise DerbyError(f"{where}: {value!r:.60} is no time in us; mend it")
        column.lines[line] = float(value)
    if not column.lines:
        raise DerbyError(
            f"{path}: rows: column {entry['id']!r} has no number in any row; add some or remove the column"
        )
    compute_sums(column, layer_map, layers)
    printed = [one for one in data.get("printed", ()) if one.get("column") == entry["id"]]
    column.printed = [_printed(path, one, column) for one in printed]
    return column


def _is_time(value: Any) -> TypeGuard[float]:
    """TOML has booleans, nan and inf."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST_US


def _printed(path: Path, entry: dict[str, Any], column: LayerColumn) -> PrintedSum:
    """A printed sum agrees if it equals the computed sum to the last printed digit. This holds for the sum of a group
    only. Sums over all layers and end to end are only compared, since they include unknown work outside the table's
    modules."""
    group, value = entry.get("group"), entry.get("value")
    if not _is_time(value):
        raise DerbyError(f"{path}: printed: value: {value!r:.60} is no time in us; give the printed one")
    if group is None:
        return PrintedSum(entry.get("what", "all layers"), None, value, column.model_us, None, entry.get("layers"))
    if group not in column.groups:
        raise DerbyError(f"{path}: printed: no group {group!r}; there are {', '.join(column.groups)}")
    decimals = len(str(value).partition(".")[2]) if isinstance(value, float) else 0
    computed = column.groups[group]
    return PrintedSum(f"sum of {group}", group, value, computed, abs(computed - value) <= 0.5 * 10**-decimals + 1e-9)
