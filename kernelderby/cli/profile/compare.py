"""derby profile compare: two profiles, before and after or GPU against GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kernelderby.cli.options import FILE, Count, DerbyCommand, root_option
from kernelderby.cli.output import Output, output_options
from kernelderby.cli.profile.common import open_files, pipelines, selection_options


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
@click.option("--rows", "most", type=Count(1), default=40, help="Maximum number of rows.")
@click.option("--kind", metavar="WORD", help="Show kernels of this kind of step, such as decode.")
@click.option(
    "--within", metavar="REGEX", help="NVTX ranges that mark one step each, or with --solution one invocation."
)
@selection_options
@output_options("profile compare", tables=("changes", "steps"), plot=True)
@root_option
def command(
    before: Path,
    after: Path,
    solution: str | None,
    solution_b: str | None,
    most: int,
    kind: str | None,
    within: str | None,
    selection: Any,
    root: Path,
    output: Output,
) -> None:
    """What changed from profile A to profile B: steps first, then kernels, the largest change first.

    Steps are found by the annotations of vLLM, SGLang and torch.profiler, by --within, or by their period. --solution
    compares stages and invocations instead. A verdict needs a statistical test.
    """
    from kernelderby.errors import DerbyError
    from kernelderby.profile.compare.kernels import compare_kernels
    from kernelderby.profile.compare.stages import compare_stages
    from kernelderby.report.profile.compare import compare_answer

    if solution_b and not solution:
        raise DerbyError("--solution-b: goes with --solution; add it")
    if kind and solution:
        raise DerbyError("--kind: of steps, which --solution does not compare; leave one out")
    if solution:
        [left] = pipelines([before], root, solution, within, selection)
        [right] = pipelines([after], root, solution_b or solution, within, selection)
        found = compare_stages(left, right)
    else:
        left, right = (each.profile for each in open_files([before, after], selection))
        found = compare_kernels(left, right, within, kind)
    output.emit(compare_answer(found, most))
