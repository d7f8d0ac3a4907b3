"""derby export: the set -> another flashinfer-bench dataset."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli.options import FILE, DerbyCommand, json_option, root_option
from kernelderby.cli.output import say, say_json, say_line


@click.command(cls=DerbyCommand)
@click.argument("destination", type=FILE)
@root_option
@json_option
def command(destination: Path, root: Path, as_json: bool) -> None:
    """Copy the set into the flashinfer-bench dataset at DESTINATION ($FIB_DATASET_PATH).

    Nothing is deleted there. A definition that it has already stays as it is, and so do its workloads; solutions are
    copied, or brought up to date.
    """
    from kernelderby.catalog.pack import export

    changes = export(root, destination)
    if as_json:
        say_json({"copied": [str(change.path) for change in changes]})
        return
    for change in changes:
        say_line(f"copied  {change}")
    if not changes:
        say(f"{destination}: has everything already")
