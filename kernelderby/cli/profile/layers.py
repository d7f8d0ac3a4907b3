"""derby profile layers: a served model's layers, group by group, module by module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kernelderby.cli.options import DerbyCommand
from kernelderby.cli.output import Output, output_options
from kernelderby.cli.profile.common import files_argument


@click.command(cls=DerbyCommand)
@files_argument
@click.option(
    "--map",
    "map_name",
    metavar="NAME|FILE",
    help="Layer map: a shipped one (deepseek_decode) or a .toml (default: a module table's own).",
)
@output_options("profile layers", tables=("kernels", "modules", "groups", "leftovers"), plot=True)
def command(files: tuple[Path, ...], map_name: str | None, output: Output) -> None:
    """Where a model's layer spends its time: layer group, module, kernel; a column per FILE, ratios over the first.

    FILEs are profiles, which need --map, or module tables (profiles/*.toml). With events a kernel belongs to a module
    by NVTX range or by name and place in the layer; with sums only by name. Overlapped time counts once.
    """
    from kernelderby.api.profile_file import layers

    answer = layers(*files, layer_map=map_name)
    output.emit(answer, draw=lambda path: _draw(answer.value, path))


def _draw(table: Any, path: Path) -> None:
    from kernelderby.report.plot import stacked_bars
    from kernelderby.report.profile.layers import layer_bars

    bars, rest = layer_bars(table)
    model = table.layer_map.title if table.layer_map else "one layer"
    stacked_bars(bars, path, title=f"{model}: us a layer, overlapped time once", unit="us", rest=rest)
