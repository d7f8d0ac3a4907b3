"""derby show: one operator's contract, solutions and workloads."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kernelderby.cli import json_option, root_option
from kernelderby.cli.rendering import print_warnings, rendered


@click.command()
@click.argument("operator")
@root_option
@json_option
def command(operator: str, root: Path, as_json: bool) -> None:
    """One operator: axes, inputs, outputs, tolerances with their reasons, solutions, workloads.

    Per workload: sizes, work, traffic, and per GPU with traces the fastest solution and its S = floor / time.
    """
    from kernelderby.catalog import Catalog
    from kernelderby.report.listing import contract_report
    from kernelderby.roofline.listing import contract

    catalog = Catalog.open(root)
    found = contract(catalog, operator)
    print_warnings(catalog)
    if as_json:
        click.echo(json.dumps(_data(found, catalog.root), allow_nan=False))
    else:
        click.echo(rendered([contract_report(found, catalog.root)], "text").rstrip("\n"))


def _data(found, root: Path) -> dict:
    from dataclasses import asdict

    definition = found.definition
    return {
        "name": definition.name, "op_type": definition.op_type, "dtypes": found.dtypes,
        "description": definition.description, "path": definition.path.relative_to(root).as_posix(),
        "importance_percent": found.importance,
        "axes": {name: {"size": size, "description": found.descriptions["axes"][name]}
                 for name, size in definition.axes.items()},
        **{part: {name: {**asdict(spec), "description": found.descriptions[part][name]}
                  for name, spec in getattr(definition, part).items()} for part in ("inputs", "outputs")},
        "tolerances": [asdict(each) for each in definition.tolerances],
        "solutions": [{"name": each.name, "author": each.author, "description": each.description,
                       "requires": asdict(each.requires)} for each in found.solutions],
        "gpus": found.gpus,
        "workloads": [_workload(found, each) for each in found.workloads],
    }


def _workload(found, workload) -> dict:
    from dataclasses import asdict

    seen = {name: getattr(workload, name) for name in ("shape_id", "framework", "call_count")}
    return {"uuid": workload.uuid, **seen,
            "axes": workload.axes, "scalars": workload.scalars, "cost": workload.cost and asdict(workload.cost),
            "best": {gpu: _best(own[workload.uuid]) for gpu, own in found.best.items() if workload.uuid in own}}


def _best(reached) -> dict:
    return {name: getattr(reached, name) for name in ("solution", "latency_us", "share", "outdated")}
