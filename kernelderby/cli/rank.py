"""derby rank: which solution is fastest on one GPU, from recorded traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernelderby.cli import options
from kernelderby.cli.output import Output, output_options, warn
from kernelderby.errors import DerbyError

if TYPE_CHECKING:
    from kernelderby.report.answer import Answer


@click.command(cls=options.DerbyCommand)
@click.argument("operators", metavar="[OPERATOR]...", nargs=-1)
@options.definitions_option
@options.solutions_option
@options.workloads_option
@options.origin_option
@options.gpu_option
@click.option("--protocol", metavar="P", help="How the rows were timed (default: the newest protocol).")
@click.option(
    "--time",
    type=click.Choice(["graph", "eager", "busy"]),
    help="The time to compare (default: graph if most workloads have it, else eager).",
)
@click.option(
    "--shape", "at", metavar="AXIS=N,...", help="One shape of OPERATOR: its rows, or those of the nearest shape."
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
@options.root_option
def command(
    operators: tuple[str, ...],
    definitions: tuple[str, ...],
    solutions: tuple[str, ...],
    workloads: tuple[str, ...],
    at: str | None,
    shapes: bool,
    baseline: str | None,
    importance: bool,
    summary: str | None,
    author: str | None,
    root: Path,
    output: Output,
    **asked: Any,
) -> None:
    """Compare solutions on ONE GPU, measured in ONE way, from recorded rows. Needs no GPU and no torch.

    Without OPERATOR: one row per operator. With OPERATOR (or --definitions): all its shapes.

    Each workload has latency, ratio with its 95 % interval, and winner. Over the workloads there are geomean, total
    time, win rate, coverage and S, the share of the hardware's limit. Missing and failed rows lower the coverage and
    stay in the table. Each origin of workloads is ranked by itself.

    \b
    derby rank rms_norm --shape num_tokens=64,hidden_size=4096

    --summary tells how many times as fast as the best library an author is, over all operators. --importance gives
    each author's S over all operators, weighted by their share of the GPU time in production.
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
        if importance or solutions or workloads or baseline or shapes or asked["time"] == "busy":
            raise click.UsageError(
                "--summary compares all solutions by graph or eager times; leave out --importance, --solutions, "
                "--workloads, --baseline, --shapes and --time busy"
            )
        answer: Answer[Any] = found.leads(definitions, author=author, by_operator=summary == "operators", **asked)
    elif not importance:
        asked |= {"baseline": baseline, "by_shape": True if shapes else None}
        answer = found.rank(definitions, solutions, workloads, **asked)
    elif definitions or workloads or baseline:
        raise click.UsageError(
            "--importance ranks over all operators; leave out --definitions, --workloads and --baseline"
        )
    else:
        answer = found.rank_by_importance(solutions, **asked)
    if output.plot is not None and (summary is not None or importance):
        raise click.UsageError("--plot draws a race; leave out --summary and --importance")
    output.emit(answer)
