"""derby profile counters: ncu's counters of each kernel, by the unit of the GPU."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli.options import DerbyCommand
from kernelderby.cli.output import Output, output_options
from kernelderby.cli.profile.common import files_argument


@click.command(cls=DerbyCommand)
@files_argument
@output_options("profile counters", tables=("kernels", "stalls"))
def command(files: tuple[Path, ...], output: Output) -> None:
    """Which unit of the GPU each kernel fills: tensor cores, issue slots, L2, DRAM, as shares of peak.

    FILEs are the output of `derby profile run --with ncu`, `ncu --csv` or `ncu --csv --page raw`.
    """
    from kernelderby.api.profile_file import counters

    output.emit(counters(*files))
