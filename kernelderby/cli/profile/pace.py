"""derby profile pace: the repetitions of a range one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kernelderby.cli.options import Count, DerbyCommand
from kernelderby.cli.output import Output, output_options
from kernelderby.cli.profile.common import files_argument, open_files, selection_options, within_option


@click.command(cls=DerbyCommand)
@files_argument
@click.option("--rows", "most", type=Count(1), default=40, help="Maximum number of rows.")
@within_option
@selection_options
@output_options("profile pace", tables=("repetitions",))
def command(files: tuple[Path, ...], within: str | None, most: int, selection: Any, output: Output) -> None:
    """How long each repetition of a range took on the host and on the GPU, and which are outliers."""
    from kernelderby.profile.pace import pace_of
    from kernelderby.profile.stages.walk import INVOCATION
    from kernelderby.report.profile.pace import pace_answer

    expression = within or INVOCATION
    output.emit(pace_answer([pace_of(each.profile, expression) for each in open_files(files, selection)], most))
