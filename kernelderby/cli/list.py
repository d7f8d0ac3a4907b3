"""derby list: the operators of the set."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli.options import DerbyCommand, origin_option, root_option
from kernelderby.cli.output import Output, output_options


@click.command(cls=DerbyCommand)
@click.argument("words", metavar="[WORD]...", nargs=-1)
@click.option(
    "--sort",
    type=click.Choice(["importance", "name", "shapes", "s"]),
    default="importance",
    show_default=True,
    help="Largest first; s: lowest first, on the first GPU.",
)
@origin_option
@output_options("list", tables=("operators",), of_set=True)
@root_option
def command(words: tuple[str, ...], sort: str, origin: tuple[str, ...], root: Path, output: Output) -> None:
    """The operators of the set. Each WORD keeps those whose name, op_type or dtype contains it.

    Best S: floor over the fastest solution's time, median over the timed shapes, for each GPU with rows. Shapes after
    a + are of other origins than the survey and do not count in S.
    """
    from kernelderby.api.trace_set import open_set

    output.emit(open_set(root).operators(words, sort=sort, origin=origin))
