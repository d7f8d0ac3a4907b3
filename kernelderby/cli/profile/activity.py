"""derby profile activity: busy and idle time of the GPUs of a profile, or of the ranks of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kernelderby.cli.options import Count, DerbyCommand
from kernelderby.cli.output import Output, output_options
from kernelderby.cli.profile.common import files_argument, open_files, selection_options


@click.command(cls=DerbyCommand)
@files_argument
@click.option("--rows", "most", type=Count(1), default=20, help="Maximum number of rows.")
@selection_options
@output_options("profile activity", tables=("gpus", "ranges", "api", "shapes", "critical", "memory"))
def command(files: tuple[Path, ...], most: int, selection: Any, output: Output) -> None:
    """How each GPU spent its time: busy, idle and why, communication beside computing, launches. NVTX ranges, API calls
    and launch configurations follow.

    FILEs need events. Several FILEs are the ranks of a job: one row each, their spread, the slowest. The uuid
    identifies a GPU, or without a uuid its process and number.
    """
    from kernelderby.profile.activity import activity_of
    from kernelderby.report.profile.activity import activity_answer

    output.emit(activity_answer([activity_of(each.profile) for each in open_files(files, selection)], most))
