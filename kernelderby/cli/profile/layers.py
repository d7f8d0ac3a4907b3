"""derby profile layers: a served model's layers, group by group, module by module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kernelderby.cli.options import DerbyCommand
from kernelderby.cli.output import Output, output_options
from kernelderby.cli.profile.common import draft_option, files_argument, open_files, selection_options, write_draft


@click.command(cls=DerbyCommand)
@files_argument
@click.option(
    "--map",
    "map_name",
    metavar="NAME|FILE",
    help="Layer map: a shipped one (deepseek_decode) or a .toml (default: a module table's own).",
)
@draft_option(help="Write the layer map that the first FILE's period gives, to correct, and use it.")
@selection_options
@output_options("profile layers", tables=("kernels", "modules", "groups", "leftovers"), plot=True)
def command(files: tuple[Path, ...], map_name: str | None, draft: Path | None, selection: Any, output: Output) -> None:
    """Where a model's layer spends its time: layer group, module, kernel. Each FILE is a column; ratios are over the
    first.

    FILEs are profiles or module tables (profiles/*.toml). Without --map, the layer's period finds the layer. An NVTX
    range or a kernel's name and place in the layer decide its module; in a file of sums the name alone does. Prefill
    and decode have columns of their own if annotations tell them apart. Overlapped time counts once.
    """
    from kernelderby.api.profile_file import layers
    from kernelderby.errors import DerbyError

    if draft and map_name:
        raise DerbyError("--draft: writes a map, and --map gives one; leave one of them out")
    if draft:
        write_draft(draft, open_files(files[:1], selection)[0].draft().text())
        map_name = str(draft)
    output.emit(layers(*files, layer_map=map_name, selection=selection))
