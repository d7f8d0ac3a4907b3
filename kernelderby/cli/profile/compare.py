"""derby profile compare: two profiles, before and after or GPU against GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kernelderby.cli.options import FILE, DerbyCommand, count_from, root_option
from kernelderby.cli.output import Output, output_options
from kernelderby.cli.profile.common import open_files, pipelines, selection_options, short_names, within_option


@click.command(cls=DerbyCommand, short_help="Two profiles, before and after or GPU against GPU.")
@click.argument("before", metavar="A", type=FILE)
@click.argument("after", metavar="B", type=FILE)
@click.option(
    "--solution",
    "--solutions",
    "solution",
    metavar="NAME",
    help="Align by its stages, per invocation (default: by kernel).",
)
@click.option("--solution-b", metavar="NAME", help="Solution of B, if it differs.")
@click.option("--rows", "most", type=count_from(1), default=40, show_default=True, help="Maximum number of rows.")
@within_option
@selection_options
@output_options("profile compare", tables=("changes",), plot=True)
@root_option
def command(
    before: Path,
    after: Path,
    solution: str | None,
    solution_b: str | None,
    most: int,
    within: str | None,
    selection: Any,
    root: Path,
    output: Output,
) -> None:
    """What changed from profile A to profile B: appeared, vanished, sped up, slowed down; largest change first.

    With --solution by stage and per invocation, so that runs of different length compare; otherwise by kernel.
    """
    from kernelderby.errors import DerbyError
    from kernelderby.profile.compare import compare_kernels, compare_stages
    from kernelderby.report.profile.compare import compare_answer

    if solution_b and not solution:
        raise DerbyError("--solution-b: goes with --solution; add it")
    if solution:
        [left] = pipelines([before], root, solution, within, selection)
        [right] = pipelines([after], root, solution_b or solution, within, selection)
        found = compare_stages(left, right)
    else:
        found = compare_kernels(*(each.profile for each in open_files([before, after], selection)))
    output.emit(compare_answer(found, most), draw=lambda path: _draw(found, most, path))


def _draw(found: Any, most: int, path: Path) -> None:
    from kernelderby.report.plot import differences

    names = short_names([found.before, found.after])
    per_invocation = found.unit == "invocation"
    scale = 1e3 if per_invocation else 1e6
    changes = {change.name: change.change_ns / scale for change in found.changes[: min(most, 25)]}
    differences(
        changes,
        path,
        unit="us an invocation" if per_invocation else "ms",
        title=f"Change from {names[0]} to {names[1]}",
    )
