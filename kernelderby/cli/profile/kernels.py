"""derby profile kernels: every kernel of a profile with its library, role and architecture, and findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kernelderby.cli.options import Count, DerbyCommand
from kernelderby.cli.output import Output, output_options
from kernelderby.cli.profile.common import files_argument, open_files, selection_options

TOP = 30  # kernels that get a row; a served model has 50 to 200, of which the last hundred are 1 % of the time
_TABLES = ("kernels", "memory", "library", "role", "dtype", "architecture", "ranks", "findings")


@click.command(cls=DerbyCommand)
@files_argument
@click.option("--gpu", metavar="NAME|ID", help='The GPU, such as "NVIDIA H200" or h200 (default: as the profile says).')
@click.option(
    "--top",
    type=Count(1),
    metavar="N",
    help=f"Rows for the N largest kernels, the rest summed (default: {TOP}; all in CSV and JSON).",
)
@selection_options
@output_options("profile kernels", tables=_TABLES, plot=True)
def command(files: tuple[Path, ...], gpu: str | None, top: int | None, selection: Any, output: Output) -> None:
    """Where the kernel time of a profile goes, and what to do about it.

    Each kernel has library, source file, role, element type and the architecture that its name shows. Totals by each
    follow, then findings with numbers. A name that no rule knows counts as `unknown`. Several FILEs are the ranks of a
    job; a table that compares them comes first.
    """
    from kernelderby.api.arguments import known_gpu
    from kernelderby.hardware import find_gpu
    from kernelderby.hardware.families import amd_architecture_of, compute_capability_of
    from kernelderby.report.profile.kernels import kernels_answer

    name = None
    if gpu:  # any name that tells an architecture will do here, as no peak is needed
        tells = compute_capability_of(gpu) or amd_architecture_of(gpu)
        name = gpu if tells and find_gpu(gpu) is None else known_gpu(gpu).names[0]
    found = [recording.kernel_table(name) for recording in open_files(files, selection)]
    output.emit(kernels_answer(found, top or TOP, top or 20))
