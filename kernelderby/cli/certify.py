"""derby certify: keep rows where a change left the machine code as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernelderby.cli.options import DerbyCommand, json_option, written_root_option
from kernelderby.cli.output import say_json, say_line

if TYPE_CHECKING:
    from kernelderby.rows.certified import Certified


@click.command(cls=DerbyCommand)
@click.argument("solutions", nargs=-1, metavar="[SOLUTION]...")
@click.option("--since", default="HEAD", show_default=True, metavar="REVISION", help="The version to compare with.")
@click.option("--check", is_flag=True, help="Write nothing; build both versions of each certificate again and compare.")
@click.option(
    "--host-change",
    metavar="WHY",
    help="If the host code differs: say how, and that kernels, grids and arguments agree. Keeps graph times only.",
)
@click.option(
    "--launches",
    is_flag=True,
    help="If host code or Python differs: compare the launches on recorded workloads. Keeps graph times if they agree.",
)
@written_root_option
@json_option
def command(
    root: Path,
    solutions: tuple[str, ...],
    since: str,
    check: bool,
    host_change: str | None,
    launches: bool,
    as_json: bool,
) -> None:
    """Keep recorded rows after a change that left the machine code as it was.

    The command builds each SOLUTION (default: all whose code changed) before and after the change. It needs nvcc and
    no GPU. If all kernels, the host code that launches them and the Python code are the same, it writes
    certificates/machine_code/<solution>.json, and the old rows count for the new version. Exit code 1 if something
    differs.
    """
    from kernelderby.measure.certify import certify
    from kernelderby.report.certified import certified_lines

    found: Iterable[Certified]
    if check:
        found = certify.check(root, solutions)
    elif launches:
        found = certify.certify_launches(root, solutions, since)
    else:
        found = certify.certify(root, solutions, since, host_change)
    verdicts = []
    for verdict in found:  # of a check as they come
        verdicts.append(verdict)
        for line in () if as_json else certified_lines(verdict):
            say_line(f"{'same   ' if verdict.is_same else 'differs'}  {verdict.solution}: {line}")
    if as_json:
        told = [
            {"solution": each.solution, "is_same": each.is_same, "text": certified_lines(each)} for each in verdicts
        ]
        say_json({"verdicts": told})
    if not verdicts and not as_json:
        say_line("no certificates" if check else f"no CUDA solution's code has changed since {since}")
    if not all(verdict.is_same for verdict in verdicts):
        sys.exit(1)
