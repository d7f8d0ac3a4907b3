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
@click.option(
    "--model",
    type=options.FILE,
    metavar="CONFIG.json|NAME",
    help="Every shape that a model implies: the kernel for it.",
)
@click.option("--tp", "sharing", type=options.Count(1), default=1, help="With --model: GPUs that share each layer.")
@options.names_option("--tokens", metavar="N", help="With --model: tokens of a step (default: as `derby shapes`).")
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
    "rank",
    tables=("solutions", "workloads", "pairs", "authors", "operators", "leads", "shapes"),
    plot=True,
    of_set=True,
)
@options.root_option
def command(
    operators: tuple[str, ...],
    definitions: tuple[str, ...],
    solutions: tuple[str, ...],
    workloads: tuple[str, ...],
    at: str | None,
    model: Path | None,
    sharing: int,
    tokens: tuple[str, ...],
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

    --model tells the kernel for every shape that a model's config.json implies (see `derby shapes`): the fastest
    solution at the nearest measured shape, and the best library there.

    \b
    derby rank --model qwen3-32b --tp 4 --tokens 1,64,4096

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
        if len(definitions) != 1 or workloads or summary or importance or model:
            others = "--workloads, --summary, --importance and --model"
            raise click.UsageError(f"--shape goes with one OPERATOR, without {others}")
        near = found.nearest(definitions[0], at)
        warn([str(near)])
        workloads = near.uuids
    if model is None and (tokens or sharing > 1):
        raise click.UsageError("--tp and --tokens go with --model")
    if author is not None and summary is None:
        raise click.UsageError("--author goes with --summary")
    if model is not None:
        if solutions or workloads or baseline or shapes or importance or summary or asked.pop("origin"):
            raise click.UsageError("--model goes with OPERATOR, --tp, --tokens, --gpu, --protocol and --time alone")
        asked["time"] = asked["time"] or "graph"
        answer: Answer[Any] = found.rank_for_model(model, definitions, sharing=sharing, tokens=tokens, **asked)
    elif summary is not None:
        if importance or solutions or workloads or baseline or shapes or asked["time"] == "busy":
            raise click.UsageError(
                "--summary compares all solutions by graph or eager times; leave out --importance, --solutions, "
                "--workloads, --baseline, --shapes and --time busy"
            )
        answer = found.leads(definitions, author=author, by_operator=summary == "operators", **asked)
    elif not importance:
        asked |= {"baseline": baseline, "by_shape": True if shapes else None}
        answer = found.rank(definitions, solutions, workloads, **asked)
    elif definitions or workloads or baseline:
        raise click.UsageError(
            "--importance ranks over all operators; leave out --definitions, --workloads and --baseline"
        )
    else:
        answer = found.rank_by_importance(solutions, **asked)
    if output.plot is not None and (model is not None or summary is not None or importance):
        raise click.UsageError("--plot draws a race; leave out --model, --summary and --importance")
    output.emit(answer)
