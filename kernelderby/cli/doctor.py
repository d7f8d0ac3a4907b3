"""derby doctor: the solutions that this machine can run, and what the others lack."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kernelderby.cli.options import DerbyCommand, root_option
from kernelderby.cli.output import Output, output_options, say_line


@click.command(cls=DerbyCommand)
@click.option("--has-gpu", is_flag=True, help="Print the GPU that derby measures on; exit code 1 without one.")
@output_options("doctor", tables=("solutions", "libraries"))
@root_option
def command(has_gpu: bool, root: Path, output: Output) -> None:
    """Which solutions this machine can run, and what the others lack."""
    from kernelderby.api.machine import doctor, gpu_here

    if has_gpu:
        name, missing = gpu_here(root)
        say_line(name or missing)
        sys.exit(0 if name else 1)
    output.emit(doctor(root))
