"""derby gate: for CI, is a candidate slower than a base?"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kernelderby.cli.options import FILE, SECONDS, Count, DerbyCommand, Number, names_option, root_option, secret_option
from kernelderby.cli.output import Output, output_options
from kernelderby.cli.progress import bar
from kernelderby.errors import DerbyError
from kernelderby.store.counts import counted


@click.command(cls=DerbyCommand)
@click.argument("base")
@click.argument("candidate")
@names_option(
    "--workloads",
    "--workload",
    metavar="W",
    help="Only these workloads: the start of a uuid, a size, axis=size, or a number such as #3 (default: six shapes, "
    "from the least work to the most).",
)
@click.option("--base-python", metavar="PYTHON", help="The interpreter of the environment with the base's libraries.")
@click.option("--candidate-python", metavar="PYTHON", help="The same for the candidate.")
@click.option("--least", type=Number(0.1, 100), default=1, metavar="PERCENT", help="The smallest slowdown that counts.")
@click.option("--most-starts", "most", type=Count(4), default=16, help="Maximum number of starts.")
@click.option("--iterations", type=Count(2), default=10, help="Timed calls in a turn.")
@click.option("--timeout", "timeout_seconds", type=SECONDS, default=300, help="Seconds for each step of a solution.")
@click.option("--comment", type=FILE, metavar="FILE.md", help="Write the Markdown for a pull request there.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), help="cpu: only to try the command out.")
@secret_option
@output_options("gate", tables=("workloads",), write=False)
@root_option
def command(
    base: str,
    candidate: str,
    workloads: tuple[str, ...],
    least: float,
    comment: Path | None,
    secret: str,
    root: Path,
    output: Output,
    **options: Any,
) -> None:
    """Is CANDIDATE slower than BASE? Each is a solution's NAME, or NAME@REVISION. For CI.

    Exit code 0: no regression. 1: a regression or a wrong result. 2: this machine cannot tell.

    Three fresh processes of each side take turns, again and again, until the answer is clear. No rows are written.

    \b
    derby gate my_kernel@main my_kernel --comment gate.md
    derby gate vllm_rms_norm vllm_rms_norm --candidate-python vllm-0.33/bin/python
    """
    from kernelderby.measure.wire.early import begin_judging

    if comment is not None and not comment.absolute().parent.is_dir():
        raise DerbyError(f"--comment: {comment.parent}: is no folder; make it first")
    pythons = [_found(f"--{role}-python", options[f"{role}_python"]) for role in ("base", "candidate")]
    read = [place.parent.parent for each in pythons if each for place in (each.absolute(), each.resolve())]
    written = [comment.absolute().parent] if comment else []
    begin_judging(root, written, read, options["device"] != "cpu")
    from kernelderby.api.gate import gate
    from kernelderby.catalog import Catalog
    from kernelderby.report.gate import exit_code
    from kernelderby.store.files import write_whole

    options |= {"least": least / 100} | ({"secret": secret} if secret else {})
    with bar("gating", 0, quiet=output.is_json) as advance:
        observer = _observer(lambda line: advance(line, done=0))
        answer = gate(Catalog.open(root), base, candidate, workloads, observer=observer, **options)
    output.emit(answer)
    if comment is not None:
        write_whole(comment, answer.to_markdown())
    sys.exit(exit_code(answer.value))


def _observer(tell: Callable[[str], None]) -> Any:
    from kernelderby.catalog.selection import workload_label
    from kernelderby.measure.run.gate import GateObserver
    from kernelderby.statistics.gate import BLOCKS

    class ShownGate(GateObserver):
        def started(self, number: int, most: int, workloads_left: int) -> None:
            tell(f"start {number} of at most {most}, {counted(workloads_left, 'workload')} left")

        def block_begun(self, workload: Any, number: int, block: int) -> None:
            tell(f"{workload_label(workload)}: start {number}, block {block} of {BLOCKS}")

        def repeated(self, role: str, why: str) -> None:
            tell(f"{role} again: {why}")

    return ShownGate()


def _found(option: str, python: str | None) -> Path | None:
    if not python:
        return None
    if (found := shutil.which(python)) is None:
        raise DerbyError(f"{option}: {python}: is no program here; give the path of an interpreter")
    return Path(found)
