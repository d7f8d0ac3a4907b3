"""A layer table as a report: kernels with sums by group and layer, all layers, modules, and unattributed time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelderby.profile.layers.map import LayerLine
from kernelderby.profile.layers.sums import LayerColumn, group_layers
from kernelderby.profile.layers.table import LayerRatio, LayerTable
from kernelderby.report.answer import Answer
from kernelderby.report.frame import Frame, frame
from kernelderby.report.model import Column, Report, Row, Table, TableCell, cell_of, left, right
from kernelderby.report.numbers import factor
from kernelderby.store.counts import counted

PARTIAL = "~"
SMALL = 0.02  # share of a layer; smaller modules are drawn together
SHOWN = 12  # names of unattributed kernels; the rest shares a row


def layers_answer(table: LayerTable) -> Answer[LayerTable]:
    """Frames: kernels, modules, groups (one row per line and column of the table), leftovers."""
    return Answer(
        table,
        table.as_data,
        lambda: [layers_report(table)],
        lambda: _frames(table.as_data()["columns"]),
        draw=lambda path: _draw(table, path),
    )


def _draw(table: LayerTable, path: Path) -> None:
    from kernelderby.report.plot import stacked_bars

    bars, rest = layer_bars(table)
    model = table.layer_map.title if table.layer_map else "one layer"
    stacked_bars(bars, path, title=f"{model}: us a layer, overlapped time once", unit="us", rest=rest)


def _frames(columns: Sequence[dict[str, Any]]) -> tuple[Frame, ...]:
    return tuple(
        frame(
            name,
            ({"column": column["title"], "gpu": column["gpu"]} | row for column in columns for row in column[name]),
        )
        for name in ("kernels", "modules", "groups", "leftovers")
    )


def layers_report(table: LayerTable) -> Report:
    title = table.layer_map.title if table.layer_map else "Layer table"
    tables = [_kernels(table), _modules(table), _model(table)]
    tables += [_inseparable(column) for column in table.columns if column.inseparable]
    tables += [_leftovers(column) for column in table.columns if column.attributed_us is not None]
    notes = [note for column in table.columns for note in (*_checked(column), *column.notes)]
    facts = [_fact(column) for column in table.columns]
    facts += [f"source: {source}" for source in dict.fromkeys(column.source for column in table.columns)]
    return Report(title, tuple(facts), tuple(tables), tuple(dict.fromkeys(notes)))


def layer_bars(table: LayerTable) -> tuple[dict[str, dict[str, float]], list[str]]:
    """For the picture: column -> module -> us, with the small modules of a group joined; and the names of the joined
    ones. A bar is as long as the layer, so overlapped time is subtracted from the longest module of the overlap.
    """
    usual = [module for module in table.modules if _usual(table, module[0])]
    large = {
        module
        for module in usual
        for column in table.columns
        if column.modules.get(module, 0.0) >= SMALL * column.layer_us
    }
    bars: dict[str, dict[str, float]] = {}
    for column in table.columns:
        had, of = table.coverage(column, table.usual())
        parts = bars[column.title if column.complete or had == of else f"{column.title} ({had} of {of})"] = {}
        left = _exposed(table, column)
        for module in usual:
            name = " ".join(module) if module in large else f"other {module[0]}"
            parts[name] = parts.get(name, 0.0) + left.get(module, 0.0)
    rest = [f"other {group}" for group in table.groups]
    return {title: {name: us for name, us in parts.items() if us} for title, parts in bars.items()}, rest


def _exposed(table: LayerTable, column: LayerColumn) -> dict[tuple[str, str], float]:
    overlaps = table.layer_map.overlaps if table.layer_map else ()
    among = {module for parts in overlaps for part in parts for module in part} or set(column.modules)
    left, hidden = dict(column.modules), column.overlapped_us
    for module in sorted(among & set(left), key=lambda module: -left[module]):
        taken = min(hidden, left[module])
        left[module] -= taken
        hidden -= taken
    return left


def _fact(column: LayerColumn) -> str:
    parts = [column.title, column.gpu or "GPU not given", column.form, *column.facts]
    if column.seen:
        parts.append("layers seen " + ", ".join(f"{group} {count}" for group, count in column.seen.items()))
    if column.passes is not None:
        parts.append(f"{column.passes:.4g} forward {'pass' if column.passes == 1 else 'passes'}")
    return " · ".join(parts)


def _kernels(table: LayerTable) -> Table:
    columns, rows = table.columns, list[Row]()
    for group in table.groups:
        lines = table.of((group,))
        for line in lines:
            times = [column.lines.get(line) for column in columns]
            rows.append(_row(table, (*line[:2], _kernel(table, line)), times, [line]))
        sums = [column.groups.get(group) for column in columns]
        rows.append(_row(table, (group, "sum", ""), sums, lines, (group,), counted=True))
    if any(column.overlapped_us > 0 for column in columns):
        hidden = [-column.overlapped_us if column.overlapped_us else None for column in columns]
        rows.append(_row(table, ("layer", "overlapped, counted once", ""), hidden, ()))
    if any(column.inseparable for column in columns):
        shared = [sum(one.layer_us for one in column.inseparable) or None for column in columns]
        rows.append(_row(table, ("layer", "in several groups", ""), shared, ()))
    if len(table.groups) > 1:
        whole = [column.layer_us for column in columns]
        rows.append(_row(table, ("layer", "sum", ""), whole, table.usual(), "layer", counted=True))
    headings = (
        *left("group", "module", "kernel"),
        *right(*(f"{column.title} us" for column in columns), *_ratio_titles(table)),
    )
    return Table("One layer: group, module, kernel (us)", headings, rows, _caption(table), key_columns=3)


def _ratio_titles(table: LayerTable) -> list[str]:
    return [f"{column.title} / {table.columns[0].title}" for column in table.columns[1:]]


def _kernel(table: LayerTable, line: tuple[str, str, str]) -> str:
    """The kernel's name if all columns have the same one, otherwise its label in the map."""
    names = set().union(*(column.names.get(line, set()) for column in table.columns))
    return names.pop() if len(names) == 1 else line[2]


def _row(
    table: LayerTable,
    keys: tuple[str, ...],
    times: Sequence[float | None],
    lines: Sequence[LayerLine],
    total: str | tuple[str, ...] | None = None,
    *,
    counted: bool = False,
) -> Row:
    cells: list[TableCell | None] = []
    for column, time in zip(table.columns, times, strict=True):
        is_told = time is not None and (time or not counted)
        cells.append(_time(table, column, lines if counted else (), f"{time:.1f}") if is_told else None)
    return (*keys, *cells, *(_against(table.compare(column, lines, total)) for column in table.columns[1:]))


def _time(table: LayerTable, column: LayerColumn, lines: Sequence[LayerLine], text: str) -> TableCell:
    """The time, with the number of its kernels if some have no time."""
    had, of = table.coverage(column, lines)
    if lines and not column.complete and had < of:
        return TableCell(f"{text} ({had} of {of})", "muted")
    return TableCell(text)


def _against(comparison: LayerRatio | None) -> TableCell | None:
    if comparison is None:
        return None
    mark = f" {PARTIAL}" if comparison.is_partial else ""
    return TableCell(factor(comparison.ratio) + mark, "muted" if mark else "")


def _caption(table: LayerTable) -> str:
    parts = []
    if any(
        not column.complete and len(column.lines) < table.coverage(column, table.lines)[1] for column in table.columns
    ):
        parts.append("(n of m): the source has a time for n of the m kernels")
    if len(table.columns) > 1:
        parts.append(f"ratios: below 1 is faster than {table.columns[0].title}; {PARTIAL} over the kernels both have")
    if any(column.overlapped_us > 0 for column in table.columns):
        parts.append("overlapped: ran beside other modules, so the layer is shorter than the sum of its groups")
    return "; ".join(parts)


def _modules(table: LayerTable) -> Table:
    rows = []
    for module in table.modules:
        cells: list[TableCell | str | None] = [*module]
        for column in table.columns:
            time = column.modules.get(module)
            whole = column.complete or len(column.lines) == table.coverage(column, table.lines)[1]
            known = time is not None and whole and column.layer_us and _usual(table, module[0])
            share = f"{(time or 0.0) / column.layer_us:.1%}" if known else None
            cells += [cell_of(time, "{:.1f}".format), share]
        cells += [_against(table.compare(column, table.of(module), module)) for column in table.columns[1:]]
        rows.append(cells)
    titles = [f"{column.title} {what}" for column in table.columns for what in ("us", "of layer")]
    headings = (*left("group", "module"), *right(*titles, *_ratio_titles(table)))
    caption = "of layer: overlapped modules count in full here, so shares may add up to more than 100 %"
    return Table("Modules of a layer", headings, rows, caption, key_columns=2)


def _usual(table: LayerTable, group: str) -> bool:
    return table.layer_map is None or table.layer_map.usual(group)


def _model(table: LayerTable) -> Table:
    """All layers of one forward pass, and the source's figures for the whole, in ms."""
    columns, rows = table.columns, list[Row]()
    for group in table.groups:
        layers = group_layers(table.layer_map, group, table.layers)
        times = [_of_pass(column, group, layers) for column in columns]
        rows.append(_milliseconds(table, f"{group}, {counted(layers, 'layer')}", times, table.of((group,))))
    whole = f"{counted(table.layers, 'layer')}, overlap counted once"
    rows.append(_milliseconds(table, whole, [column.model_us for column in columns], table.lines))
    for what in dict.fromkeys(one.what for column in columns for one in column.printed if one.group is None):
        printed = [next((one for one in column.printed if one.what == what), None) for column in columns]
        rows.append(_milliseconds(table, f"printed: {what}", [one.printed_us if one else None for one in printed]))
        covered = (
            f"{one.computed_us / one.printed_us:.1%}" if one and one.computed_us is not None else None
            for one in printed
        )
        rows.append((f"modules' share of {what}", *covered))
    if any(column.passes for column in columns):
        for what, times in (
            ("unattributed", [column.unattributed_us for column in columns]),
            ("idle", list(map(_idle, columns))),
            ("wall span", [column.wall_us for column in columns]),
        ):
            each_pass = [
                time / column.passes if time is not None and column.passes else None
                for column, time in zip(columns, times, strict=True)
            ]
            rows.append(_milliseconds(table, what, each_pass))
    headings = (Column("one forward pass", "left"), *right(*(f"{column.title} ms" for column in columns)))
    return Table("All layers", headings, rows, "layers: how many of the model's layers have the group")


def _of_pass(column: LayerColumn, group: str, layers: int) -> float | None:
    time = column.groups.get(group)
    if time is None:
        return None
    return time * (column.seen[group] / column.passes if column.passes else layers)


def _idle(column: LayerColumn) -> float | None:
    return None if column.wall_us is None or column.busy_us is None else max(0.0, column.wall_us - column.busy_us)


def _milliseconds(table: LayerTable, what: str, times: Sequence[float | None], lines: Sequence[LayerLine] = ()) -> Row:
    cells = (
        None if time is None else _time(table, column, lines, f"{time / 1e3:.2f}")
        for column, time in zip(table.columns, times, strict=True)
    )
    return (what, *cells)


def _inseparable(column: LayerColumn) -> Table:
    rows = (
        (one.name, ", ".join("/".join(module) for module in one.modules), one.instances, f"{one.layer_us:.1f}")
        for one in column.inseparable
    )
    headings = (*left("kernel", "may be"), *right("instances", "us a layer"))
    return Table(f"{column.title}: kernels of several groups, not separable without events", headings, rows)


def _leftovers(column: LayerColumn) -> Table:
    busy = column.busy_us or 1.0

    def row(name: str, instances: int | None, total: float, inside: float | None) -> Row:
        return (
            name,
            instances,
            f"{total / 1e3:.3f}",
            f"{total / busy:.1%}",
            None if inside is None else f"{inside / 1e3:.3f}",
        )

    shown, rest = column.leftovers[:SHOWN], column.leftovers[SHOWN:]
    rows = [row(one.name, one.instances, one.total_us, one.inside_us) for one in shown]
    if rest:
        inside = None if rest[0].inside_us is None else sum(one.inside_us or 0.0 for one in rest)
        instances, total = sum(one.instances for one in rest), sum(one.total_us for one in rest)
        rows.append(row(f"{len(rest)} more", instances, total, inside))
    everything = column.attributed_us, column.unattributed_us, column.busy_us
    for name, time in zip(("attributed to layers", "unattributed", "all GPU work"), everything, strict=True):
        rows.append(row(name, None, time or 0.0, None))
    headings = (Column("kernel", "left"), *right("instances", "total ms", "of GPU work", "inside layers ms"))
    caption = "inside layers: between two kernels of one layer; work beside other work counts once in the last rows"
    return Table(f"{column.title}: unattributed", headings, rows, caption)


def _checked(column: LayerColumn) -> list[str]:
    """A document's printed sums against ours."""
    notes = []
    for one in column.printed:
        if one.group is not None:
            verdict = "agrees" if one.agrees else "the document's arithmetic is off"
            notes.append(
                f"{column.title}: {one.what}: printed {one.printed_us:g}, rows add up to {one.computed_us:g}: {verdict}"
            )
        elif one.layers:
            each = one.printed_us / one.layers
            notes.append(
                f"{column.title}: {one.what}: printed {one.printed_us / 1e3:g} ms, {each:.1f} us a layer; "
                f"the modules of a layer take {column.layer_us:g}"
            )
    return notes
