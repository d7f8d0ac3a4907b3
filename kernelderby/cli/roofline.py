"""derby roofline: operators and their shapes against the floors of GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kernelderby.cli import json_option, root_option
from kernelderby.cli.names import NamesCommand
from kernelderby.cli.rendering import WIDE, rendered
from kernelderby.errors import DerbyError

_FILE = click.Path(path_type=Path)


@click.command(cls=NamesCommand)
@click.argument("operators", metavar="[OPERATOR]...", nargs=-1)
@click.option("--gpu", "gpu_names", metavar="GPU...", multiple=True, default=("h200",), show_default=True,
              help="Ids or names of GPUs. With xpu-a: the published times and S of the deployed kernels.")
@click.option("--shapes", is_flag=True, help="Every shape of all operators.")
@click.option("--traces", "with_traces", is_flag=True, help="S of our recorded times on the first GPU.")
@click.option("--plot", type=_FILE, metavar="FILE", help="Draw S over flop / byte too: a .png, .svg or .pdf file.")
@click.option("--format", "style", type=click.Choice(["text", "markdown", "csv"]), default="text", show_default=True)
@click.option("--write", "target", type=_FILE, metavar="FILE",
              help="Put the Markdown tables between <!-- derby roofline --> and <!-- /derby --> in this file.")
@root_option
@json_option
def command(operators: tuple[str, ...], gpu_names: tuple[str, ...], shapes: bool, with_traces: bool, plot: Path | None,
            style: str, target: Path | None, root: Path, as_json: bool) -> None:
    """What each operator must do at least, how fast that could go on a GPU, and how near to it kernels come.

    Without OPERATOR: one row an operator. With it: every shape of it.

    T_SOL, the floor, is the vendor's peak bandwidth or dense arithmetic against the counted cost; no kernel reaches it.
    S = T_SOL / T.
    """
    from kernelderby.catalog import Catalog
    from kernelderby.report.roofline import operators_report, shapes_reports
    from kernelderby.roofline.operators import survey

    found = survey(Catalog.open(root), _gpus(gpu_names), operators, with_traces=with_traces)
    if plot is not None and not found.sources:
        raise DerbyError("--plot: there is no S without times; add --traces, or --gpu xpu-a for the published ones")
    reports = shapes_reports(found) if operators or shapes else [operators_report(found)]
    if target is not None:
        from kernelderby.report.markers import replace_block

        changed = replace_block(target, "roofline", rendered(reports, "markdown"))
        click.echo(f"{target}: {'written' if changed else 'is up to date'}")
    elif as_json:
        click.echo(json.dumps(_data(found), allow_nan=False))
    else:
        click.echo(rendered(reports, style, WIDE).rstrip("\n"))
    if plot is not None:
        _draw(found, plot)
        click.echo(f"derby: {plot}: written", err=True)


def _gpus(names: tuple[str, ...]) -> list:
    from kernelderby.fields import suggestion
    from kernelderby.hardware import find_gpu, gpus

    found = {}
    for name in names:
        gpu = find_gpu(name)
        if gpu is None:
            raise DerbyError(f"--gpu: kernelderby/hardware/gpus has no {name!r}; {suggestion(name, gpus())}")
        found[gpu.id] = gpu
    return list(found.values())


def _data(survey) -> dict:
    """Every number, for machines; an operator's middle shape is that of index `middle`."""
    from dataclasses import asdict

    total = sum(survey.importance.values())
    return {
        "gpus": [asdict(gpu) for gpu in survey.gpus],
        "sources": {source.key: {"gpu": source.gpu.id} | (
            {"protocol": source.recorded.group.protocol} if source.recorded else {}) for source in survey.sources},
        "operators": {operator.name: asdict(operator) | {
            "middle": len(operator.shapes) // 2,
            "weight": operator.importance / total if operator.importance else None,
        } for operator in survey.operators},
        "weighted": {key: asdict(share) for key, share in survey.weighted.items()},
    }


def _draw(survey, path: Path) -> None:
    from kernelderby.report.plot import shares
    from kernelderby.roofline.operators import PUBLISHED

    source = survey.sources[-1]
    dots, marks = [], []
    for operator in survey.operators:
        share = operator.shares[source.key]
        dots += [(operator.regime, shape.flops_per_byte, timed.share) for shape in operator.shapes
                 if (timed := shape.times.get(source.key)) and timed.share]
        if share.measured:
            marks.append((operator.name, operator.regime, operator.middle.flops_per_byte, share.measured,
                          operator.importance or 0))
    what = "deployed kernels, as published" if source.key == PUBLISHED else "fastest recorded solution"
    shares(dots, marks, path, title=f"Share of the speed of light on {source.gpu.names[0]}: {what}")
