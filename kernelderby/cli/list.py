"""derby list: the operators of the set."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kernelderby.cli import json_option, root_option
from kernelderby.cli.rendering import WIDE, print_warnings, rendered


@click.command()
@click.argument("words", metavar="[WORD]...", nargs=-1)
@click.option("--sort", type=click.Choice(["importance", "name", "shapes", "s"]), default="importance",
              show_default=True, help="Largest first; s: lowest first, on the first GPU.")
@root_option
@json_option
def command(words: tuple[str, ...], sort: str, root: Path, as_json: bool) -> None:
    """The operators of the set, those that match each WORD: a part of the name, the op_type or the dtype.

    Best S: per GPU with traces, floor over the fastest solution's time, median over the shapes that were timed.
    """
    from kernelderby.catalog import Catalog
    from kernelderby.report.listing import listing_report
    from kernelderby.roofline.listing import listing

    catalog = Catalog.open(root)
    found = listing(catalog, words, sort)
    print_warnings(catalog)
    if as_json:
        click.echo(json.dumps(_data(found), allow_nan=False))
    else:
        click.echo(rendered([listing_report(found)], "text", WIDE).rstrip("\n"))


def _data(found) -> dict:
    return {"gpus": found.gpus, "of_operators": found.of_operators, "operators": [
        {"name": each.name, "op_type": each.op_type, "dtypes": each.dtypes, "shapes": each.shapes,
         "importance_percent": each.importance, "solutions": each.solutions,
         "best": {gpu: {"s": share.measured, "shapes": share.shapes} for gpu, share in each.shares.items()}}
        for each in found.operators]}
