"""derby tune: find a solution's fastest configurations on this GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from kernelderby.cli import options
from kernelderby.cli.options import SECONDS, Cluster, Count, DerbyCommand, Draw, Wanted
from kernelderby.cli.output import say, say_json, text_width
from kernelderby.cli.progress import bar

_SECRET = "secret of the shapes: {} (--secret draws them again)"


@click.command(cls=DerbyCommand)
@click.argument("names", metavar="[SOLUTION]...", nargs=-1)
@options.choice_options("solutions", "workloads", "origin")
@click.option("--rounds", type=Count(1), default=5, help="Turns of each candidate.")
@click.option("--iterations", type=Count(2), default=10, help="Timed calls in a turn.")
@click.option(
    "--timeout",
    type=SECONDS,
    default=120,
    help="Seconds for each step of a candidate: compilation and check, one turn.",
)
@click.option(
    "--budget-seconds",
    type=SECONDS,
    help="Seconds for the whole run; a line counts the workloads that were not reached (default: no limit).",
)
@click.option(
    "--regret",
    type=Count(1),
    metavar="N",
    help="Write no table; show how much longer run()'s choice takes than the best candidate on N fresh shapes.",
)
@options.draw_options
@options.cluster_options
@options.written_root_option
@options.json_option
def command(
    names: tuple[str, ...],
    choice: Wanted,
    rounds: int,
    iterations: int,
    timeout: float,
    budget_seconds: float | None,
    regret: int | None,
    draw: Draw,
    cluster: Cluster,
    root: Path,
    as_json: bool,
) -> None:
    """Find the fastest configurations of solutions on this GPU, or on each kind of GPU of a Ray cluster (--ray), and
    write each solution's tuned.py. SOLUTION is the same as --solutions.

    Each candidate of a solution is checked once on each workload. Then the candidates are timed in turn as CUDA
    graphs. Every time also goes to reports/tune/SOLUTION.jsonl. Exit code 1 if a candidate failed or gave a wrong
    result.

    --fresh tunes on fresh shapes, which the secret draws. It writes the loss of each candidate, from which choices at
    other shapes are interpolated, and no row of the table.

    --regret measures on fresh shapes how much longer the solution's choice takes than the best candidate. It writes
    the times only. Exit code 1 also if the mean is over 3 % or one shape over 10 %.
    """
    from kernelderby.catalog import Catalog
    from kernelderby.errors import DerbyError
    from kernelderby.measure.machine.probe import exclusive, find_machine
    from kernelderby.measure.machine.requirements import why_not
    from kernelderby.measure.tune.run import tune
    from kernelderby.measure.tune.turns import TuneSettings

    (fresh, secret), shapes = draw, (choice.workloads, choice.origin)
    if not names and not choice.solutions:
        raise click.UsageError("name at least one solution to tune")
    if regret and (any(shapes) or budget_seconds or fresh):
        raise click.UsageError(
            "--regret draws its own shapes; leave --workloads, --origin, --fresh, --budget-seconds out"
        )
    if fresh and any(shapes):
        raise click.UsageError("--fresh draws its own shapes; leave --workloads and --origin out")
    if secret and not (regret or fresh):
        raise click.UsageError("--secret draws the shapes of --regret or --fresh; give one of them")
    cluster.expect_kinds(": without it this machine's GPU tunes")
    if cluster.address and (regret or budget_seconds):
        raise click.UsageError("--ray: leave --regret and --budget-seconds out")
    catalog = Catalog.open(root)
    # a wrong name need not wait for torch
    chosen = catalog.solutions_named((*names, *choice.solutions))
    jobs = [
        (solution, [] if fresh or regret else _workloads(catalog, solution.definition, *shapes)) for solution in chosen
    ]
    settings = TuneSettings(rounds, iterations, timeout, budget_seconds)
    if cluster.address:
        from kernelderby.cli.cluster import tune_on_cluster

        if fresh:
            secret, jobs = _drawn(catalog, chosen, fresh, secret)
        found, left = tune_on_cluster(catalog, cluster, settings, jobs, bool(fresh), as_json)
        _tell(found, secret if fresh else "", as_json)
        if left or any(result.failed for _, result in found):
            sys.exit(1)
        return
    machine = find_machine(root, "cuda")
    if machine.gpu is None:
        raise DerbyError(f"{machine.gpu_missing}, so nothing can be tuned; run it on the GPU that the table is for")
    for solution in chosen:
        reason = why_not(solution, machine)
        if reason:
            raise DerbyError(f"{solution.name}: {reason}; leave it out or install what it needs")
    if regret:
        _regret(catalog, machine, settings, chosen, regret, secret, as_json)
        return
    if fresh:
        secret, jobs = _drawn(catalog, chosen, fresh, secret)
    with exclusive(machine, root), bar("tuning", sum(len(some) for _, some in jobs), as_json) as advance:
        results = tune(catalog, machine, settings, jobs, advance, bool(fresh))
    if as_json:
        tuned = [result.to_json() for result in results]
        say_json({"gpu": machine.name, "protocol": machine.protocol, "solutions": tuned})
    else:
        _tell([(machine, result) for result in results], secret if fresh else "", as_json)
    if any(result.failed for result in results):
        sys.exit(1)


def _tell(found: list[tuple[Any, Any]], secret: str, as_json: bool) -> None:
    """Results, each with its machine. secret: of fresh shapes."""
    from kernelderby.report.tune import tuned_report

    if as_json:
        say_json([{"gpu": machine.name, "protocol": machine.protocol, **result.to_json()} for machine, result in found])
        return
    for machine, result in found:
        _show(tuned_report(machine, result))
    if secret:
        say(_SECRET.format(secret))


def _regret(
    catalog: Any, machine: Any, settings: Any, chosen: list[Any], count: int, secret: str, as_json: bool
) -> None:
    from kernelderby.measure.machine.probe import exclusive
    from kernelderby.measure.tune.regret import regrets
    from kernelderby.report.tune import regret_report

    secret, jobs = _drawn(catalog, chosen, count, secret)
    with exclusive(machine, catalog.root), bar("tuning", sum(len(some) for _, some in jobs), as_json) as advance:
        results = regrets(catalog, machine, settings, jobs, advance)
    if as_json:
        found = [result.to_json() for result in results]
        say_json({"gpu": machine.name, "protocol": machine.protocol, "secret": secret, "solutions": found})
    else:
        for result in results:
            _show(regret_report(machine, result))
        say(_SECRET.format(secret))
    if any(result.failed or not result.holds for result in results):
        sys.exit(1)


def _drawn(catalog: Any, chosen: list[Any], count: int, secret: str) -> tuple[str, list[Any]]:
    """The secret, and each solution with its fresh shapes."""
    from kernelderby.measure.judge.secret import drawn
    from kernelderby.measure.run.fresh import fresh_workloads

    secret = secret or drawn()
    shapes = fresh_workloads(catalog, [solution.name for solution in chosen], (), secret, count)
    return secret, [(solution, shapes[solution.definition]) for solution in chosen]


def _workloads(catalog: Any, definition: str, wanted: tuple[str, ...], origin: tuple[str, ...]) -> list[Any]:
    from kernelderby.catalog.selection import of_origin, select_workloads

    catalog.check_origins(origin)
    return select_workloads(of_origin(catalog.workloads(definition), origin), wanted)


def _show(report: Any) -> None:
    from kernelderby.report.text import render

    say(render(report, width=text_width()))
