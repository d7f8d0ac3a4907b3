"""derby rank: which solution is fastest on one GPU, from recorded traces."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from kernelderby.cli import json_option, root_option
from kernelderby.cli.names import NamesCommand


@click.command(cls=NamesCommand, short_help="Compare solutions on one GPU, from recorded traces.")
@click.option("--definition", metavar="D", help="Only this definition (default: every one that has traces).")
@click.option("--gpu", metavar="NAME|ID", help='Such as "NVIDIA H200" or h200 (default: the GPU with the most rows).')
@click.option("--protocol", metavar="P", help="How the rows were timed (default: the protocol with the most rows).")
@click.option("--solutions", metavar="S...", multiple=True, help="Only these.")
@click.option("--baseline", metavar="SOLUTION", help="Ratios are over this one's time (default: the best).")
@click.option("--format", "style", type=click.Choice(["text", "markdown", "json"]), default="text", show_default=True)
@json_option
@click.option("--write", "target", type=click.Path(path_type=Path), metavar="FILE",
              help="Replace the block <!-- derby rank --> ... <!-- /derby --> in this Markdown file.")
@root_option
def command(definition: str | None, gpu: str | None, protocol: str | None, solutions: tuple[str, ...],
            baseline: str | None, style: str, as_json: bool, target: Path | None, root: Path) -> None:
    """Compare solutions on ONE GPU, measured in ONE way, from recorded traces. Needs no GPU and no torch.

    Per workload: latency, ratio with its 95 % interval, win. Over workloads: geomean, total time, win rate, coverage,
    share of the floor reached (S). Missing and failed rows lower the coverage and stay in the table.
    """
    from kernelderby.catalog import Catalog

    catalog = Catalog.open(root)
    rankings = _rankings(catalog, definition, list(solutions), baseline, gpu, protocol)
    for warning in catalog.warnings:
        click.echo(f"derby: {warning}", err=True)
    if as_json or style == "json":
        import json
        from dataclasses import asdict

        output = json.dumps({"rankings": [asdict(ranking) for ranking in rankings]}, indent=2, allow_nan=False)
    else:
        output = _rendered(rankings, style)
    if target is not None:
        from kernelderby.report.markers import replace_block

        replace_block(target, "rank", _rendered(rankings, "markdown"))
        click.echo(f"derby: {target}: block rank written", err=True)
        return
    click.echo(output.rstrip("\n"))


def _rankings(catalog, definition: str | None, names: list[str], baseline: str | None, gpu: str | None,
              protocol: str | None) -> list:
    """One ranking per definition that has rows; with solutions named, per definition of theirs."""
    from kernelderby.rank import definitions_with_rows, rank
    from kernelderby.records import DerbyError

    named = [catalog.solution(name) for name in [*names, *([baseline] if baseline else [])]]
    if definition is not None:
        wanted = [catalog.definition(definition).name]
        for solution in named:
            if solution.definition != definition:
                raise DerbyError(f"{solution.name} is a solution of {solution.definition}, not of {definition}")
    else:
        wanted = sorted({solution.definition for solution in named})
    rows = catalog.traces(wanted[0] if len(wanted) == 1 else None)
    recorded = {row.definition for row in rows}
    wanted = wanted or sorted(recorded & set(catalog.definitions))
    if not rows or not wanted:
        raise DerbyError(f"{catalog.root / 'traces'}: no recorded rows; measure with `derby bench`")
    for stranger in sorted(recorded - set(catalog.definitions)):
        catalog.warnings.append(f"{catalog.root / 'traces'}: rows of {stranger}, no definition of the set, left out")
    if len(wanted) > 1:
        available = definitions_with_rows(rows, gpu, protocol)
        catalog.warnings += [f"{name}: has no rows to compare, left out" for name in wanted if name not in available]
        wanted = [name for name in wanted if name in available]
    only = {solution.name for solution in named} if names else None
    by_definition = {name: [row for row in rows if row.definition == name] for name in wanted}
    return [
        rank(
            by_definition[name],
            name,
            catalog.workloads(name),
            {solution.name: solution for solution in catalog.solutions_of(name)},
            gpu=gpu,
            protocol=protocol,
            baseline=baseline if baseline and catalog.solution(baseline).definition == name else None,
            only=only,
        )
        for name in wanted
    ]


def _rendered(rankings: list, style: str) -> str:
    from kernelderby.report import markdown, text
    from kernelderby.report.ranking import ranking_report

    reports = [ranking_report(ranking) for ranking in rankings]
    if style == "markdown":
        return "\n".join(markdown.render(report) for report in reports)
    color = sys.stdout.isatty()
    width = _terminal_width() if color else text.PIPE_WIDTH
    return "\n".join(text.render(report, width=width, color=color) for report in reports)


def _terminal_width() -> int:
    import shutil

    return shutil.get_terminal_size((120, 40)).columns
