"""derby gate: for CI, is a candidate slower than a base?"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kernelderby.cli.options import (
    FILE,
    SECONDS,
    Count,
    DerbyCommand,
    Number,
    root_option,
    secret_option,
    workloads_option,
)
from kernelderby.cli.output import Output, output_options


@click.command(cls=DerbyCommand)
@click.argument("base")
@click.argument("candidate")
@workloads_option
@click.option("--base-python", metavar="PYTHON", help="The interpreter of the environment with the base's libraries.")
@click.option("--candidate-python", metavar="PYTHON", help="The same for the candidate.")
@click.option(
    "--least",
    type=Number(0.1, 100),
    default=1,
    show_default=True,
    metavar="PERCENT",
    help="The smallest slowdown that counts.",
)
@click.option("--most-starts", type=Count(4), default=16, show_default=True, help="Times three processes a side.")
@click.option("--iterations", type=Count(2), default=10, show_default=True, help="Timed calls in a turn.")
@click.option("--timeout", type=SECONDS, default=300, show_default=True, help="Seconds for each step of a solution.")
@click.option("--comment", type=FILE, metavar="FILE.md", help="Write the Markdown for a pull request there.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), help="cpu: only to try the command out.")
@secret_option
@output_options("gate", tables=("workloads",), write=False)
@root_option
def command(
    base: str,
    candidate: str,
    workloads: tuple[str, ...],
    base_python: str | None,
    candidate_python: str | None,
    least: float,
    most_starts: int,
    iterations: int,
    timeout: float,
    comment: Path | None,
    device: str | None,
    secret: str,
    root: Path,
    output: Output,
) -> None:
    """Is CANDIDATE slower than BASE? Each is a solution's NAME, or NAME@REVISION. For CI.

    Exit code 0: no regression. 1: a regression, or a wrong result. 2: this machine cannot tell.

    Three fresh processes of each run in turn, start after start, until the answer is clear. Writes no rows.

    \b
    derby gate my_kernel@main my_kernel --comment gate.md
    derby gate vllm_rms_norm vllm_rms_norm --candidate-python vllm-0.33/bin/python
    """
    from kernelderby.measure.wire.early import begin_judging

    environments = [Path(each).absolute().parents[1] for each in (base_python, candidate_python) if each]
    interpreters = [Path(each).resolve().parents[1] for each in (base_python, candidate_python) if each]
    written = [comment.absolute().parent] if comment else []
    begin_judging(root, written, [*environments, *interpreters], device != "cpu")
    from kernelderby.api.gate import gate
    from kernelderby.catalog import Catalog
    from kernelderby.measure.run.progress import bar
    from kernelderby.report.gate import exit_code
    from kernelderby.store.files import write_whole

    extra = {"secret": secret} if secret else {}
    with bar("gating", 0, quiet=output.is_json) as advance:
        answer = gate(
            Catalog.open(root),
            base,
            candidate,
            workloads,
            base_python=base_python,
            candidate_python=candidate_python,
            device=device,
            told=lambda what: advance(what, done=0),
            least=least / 100,
            most=most_starts,
            iterations=iterations,
            timeout_seconds=timeout,
            **extra,
        )
    if comment is not None:
        write_whole(comment, answer.to_markdown())
    output.emit(answer)
    sys.exit(exit_code(answer.value))
