"""derby show: one operator's contract, solutions and workloads."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli.options import DerbyCommand, origin_option, root_option
from kernelderby.cli.output import Output, output_options

_TABLES = ("workloads", "solutions", "axes", "inputs", "outputs", "tolerances")


@click.command(cls=DerbyCommand)
@click.argument("operator")
@origin_option
@output_options("show", tables=_TABLES, of_set=True)
@root_option
def command(operator: str, origin: tuple[str, ...], root: Path, output: Output) -> None:
    """One operator: axes, inputs, outputs, tolerances with their reasons, solutions, workloads.

    Per workload: sizes, work, traffic, and per GPU with traces the fastest solution and its S = floor / time.
    """
    from kernelderby.api.trace_set import open_set

    output.emit(open_set(root).show(operator, origin=origin))
