"""derby profile layers: a served model's layers, group by group, module by module."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli.profile.common import Output, files_argument, output_options


@click.command(short_help="A served model's layers: group, module, kernel; several profiles side by side.")
@files_argument
@click.option("--map", "map_name", metavar="NAME|FILE",
              help="Layer map: a shipped one (deepseek_decode) or a .toml (default: a module table's own).")
@output_options("layers")
def command(files: tuple[Path, ...], map_name: str | None, output: Output) -> None:
    """Where a model's layer spends its time: layer group, module, kernel; a column per FILE, ratios over the first.

    FILEs are profiles, which need --map, or module tables (profiles/*.toml). With events a kernel belongs to a module
    by NVTX range or by name and place in the layer; with sums only by name. Overlapped time counts once.
    """
    from kernelderby.profile.layers.table import layer_table
    from kernelderby.report.profile.layers import layers_report

    table = layer_table(files, map_name)
    output.emit([layers_report(table)], table.as_data(), draw=lambda path: _draw(table, path))


def _draw(table, path: Path) -> None:
    from kernelderby.report.plot import stacked_bars
    from kernelderby.report.profile.layers import layer_bars

    bars, rest = layer_bars(table)
    model = table.layer_map.title if table.layer_map else "one layer"
    stacked_bars(bars, path, title=f"{model}: us a layer, overlapped time once", unit="us", rest=rest)
