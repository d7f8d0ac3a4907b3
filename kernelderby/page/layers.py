"""A served model's layer on a time line: modules one after another, overlapping ones side by side."""

from __future__ import annotations

from pathlib import Path

from kernelderby.page.model.recordings import ShownLayerColumn, ShownLayerRow, ShownLayers, ShownModule
from kernelderby.page.text import rounded, words
from kernelderby.profile.layers.sums import LayerColumn
from kernelderby.profile.layers.table import LayerTable, layer_table
from kernelderby.report.profile.layers import layers_report


def shown_layers(path: Path, source: str) -> ShownLayers:
    """The layers of a published or recorded module table. DerbyError if it cannot be read."""
    table = layer_table([path])
    return ShownLayers(
        words(table.layer_map.title if table.layer_map else path.stem),
        words(source),
        tuple(_column(table, column) for column in table.columns),
        tuple(row for group in table.groups for row in _rows(table, group)),
        layers_report(table).notes,
    )


def _column(table: LayerTable, column: LayerColumn) -> ShownLayerColumn:
    had, of = table.coverage(column, table.usual())
    return ShownLayerColumn(
        words(column.title),
        words(column.gpu or "GPU not given"),
        tuple(map(words, column.facts)),
        had,
        of,
        rounded(column.layer_us),
        rounded(column.overlapped_us),
        tuple(_placed(table, column)),
    )


def _placed(table: LayerTable, column: LayerColumn) -> list[ShownModule]:
    """The modules of the usual layer in order of launch. Of an overlap the longest part is on lane 0; the others begin
    at the same time on lane 1. So the line is as long as the layer."""
    beside: dict[tuple[str, str], tuple[str, str]] = {}
    for parts in table.layer_map.overlaps if table.layer_map else ():
        present = [
            [module for module in table.modules if module in part and module in column.modules] for part in parts
        ]
        present = [part for part in present if part]
        longest = max(present, key=lambda part: sum(column.modules[module] for module in part), default=[])
        for part in present:
            beside |= {module: longest[0] for module in part if part is not longest}
    usual = {line[0] for line in table.usual()}
    cursor, starts, found = 0.0, dict[tuple[str, str], float](), []
    for module in table.modules:
        if module in column.modules and module[0] in usual and module not in beside:
            starts[module] = cursor
            found.append(_module(module, column, cursor, 0))
            cursor += column.modules[module]
    taken = dict[tuple[str, str], float]()
    for module, longest_first in beside.items():
        if module[0] in usual and longest_first in starts:
            start = taken.get(longest_first, starts[longest_first])
            found.append(_module(module, column, start, 1))
            taken[longest_first] = start + column.modules[module]
    return found


def _module(module: tuple[str, str], column: LayerColumn, start: float, lane: int) -> ShownModule:
    return ShownModule(words(module[0]), words(module[1]), rounded(column.modules[module]), rounded(start), lane)


def _rows(table: LayerTable, group: str) -> list[ShownLayerRow]:
    """The group, then its modules, each followed by its kernels."""
    rows = [_row(table, (group,), [column.groups.get(group) for column in table.columns])]
    for module in table.modules:
        if module[0] == group:
            rows.append(_row(table, module, [column.modules.get(module) for column in table.columns]))
            rows += [
                _row(table, line, [column.lines.get(line) for column in table.columns]) for line in table.of(module)
            ]
    return rows


def _row(table: LayerTable, place: tuple[str, ...], times: list[float | None]) -> ShownLayerRow:
    """place: (group,), (group, module), or a kernel's line."""
    total = place if len(place) < 3 else None
    ratios = [None, *(table.compare(column, table.of(place), total) for column in table.columns[1:])]
    group, module, kernel = (*map(words, place), "", "")[:3]
    return ShownLayerRow(
        *(group, module, kernel),
        tuple(map(rounded, times)),
        tuple((rounded(each.ratio), each.shared, each.of) if each else None for each in ratios),
    )
