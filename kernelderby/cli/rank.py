"""derby rank: which solution is fastest on one GPU, from recorded traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelderby.cli.options import (
    DerbyCommand,
    definitions_option,
    gpu_option,
    origin_option,
    root_option,
    solutions_option,
    workloads_option,
)
from kernelderby.cli.output import Output, output_options, warn
from kernelderby.errors import DerbyError

if TYPE_CHECKING:
    from kernelderby.report.answer import Answer


@click.command(cls=DerbyCommand)
@click.argument("operators", metavar="[OPERATOR]...", nargs=-1)
@definitions_option
@solutions_option
@workloads_option
@origin_option
@gpu_option
@click.option("--protocol", metavar="P", help="How the rows were timed (default: the newest protocol).")
@click.option(
    "--time",
    type=click.Choice(["graph", "eager", "busy"]),
    help="The time to compare (default: graph if all but plain torch have it on most workloads, else eager).",
)
@click.option(
    "--shape", "at", metavar="AXIS=N,...", help="One shape of OPERATOR: what is measured of it, or nearest to it."
)
@click.option("--shapes", is_flag=True, help="Every shape of all operators.")
@click.option("--baseline", metavar="SOLUTION", help="The solution that ratios divide by (default: the best).")
@click.option(
    "--importance",
    is_flag=True,
    help="Authors over all operators at once, each operator weighted by its importance in production.",
)
@click.option(
    "--summary",
    type=click.Choice(["sentence", "operators"]),
    help="One author against the best library on every shape: one sentence per GPU, or one row per operator.",
)
@click.option("--author", metavar="A", help="With --summary: the author (default: fastest on the most shapes).")
@output_options(
    "rank", tables=("solutions", "workloads", "pairs", "authors", "operators", "leads"), plot=True, of_set=True
)
@root_option
def command(
    operators: tuple[str, ...],
    definitions: tuple[str, ...],
    solutions: tuple[str, ...],
    workloads: tuple[str, ...],
    origin: tuple[str, ...],
    gpu: str | None,
    protocol: str | None,
    time: str | None,
    at: str | None,
    shapes: bool,
    baseline: str | None,
    importance: bool,
    summary: str | None,
    author: str | None,
    root: Path,
    output: Output,
) -> None:
    """Compare solutions on ONE GPU, measured in ONE way, from recorded traces. Needs no GPU and no torch.

    Without OPERATOR: one row per operator. With OPERATOR (or --definitions, which is the same): all its shapes.

    Per workload: latency, ratio with its 95 % interval, win. Over workloads: geomean, total time, win rate, coverage,
    share of the floor reached (S). Missing and failed rows lower the coverage and stay in the table.
    Where an operator has workloads of several origins, each origin is ranked by itself.

    \b
    derby rank rms_norm --shape num_tokens=64,hidden_size=4096

    With --summary: how many times as fast as the best library an author is, over all operators.
    With --importance: per author, S over all operators, each weighted by its share of the GPU time in production.
    """
    from kernelderby.api.trace_set import open_set

    definitions = tuple(dict.fromkeys((*operators, *definitions)))
    found = open_set(root)
    for name in operators:
        if name not in found.definitions and (name in found.solutions or name in found.catalog.aliases):
            raise DerbyError(f"{name} is a solution, not an operator; write --solutions {','.join((*solutions, name))}")
    if at is not None:
        if len(definitions) != 1 or workloads or summary or importance:
            raise click.UsageError("--shape goes with one OPERATOR, without --workloads, --summary and --importance")
        near = found.nearest(definitions[0], at)
        warn([str(near)])
        workloads = near.uuids
    if author is not None and summary is None:
        raise click.UsageError("--author goes with --summary")
    if summary is not None:
        if importance or solutions or workloads or baseline or shapes or time == "busy":
            raise click.UsageError(
                "--summary compares all solutions by graph or eager times; leave out --importance, --solutions, "
                "--workloads, --baseline, --shapes and --time busy"
            )
        answer: Answer[Any] = found.leads(
            definitions,
            author=author,
            origin=origin,
            gpu=gpu,
            protocol=protocol,
            time=time,
            by_operator=summary == "operators",
        )
    elif not importance:
        answer = found.rank(
            definitions,
            solutions,
            workloads,
            origin=origin,
            gpu=gpu,
            protocol=protocol,
            time=time,
            baseline=baseline,
            by_shape=True if shapes else None,
        )
    elif definitions or workloads or baseline:
        raise click.UsageError(
            "--importance ranks over all operators; leave out --definitions, --workloads and --baseline"
        )
    else:
        answer = found.rank_by_importance(solutions, origin=origin, gpu=gpu, protocol=protocol, time=time)
    if output.plot is not None and (summary is not None or importance):
        raise click.UsageError("--plot draws a race; leave out --summary and --importance")
    output.emit(answer)
