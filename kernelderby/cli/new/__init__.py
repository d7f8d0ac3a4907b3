"""derby new: an operator or a solution with all of its files."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli import LazyGroup
from kernelderby.cli.options import root_option

VERBS = {
    "operator": "A contract with reference, shapes and costs, from inputs or a function.",
    "solution": "A folder with a source that is right before you edit it.",
}


@click.group(
    cls=LazyGroup, verbs=VERBS, package=__name__, short_help="A new operator or solution, right from the start."
)
@root_option
def command(root: Path) -> None:
    """A new operator or solution, right from the start. docs/tutorial.md goes through both in ten minutes."""
