"""derby check: are the solutions right?"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kernelderby.cli.options import (
    SECONDS,
    DerbyCommand,
    check_names,
    count_from,
    definitions_option,
    fresh_option,
    origin_option,
    root_option,
    secret_option,
    solutions_option,
    workloads_option,
)
from kernelderby.cli.output import Output, output_options


@click.command(cls=DerbyCommand)
@click.argument("names", metavar="[SOLUTION|OPERATOR]...", nargs=-1)
@solutions_option
@definitions_option
@workloads_option
@origin_option
@click.option("--seeds", type=count_from(1), default=1, show_default=True, help="Input draws for each case.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), help="Default: the GPU where there is one.")
@click.option("--timeout", type=SECONDS, default=600, show_default=True, help="Seconds for each case of a solution.")
@click.option("--quick", is_flag=True, help="On a CPU: only the first case of each operator.")
@click.option("--details", is_flag=True, help="Every case, also of more than three operators.")
@fresh_option
@secret_option
@output_options("check", tables=("cases",))
@root_option
def command(
    names: tuple[str, ...],
    solutions: tuple[str, ...],
    definitions: tuple[str, ...],
    workloads: tuple[str, ...],
    origin: tuple[str, ...],
    seeds: int,
    device: str | None,
    timeout: float,
    quick: bool,
    details: bool,
    fresh: int,
    secret: str,
    root: Path,
    output: Output,
) -> None:
    """Correctness of solutions (default: all; SOLUTION is the same as --solutions): on a GPU at full shapes, on a CPU
    at small ones, Triton in its interpreter. --workloads and --origin are for a GPU only.

    Exit code 1 if a solution fails, if a named solution is skipped, if an operator's own code fails, or if
    nothing was checked. --fresh takes shapes that no file holds. A failing check prints the secret of its inputs;
    --secret draws them again.
    """
    from kernelderby.api.machine import check
    from kernelderby.catalog import Catalog
    from kernelderby.measure.run.progress import bar
    from kernelderby.report.plain import plain

    catalog = Catalog.open(root)
    definitions = (*definitions, *(name for name in names if name in catalog.definitions))
    solutions = tuple(dict.fromkeys((*(name for name in names if name not in catalog.definitions), *solutions)))
    check_names(catalog, solutions, definitions)
    planned = check(
        *(catalog, solutions, definitions, workloads, origin),
        seeds=seeds,
        device=device,
        timeout=timeout,
        fresh=fresh,
        secret=secret,
        quick=quick,
    )
    with bar("checking", planned.steps, quiet=output.is_json) as advance:
        answer = planned.run(
            lambda result: advance(plain(f"{result.solution} on {result.case}: {result.status}")), details or None
        )
    output.emit(answer)
    if not planned.has_passed(answer, solutions):
        sys.exit(1)
