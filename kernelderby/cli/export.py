"""derby export: the set -> another flashinfer-bench dataset."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kernelderby.cli import json_option, root_option


@click.command()
@click.argument("destination", type=click.Path(path_type=Path))
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
        print(json.dumps({"copied": [str(change.path) for change in changes]}))
        return
    for change in changes:
        print(f"copied  {change}")
    if not changes:
        print(f"{destination}: has everything already")
