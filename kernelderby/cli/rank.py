"""derby rank: which solution is fastest on one GPU, from recorded traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kernelderby.cli import json_option, root_option
from kernelderby.cli.names import NamesCommand
from kernelderby.cli.rendering import print_warnings, rendered


@click.command(cls=NamesCommand)
@click.option("--definition", metavar="D", help="Only this definition (default: all that solutions competed for).")
@click.option("--gpu", metavar="NAME|ID", help='Such as "NVIDIA H200" or h200 (default: the GPU with the most rows).')
@click.option("--protocol", metavar="P", help="How the rows were timed (default: the protocol with the most rows).")
@click.option("--time", type=click.Choice(["graph", "eager", "busy"]),
              help="Which time is compared (default: graph where all have it, else eager).")
@click.option("--solutions", metavar="S...", multiple=True, help="Only these.")
@click.option("--baseline", metavar="SOLUTION", help="Ratios are over this one's time (default: the best).")
@click.option("--importance", is_flag=True,
              help="Authors over all operators at once, each operator weighted by its importance in production.")
@click.option("--format", "style", type=click.Choice(["text", "markdown", "json"]), default="text", show_default=True)
@json_option
@click.option("--write", "target", type=click.Path(path_type=Path), metavar="FILE",
              help="Replace the block <!-- derby rank --> ... <!-- /derby --> in this Markdown file.")
@root_option
def command(definition: str | None, gpu: str | None, protocol: str | None, time: str | None,
            solutions: tuple[str, ...], baseline: str | None, importance: bool, style: str, as_json: bool,
            target: Path | None, root: Path) -> None:
    """Compare solutions on ONE GPU, measured in ONE way, from recorded traces. Needs no GPU and no torch.

    Per workload: latency, ratio with its 95 % interval, win. Over workloads: geomean, total time, win rate, coverage,
    share of the floor reached (S). Missing and failed rows lower the coverage and stay in the table.

    With --importance: per author, S over all operators, each weighted by its share of the GPU time in production.
    """
    from kernelderby.catalog import Catalog

    catalog = Catalog.open(root)
    if importance:
        if definition or baseline:
            raise click.UsageError("--importance ranks over all operators; leave out --definition and --baseline")
        key, found, reports = _by_importance(catalog, list(solutions), gpu, protocol, time)
    else:
        key, found, reports = _by_definition(catalog, definition, list(solutions), baseline, gpu, protocol, time)
    print_warnings(catalog)
    if as_json or style == "json":
        import json
        from dataclasses import asdict

        data = [asdict(each) for each in found] if isinstance(found, list) else asdict(found)
        output = json.dumps({key: data}, indent=2, allow_nan=False)
    else:
        output = rendered(reports, style)
    if target is not None:
        from kernelderby.report.markers import replace_block

        replace_block(target, "rank", rendered(reports, "markdown"))
        click.echo(f"derby: {target}: block rank written", err=True)
        return
    click.echo(output.rstrip("\n"))


def _by_definition(catalog, definition: str | None, names: list[str], baseline: str | None, gpu: str | None,
                   protocol: str | None, time: str | None) -> tuple[str, list, list]:
    """The key of the JSON, the rankings, their reports."""
    from kernelderby.report.ranking import ranking_report

    rankings = _rankings(catalog, definition, names, baseline, gpu, protocol, time)
    return "rankings", rankings, [ranking_report(ranking) for ranking in rankings]


def _by_importance(catalog, names: list[str], gpu: str | None, protocol: str | None,
                   time: str | None) -> tuple[str, Any, list]:
    """As _by_definition, with the one ranking over all operators."""
    from kernelderby.catalog import published
    from kernelderby.errors import DerbyError
    from kernelderby.rank.by_importance import rank_by_importance
    from kernelderby.report.importance import importance_report
    from kernelderby.roofline.recorded import recorded

    importance = published.importance(catalog.root, catalog.left_out)
    if not importance:
        raise DerbyError(f"--importance: {catalog.root}/profiles has no published_importance.csv; leave it out")
    named = [catalog.solution(name) for name in names] or catalog.solutions.values()
    solutions = {solution.name: solution for solution in named}
    workloads = {name: catalog.workloads(name) for name in importance if name in catalog.definitions}
    rows = recorded(catalog.traces(), solutions, gpu, protocol, time)
    ranking = rank_by_importance(rows, workloads, solutions, importance)
    return "importance", ranking, [importance_report(ranking)]


def _with_rows(catalog, rows: list, wanted: list[str], gpu: str | None, protocol: str | None) -> list[str]:
    """The wanted definitions that have rows to compare; without any wanted, those that solutions competed for, or all
    where there are none such. What is left out becomes a warning."""
    from kernelderby.errors import DerbyError
    from kernelderby.rank import definitions_with_rows

    recorded = {row.definition for row in rows}
    chosen = wanted or sorted(recorded & set(catalog.definitions))
    if not rows or not chosen:
        raise DerbyError(f"{catalog.root / 'traces'}: no recorded rows; measure with `derby bench`")
    for stranger in sorted(recorded - set(catalog.definitions)):
        catalog.warnings.append(f"{catalog.root / 'traces'}: rows of {stranger}, no definition of the set, left out")
    if len(chosen) == 1:
        return chosen
    competed = [] if wanted else sorted(definitions_with_rows(rows, gpu, protocol, solutions=2).intersection(chosen))
    if competed:
        if len(competed) < len(chosen):
            catalog.warnings.append(f"{len(chosen) - len(competed)} definitions have no rows of two solutions, left "
                                    "out; see `derby roofline --traces`, or name one with --definition")
        return competed
    available = definitions_with_rows(rows, gpu, protocol)
    catalog.warnings += [f"{name}: has no rows to compare, left out" for name in chosen if name not in available]
    return [name for name in chosen if name in available]


def _rankings(catalog, definition: str | None, names: list[str], baseline: str | None, gpu: str | None,
              protocol: str | None, time: str | None) -> list:
    """One ranking per definition that has rows; with solutions named, per definition of theirs."""
    from kernelderby.errors import DerbyError
    from kernelderby.rank import rank

    named = [catalog.solution(name) for name in [*names, *([baseline] if baseline else [])]]
    if definition is not None:
        wanted = [catalog.definition(definition).name]
        for solution in named:
            if solution.definition != definition:
                raise DerbyError(f"{solution.name} is a solution of {solution.definition}, not of {definition}")
    else:
        wanted = sorted({solution.definition for solution in named})
    rows = catalog.traces(wanted[0] if len(wanted) == 1 else None)
    wanted = _with_rows(catalog, rows, wanted, gpu, protocol)
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
            time=time,
        )
        for name in wanted
    ]
