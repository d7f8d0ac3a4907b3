"""derby check: are the solutions right?"""

from __future__ import annotations

from pathlib import Path

import click

from kernelderby.cli import json_option, root_option
from kernelderby.cli.names import NamesCommand


@click.command(cls=NamesCommand)
@click.argument("solutions", nargs=-1)
@click.option("--definition", "definitions", multiple=True, metavar="D...",
              help="Only solutions of these.")
@click.option("--workloads", multiple=True, metavar="W...",
              help="Only these: starts of uuids, or sizes of an axis (GPU only).")
@click.option("--seeds", type=click.IntRange(min=1), help="Contents per case (default: 1 on a GPU, 2 on a CPU).")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), help="Default: the GPU where there is one.")
@click.option("--timeout", type=float, default=600, show_default=True, help="Seconds for each case of a solution.")
@root_option
@json_option
def command(solutions: tuple[str, ...], definitions: tuple[str, ...], workloads: tuple[str, ...], seeds: int | None,
            device: str | None, timeout: float, root: Path, as_json: bool) -> None:
    """Correctness of SOLUTIONS (default: all): on a GPU at full shapes, on a CPU at small ones.

    On a CPU, Triton solutions run in Triton's interpreter. Exit code 1 when one fails.
    """
    import json
    import sys

    from kernelderby.catalog import Catalog
    from kernelderby.measure.checks import plan_checks, run_checks
    from kernelderby.trace import Status

    catalog = Catalog.open(root)
    for find, names in ((catalog.solution, solutions), (catalog.definition, definitions)):
        for name in names:  # a wrong name need not wait for torch
            find(name)
    machine = _machine(root, device)
    plan = plan_checks(catalog, machine, solutions, definitions, workloads, seeds)
    with _progress(plan.steps, as_json) as advance:
        results = run_checks(catalog, machine, plan, timeout,
                             lambda result: advance(f"{result.solution} on {result.case}: {result.status}"))
    if as_json:
        click.echo(json.dumps({"device": machine.name, "results": [result.to_json() for result in results],
                               "skipped": plan.skipped}, indent=2))
    else:
        _print(machine.name, results, plan.skipped)
    if any(result.status is not Status.PASSED for result in results):
        sys.exit(1)


def _machine(root: Path, device: str | None):
    from kernelderby.errors import DerbyError
    from kernelderby.measure.machine.probe import find_machine

    if device != "cpu":
        machine = find_machine(root, "cuda")
        if machine.gpu:
            return machine
        if device == "cuda":
            raise DerbyError(f"--device cuda: {machine.gpu_missing}; leave it out to check on the CPU")
    return find_machine(root, "cpu")


def _progress(steps: int, quiet: bool):
    from kernelderby.measure.progress import bar

    return bar("checking", steps, quiet)


def _print(machine: str, results: list, skipped: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 200  # a file or a pipe: do not fold the table at 80
    for definition in dict.fromkeys(result.definition for result in results):
        cells = {(result.case, result.solution): result for result in results if result.definition == definition}
        solutions = list(dict.fromkeys(name for _, name in cells))
        table = Table("case", *solutions, box=None, pad_edge=False)
        for case in dict.fromkeys(case for case, _ in cells):
            table.add_row(case, *(_cell(cells[case, name]) for name in solutions))
        console.print(f"{definition} on {machine}: share of elements within the tightest tolerance")
        console.print(table, soft_wrap=False)
    failed = [result for result in results if result.status != "passed"]
    for (solution, status), cases in _grouped(failed).items():
        more = f" and {len(cases) - 1} more cases" if len(cases) > 1 else ""
        console.print(f"FAILED {solution} on {cases[0].case}{more}: {status}: {cases[0].message}", style="red")
    for name, reason in skipped.items():
        console.print(f"skipped {name}: {reason}", style="yellow")
    console.print(f"{len(results) - len(failed)} passed, {len(failed)} failed, {len(skipped)} solutions skipped")


def _grouped(results: list) -> dict[tuple[str, str], list]:
    groups: dict[tuple[str, str], list] = {}
    for result in results:
        groups.setdefault((result.solution, result.status), []).append(result)
    return groups


def _cell(result) -> str:
    ratio = "" if result.matched_ratio is None else f"{result.matched_ratio:.4f}"
    return ratio if result.status == "passed" else f"{result.status} {ratio}".strip()
