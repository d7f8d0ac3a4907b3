"""derby check: are the solutions right?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from kernelderby.cli.options import (
    SECONDS,
    DerbyCommand,
    check_names,
    count_from,
    definitions_option,
    fresh_option,
    origin_option,
    root_option,
    secret_option,
    solutions_option,
    workloads_option,
)
from kernelderby.cli.output import Output, output_options


@click.command(cls=DerbyCommand)
@click.argument("names", metavar="[SOLUTION]...", nargs=-1)
@solutions_option
@definitions_option
@workloads_option
@origin_option
@click.option("--seeds", type=count_from(1), default=1, show_default=True, help="Contents per case.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), help="Default: the GPU where there is one.")
@click.option("--timeout", type=SECONDS, default=600, show_default=True, help="Seconds for each case of a solution.")
@fresh_option
@secret_option
@output_options("check", tables=("cases",))
@root_option
def command(
    names: tuple[str, ...],
    solutions: tuple[str, ...],
    definitions: tuple[str, ...],
    workloads: tuple[str, ...],
    origin: tuple[str, ...],
    seeds: int,
    device: str | None,
    timeout: float,
    fresh: int,
    secret: str,
    root: Path,
    output: Output,
) -> None:
    """Correctness of solutions (default: all; SOLUTION is the same as --solutions): on a GPU at full shapes, on a CPU
    at small ones, Triton in its interpreter. --workloads and --origin are for a GPU only.

    Exit code 1 when one fails, when one that was named is skipped, when a definition's own code fails, and when
    nothing was checked. --fresh takes shapes that no file holds. A failing check prints the secret of its inputs;
    --secret draws them again.
    """
    from kernelderby.catalog import Catalog
    from kernelderby.measure.judge.secret import drawn
    from kernelderby.measure.run.checks import plan_checks, run_checks
    from kernelderby.measure.run.progress import bar
    from kernelderby.report.checks import PASSED, checks_answer
    from kernelderby.report.plain import plain

    catalog = Catalog.open(root)
    solutions = tuple(dict.fromkeys((*names, *solutions)))
    check_names(catalog, solutions, definitions)
    machine = _machine(root, device)
    secret = secret or drawn()
    plan = plan_checks(catalog, machine, solutions, definitions, workloads, seeds, origin, fresh, secret)
    with bar("checking", plan.steps, quiet=output.is_json) as advance:
        results = run_checks(
            catalog,
            machine,
            plan,
            timeout,
            lambda result: advance(plain(f"{result.solution} on {result.case}: {result.status}")),
            secret,
        )
    output.emit(checks_answer(machine.name, results, plan.skipped, plan.broken, secret, fresh))
    was_skipped = any(name in plan.skipped for name in solutions)
    if not results or was_skipped or plan.broken or any(result.status != PASSED for result in results):
        sys.exit(1)


def _machine(root: Path, device: str | None) -> Any:
    from kernelderby.errors import DerbyError
    from kernelderby.measure.machine.probe import find_machine

    if device != "cpu":
        machine = find_machine(root, "cuda")
        if machine.gpu:
            return machine
        if device == "cuda":
            raise DerbyError(f"--device cuda: {machine.gpu_missing}; leave it out to check on the CPU")
        if machine.gpu_fails:  # a check on the CPU is another check: nobody should take it for one of the GPU
            raise DerbyError(f"{machine.gpu_missing}; mend that, or ask for a check on the CPU with --device cpu")
    return find_machine(root, "cpu")
