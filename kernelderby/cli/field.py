"""derby field: the libraries that every operator was raced against."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli.options import DerbyCommand, gpu_option, root_option
from kernelderby.cli.output import Output, output_options


@click.command(cls=DerbyCommand)
@click.argument("operators", metavar="[OPERATOR]...", nargs=-1)
@click.option(
    "--constraints",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Lines <library>==<version>: the newest versions, in place of those installed here.",
)
@click.option("--not-raced", is_flag=True, help="Only the libraries that were not raced, and why.")
@gpu_option
@output_options("field", tables=("field", "not_raced"))
@root_option
def command(
    operators: tuple[str, ...], constraints: Path | None, not_raced: bool, gpu: str | None, root: Path, output: Output
) -> None:
    """The libraries in the race for each operator: version, newest version here, shapes, dates of the rows; and the
    libraries that are not in it, with the reason.

    Only shapes that count in scores count here. Needs no GPU and no torch.

    \b
    derby field                                  # every operator, by importance
    derby field rms_norm --constraints new.txt   # new.txt: vllm==0.33.0
    """
    from kernelderby.api.trace_set import open_set

    output.emit(open_set(root).field(operators, constraints=constraints, gpu=gpu, only_not_raced=not_raced))
