"""derby tune: find a solution's fastest configurations on this GPU."""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli import json_option, root_option
from kernelderby.cli.names import NamesCommand


@click.command(cls=NamesCommand)
@click.argument("solutions", nargs=-1, required=True)
@click.option("--workloads", multiple=True, metavar="W...",
              help="Only these: starts of uuids, or sizes of an axis (default: all).")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Turns of each candidate.")
@click.option("--iterations", type=click.IntRange(min=2), default=10, show_default=True, help="Timed calls in a turn.")
@click.option("--timeout", type=float, default=120, show_default=True,
              help="Seconds for each step of a candidate: compilation and check, one turn.")
@click.option("--budget-seconds", type=click.FloatRange(min=0, min_open=True),
              help="For all of it; what is not reached by then is left out and said (default: no limit).")
@root_option
@json_option
def command(solutions: tuple[str, ...], workloads: tuple[str, ...], rounds: int, iterations: int, timeout: float,
            budget_seconds: float | None, root: Path, as_json: bool) -> None:
    """Find the fastest configurations of SOLUTIONS on this GPU, and write each a tuned.py.

    The candidates that a solution names are checked once on each workload, then timed in turn as CUDA graphs. Every
    time also goes to reports/tune/SOLUTION.jsonl. Exit code 1 when a candidate failed or gave a wrong result.
    """
    import json
    import sys

    from kernelderby.catalog import Catalog
    from kernelderby.errors import DerbyError
    from kernelderby.measure.machine.probe import exclusive, find_machine
    from kernelderby.measure.machine.requirements import why_not
    from kernelderby.measure.tune.run import TuneSettings, tune

    catalog = Catalog.open(root)
    chosen = [catalog.solution(name) for name in dict.fromkeys(solutions)]  # a wrong name need not wait for torch
    jobs = [(solution, _workloads(catalog, solution.definition, workloads)) for solution in chosen]
    machine = find_machine(root, "cuda")
    if machine.gpu is None:
        raise DerbyError(f"{machine.gpu_missing}, so nothing can be tuned; run it on the GPU that the table is for")
    for solution in chosen:
        reason = why_not(solution, machine)
        if reason:
            raise DerbyError(f"{solution.name}: {reason}; leave it out or install what it needs")
    settings = TuneSettings(rounds, iterations, timeout, budget_seconds)
    with exclusive(machine, root), _progress(sum(len(some) for _, some in jobs), as_json) as advance:
        results = tune(catalog, machine, settings, jobs, advance)
    if as_json:
        click.echo(json.dumps({"gpu": machine.name, "protocol": machine.protocol,
                               "solutions": [result.to_json() for result in results]}))
    else:
        _print(machine, results)
    if any(result.failed for result in results):
        sys.exit(1)


def _workloads(catalog, definition: str, wanted: tuple[str, ...]) -> list:
    from kernelderby.measure.judge.cases import select_workloads

    return select_workloads(catalog.workloads(definition), wanted)


def _progress(steps: int, quiet: bool):
    from kernelderby.measure.progress import bar

    return bar("tuning", steps, quiet)


def _print(machine, results: list) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 200  # a file or a pipe: do not fold the table at 80
    for result in results:
        rows = Table(title=f"{result.solution} on {machine.name}, {machine.protocol}", box=None, title_justify="left")
        for name, where in (("key", "left"), ("workloads", "right"), ("us", "right"), ("gain", "right"),
                            ("configuration", "left")):
            rows.add_column(name, justify=where)
        for one in result.choices:
            rows.add_row(one.key, str(one.workloads), "" if one.us is None else f"{one.us:.2f}",
                         "" if one.gain is None else f"{one.gain:.3f}", _shown(one))
        console.print(rows)
        for line in result.failed:
            console.print(f"failed {line}")
        if result.left_over:
            console.print(f"not reached within the budget: {len(result.left_over)} workloads: "
                          f"{', '.join(result.left_over[:4])}{' ...' if len(result.left_over) > 4 else ''}")
        where = f"wrote {result.path}; `derby pack` packs it" if result.path else "nothing was written"
        console.print(f"{where}; every time is in {result.log}")


def _shown(choice) -> str:
    config = " ".join(f"{name}={value}" for name, value in (choice.config or {}).items())
    return " ".join(part for part in (config, f"({choice.note})" if choice.note else "") if part)
