"""derby profile kernels: every kernel of a profile with its library, role and architecture, and what that tells."""

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

    For every kernel: library, source file, role, element type and the architecture that its name shows; totals by
    each; findings with their numbers. A name that no rule knows stays `unknown` and is counted. With several FILEs
    (the ranks of a job) a table that compares them comes first.
    """
    from kernelderby.api.asked import known_gpu
    from kernelderby.hardware import find_gpu
    from kernelderby.hardware.families import amd_architecture_of, compute_capability_of
    from kernelderby.report.profile.kernels import kernels_answer

    name = None
    if gpu:  # any name that tells an architecture will do here, as no peak is needed
        tells = compute_capability_of(gpu) or amd_architecture_of(gpu)
        name = gpu if tells and find_gpu(gpu) is None else known_gpu(gpu).names[0]
    found = [recording.kernel_table(name) for recording in open_files(files, selection)]
    output.emit(kernels_answer(found, top or TOP), draw=lambda path: _draw([each.table for each in found], path, top))


def _draw(tables: list[Any], path: Path, top: int | None) -> None:
    """Bars of one profile's kernels; of several, stacked roles."""
    from kernelderby.report import plot

    if len(tables) > 1:
        roles = {table.path.name: {total.key: total.total_ns / 1e6 for total in table.by_role} for table in tables}
        plot.stacked_bars(roles, path, title="Kernel time by role", unit="ms", as_share=True, rest=("unknown",))
        return
    table = tables[0]
    first, rest = table.top(top or 20)
    values = {row.short_name: row.total_ns / 1e6 for row in first}
    groups = {row.short_name: row.library for row in first}
    if rest:
        values[rest.key] = rest.total_ns / 1e6
        groups[rest.key] = "the rest"
    plot.bars(values, path, title=f"Kernels of {table.path.name}", unit="ms", total=table.total_ns / 1e6, groups=groups)
