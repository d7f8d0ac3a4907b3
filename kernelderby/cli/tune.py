"""derby tune: find a solution's fastest configurations on this GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kernelderby.cli.options import (
    SECONDS,
    Count,
    DerbyCommand,
    fresh_option,
    json_option,
    kinds_option,
    origin_option,
    ray_option,
    secret_option,
    solutions_option,
    workloads_option,
    written_root_option,
)
from kernelderby.cli.output import say, say_json, text_width
from kernelderby.store.counts import counted


@click.command(cls=DerbyCommand)
@click.argument("names", metavar="[SOLUTION]...", nargs=-1)
@solutions_option
@workloads_option
@origin_option
@click.option("--rounds", type=Count(1), default=5, show_default=True, help="Turns of each candidate.")
@click.option("--iterations", type=Count(2), default=10, show_default=True, help="Timed calls in a turn.")
@click.option(
    "--timeout",
    type=SECONDS,
    default=120,
    show_default=True,
    help="Seconds for each step of a candidate: compilation and check, one turn.",
)
@click.option(
    "--budget-seconds",
    type=SECONDS,
    help="Seconds for the whole run; it counts the workloads that it did not reach (default: no limit).",
)
@click.option(
    "--regret",
    type=Count(1),
    metavar="N",
    help="Write no table; show how much longer run()'s choice takes than the best candidate on N fresh shapes.",
)
@fresh_option
@secret_option
@ray_option
@kinds_option
@written_root_option
@json_option
def command(
    names: tuple[str, ...],
    solutions: tuple[str, ...],
    workloads: tuple[str, ...],
    origin: tuple[str, ...],
    rounds: int,
    iterations: int,
    timeout: float,
    budget_seconds: float | None,
    regret: int | None,
    fresh: int,
    secret: str,
    address: str | None,
    kinds: tuple[str, ...],
    root: Path,
    as_json: bool,
) -> None:
    """Find the fastest configurations of solutions (SOLUTION is the same as --solutions) on this GPU, or on each kind
    of GPU of a Ray cluster (--ray), and write each a tuned.py.

    The candidates that a solution names are checked once on each workload, then timed in turn as CUDA graphs. Every
    time also goes to reports/tune/SOLUTION.jsonl. Exit code 1 when a candidate failed or gave a wrong result.

    With --fresh the secret draws fresh shapes. The command writes the loss of each candidate there, and no row of
    the table. Choices at other shapes are interpolated from these losses.

    With --regret the shapes are fresh, too, and the command writes only the times. It shows how much longer the
    solution's choice takes than the best candidate. Exit code 1, too, if the mean is over 3 % or one shape over 10 %.
    """
    import sys

    from kernelderby.catalog import Catalog
    from kernelderby.errors import DerbyError
    from kernelderby.measure.machine.probe import exclusive, find_machine
    from kernelderby.measure.machine.requirements import why_not
    from kernelderby.measure.tune.run import tune
    from kernelderby.measure.tune.turns import TuneSettings

    catalog = Catalog.open(root)
    if not names and not solutions:
        raise click.UsageError("name at least one solution to tune")
    if regret and (workloads or origin or budget_seconds or fresh):
        raise click.UsageError(
            "--regret draws its own shapes; leave --workloads, --origin, --fresh, --budget-seconds out"
        )
    if fresh and (workloads or origin):
        raise click.UsageError("--fresh draws its own shapes; leave --workloads and --origin out")
    if secret and not (regret or fresh):
        raise click.UsageError("--secret draws the shapes of --regret or --fresh; give one of them")
    if kinds and address is None:
        raise click.UsageError("--gpu goes with --ray: without it this machine's GPU tunes")
    if address is not None and (regret or budget_seconds):
        raise click.UsageError("--ray: leave --regret and --budget-seconds out")
    # a wrong name need not wait for torch
    chosen = catalog.solutions_named((*names, *solutions))
    jobs = [
        (solution, [] if fresh or regret else _workloads(catalog, solution.definition, workloads, origin))
        for solution in chosen
    ]
    settings = TuneSettings(rounds, iterations, timeout, budget_seconds)
    if address is not None:
        from kernelderby.cli.cluster import tune_on_cluster

        if fresh:
            secret, jobs = _drawn(catalog, chosen, fresh, secret)
        found, left = tune_on_cluster(catalog, address, kinds, settings, jobs, bool(fresh), as_json)
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
    with exclusive(machine, root), _progress(sum(len(some) for _, some in jobs), as_json) as advance:
        results = tune(catalog, machine, settings, jobs, advance, bool(fresh))
    if as_json:
        say_json(
            {"gpu": machine.name, "protocol": machine.protocol, "solutions": [result.to_json() for result in results]}
        )
    else:
        _tell([(machine, result) for result in results], secret if fresh else "", as_json)
    if any(result.failed for result in results):
        sys.exit(1)


def _tell(found: list[tuple[Any, Any]], secret: str, as_json: bool) -> None:
    """Results, each with its machine. secret: of fresh shapes."""
    if as_json:
        say_json([{"gpu": machine.name, "protocol": machine.protocol, **result.to_json()} for machine, result in found])
        return
    for machine, result in found:
        _print(machine, [result])
    if secret:
        say(f"secret of the shapes: {secret} (--secret draws them again)")


def _regret(
    catalog: Any, machine: Any, settings: Any, chosen: list[Any], count: int, secret: str, as_json: bool
) -> None:
    import sys

    from kernelderby.measure.machine.probe import exclusive
    from kernelderby.measure.tune.regret import regrets

    secret, jobs = _drawn(catalog, chosen, count, secret)
    with exclusive(machine, catalog.root), _progress(sum(len(some) for _, some in jobs), as_json) as advance:
        results = regrets(catalog, machine, settings, jobs, advance)
    if as_json:
        found = [result.to_json() for result in results]
        say_json({"gpu": machine.name, "protocol": machine.protocol, "secret": secret, "solutions": found})
    else:
        for result in results:
            _print_regret(machine, result)
        say(f"secret of the shapes: {secret} (--secret draws them again)")
    if any(result.failed or not result.holds for result in results):
        sys.exit(1)


def _drawn(catalog: Any, chosen: list[Any], count: int, secret: str) -> tuple[str, list[Any]]:
    """The secret, and each solution with its fresh shapes."""
    from kernelderby.measure.judge.secret import drawn
    from kernelderby.measure.run.fresh import fresh_workloads

    secret = secret or drawn()
    shapes = fresh_workloads(catalog, [solution.name for solution in chosen], (), secret, count)
    return secret, [(solution, shapes[solution.definition]) for solution in chosen]


def _print_regret(machine: Any, result: Any) -> None:
    from statistics import fmean

    from kernelderby.report import text
    from kernelderby.report.model import Column, Report, Table, TableCell

    columns = (Column("shape", "left"), *map(Column, ("chosen us", "best us", "regret")), Column("best", "left"))
    rows = tuple(
        (
            TableCell(one.shape),
            TableCell("failed" if one.chosen_us is None else f"{one.chosen_us:.2f}"),
            TableCell(f"{one.best_us:.2f}"),
            TableCell("" if one.share is None else f"{one.share:.1%}"),
            TableCell("as chosen" if one.best == one.chosen else _config_text(one.best)),
        )
        for one in sorted(result.shapes, key=lambda one: -(one.share if one.share is not None else 9.0))
    )
    shares = result.shares
    summary = (
        f"mean {fmean(shares):.1%} (at most 3 %), worst {max(shares):.1%} (at most 10 %)" if shares else "no times"
    )
    notes = [
        f"regret: {summary}",
        *(f"failed {line}" for line in result.failed),
        *(f"no time: {shape}" for shape in result.unmeasured),
        f"every time is in {result.log}",
    ]
    title = f"{result.solution} on {machine.name}, {machine.protocol}"
    table = Table("What the choice costs on fresh shapes", columns, rows, key_columns=5)
    say(text.render(Report(title, (), (table,), tuple(notes)), width=text_width()))


def _workloads(catalog: Any, definition: str, wanted: tuple[str, ...], origin: tuple[str, ...]) -> list[Any]:
    from kernelderby.catalog.selection import of_origin, select_workloads

    catalog.check_origins(origin)
    return select_workloads(of_origin(catalog.workloads(definition), origin), wanted)


def _progress(steps: int, quiet: bool) -> Any:
    from kernelderby.measure.run.progress import bar

    return bar("tuning", steps, quiet)


def _print(machine: Any, results: list[Any]) -> None:
    from kernelderby.report import text
    from kernelderby.report.model import Column, Report, Table, TableCell

    columns = (
        Column("key", "left"),
        Column("workloads"),
        Column("us"),
        Column("gain"),
        Column("configuration", "left"),
    )
    for result in results:
        rows = tuple(
            (
                TableCell(one.key),
                TableCell(str(one.workloads)),
                TableCell("" if one.us is None else f"{one.us:.2f}"),
                TableCell("" if one.gain is None else f"{one.gain:.3f}"),
                TableCell(_shown(one)),
            )
            for one in result.choices
        )
        notes = [f"failed {line}" for line in result.failed]
        if result.left_over:
            notes.append(
                f"not reached within the budget: {counted(len(result.left_over), 'workload')}: "
                f"{', '.join(result.left_over[:4])}{' ...' if len(result.left_over) > 4 else ''}"
            )
        where = f"wrote {result.path}; `derby pack` packs it" if result.path else "nothing was written"
        notes.append(f"{where}; every time is in {result.log}")
        say(
            text.render(
                Report(
                    f"{result.solution} on {machine.name}, {machine.protocol}",
                    (),
                    (Table("Fastest configurations", columns, rows, key_columns=5),),
                    tuple(notes),
                ),
                width=text_width(),
            )
        )


def _shown(choice: Any) -> str:
    config = _config_text(choice.config or {})
    return " ".join(part for part in (config, f"({choice.note})" if choice.note else "") if part)


def _config_text(config: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())
