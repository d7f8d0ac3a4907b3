"""derby doctor: what this machine can run, and why not the rest."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli.options import DerbyCommand, root_option
from kernelderby.cli.output import Output, output_options


@click.command(cls=DerbyCommand)
@output_options("doctor", tables=("solutions", "libraries"))
@root_option
def command(root: Path, output: Output) -> None:
    """What this machine can run, and why not the rest."""
    from kernelderby.api.machine import doctor

    output.emit(doctor(root))
