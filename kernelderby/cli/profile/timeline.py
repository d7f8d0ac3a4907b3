"""derby profile timeline: a profile as a trace that Perfetto opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kernelderby.cli.options import FILE, DerbyCommand
from kernelderby.cli.profile.common import open_files, selection_options


@click.command(cls=DerbyCommand, short_help="Write a trace for ui.perfetto.dev: streams, roles, libraries, steps.")
@click.argument("file", metavar="FILE", type=FILE)
@click.option(
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="OUT.json[.gz]",
    help="The file to write.",
)
@selection_options
def command(file: Path, out: Path, selection: Any) -> None:
    """Write FILE as a trace that ui.perfetto.dev opens, with tracks for streams, roles, libraries and steps."""
    [opened] = open_files([file], selection)
    count = opened.write_timeline(out)
    click.echo(f"{out}: {count:,} events; open it at https://ui.perfetto.dev")
