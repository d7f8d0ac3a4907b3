"""derby check: are the solutions right?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from kernelderby.cli.options import (
    FILE,
    SECONDS,
    Count,
    DerbyCommand,
    check_names,
    definitions_option,
    for_option,
    fresh_option,
    kinds_option,
    origin_option,
    ray_option,
    root_option,
    secret_option,
    shape_option,
    solutions_option,
    workloads_option,
)
from kernelderby.cli.output import Output, output_options


@click.command(cls=DerbyCommand)
@click.argument("names", metavar="[SOLUTION|OPERATOR|FILE.py]...", nargs=-1)
@solutions_option
@definitions_option
@workloads_option
@origin_option
@for_option
@shape_option
@click.option("--seeds", type=Count(1), default=1, show_default=True, help="Input draws for each case.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), help="Default: the GPU where there is one.")
@click.option("--timeout", type=SECONDS, default=600, show_default=True, help="Seconds for each case of a solution.")
@click.option("--quick", is_flag=True, help="On a CPU: only the first case of each operator.")
@click.option("--dump", type=FILE, help="Inputs, outputs and reference of the first failing case, as .safetensors.")
@click.option(
    "--sanitize", is_flag=True, help="Also under compute-sanitizer: a line a finding, at the kernel's source line. GPU."
)
@click.option("--details", is_flag=True, help="Every case, also of more than three operators.")
@fresh_option
@secret_option
@ray_option
@kinds_option
@output_options("check", tables=("cases",))
@root_option
def command(
    names: tuple[str, ...],
    solutions: tuple[str, ...],
    definitions: tuple[str, ...],
    workloads: tuple[str, ...],
    origin: tuple[str, ...],
    operator: str | None,
    shapes: tuple[str, ...],
    seeds: int,
    device: str | None,
    timeout: float,
    quick: bool,
    dump: Path | None,
    sanitize: bool,
    details: bool,
    fresh: int,
    secret: str,
    address: str | None,
    kinds: tuple[str, ...],
    root: Path,
    output: Output,
) -> None:
    """Correctness of solutions (default: all; SOLUTION is the same as --solutions): on a GPU at full shapes, on a CPU
    at small ones, Triton in its interpreter. --workloads and --origin are for a GPU only.

    Exit code 1 if a solution fails, if a named solution is skipped, if an operator's own code fails, or if
    nothing was checked. --fresh takes shapes that no file holds. A failing check prints the secret of its inputs;
    --secret draws them again. FILE.py (or FILE.py::function) is a kernel of yours that is not in the set; its run()
    takes the operator's inputs, and its outputs if it writes into them. --shape checks there, on a CPU too.

    \b
    derby check derby_rms_norm
    derby check my_kernel.py --for rms_norm --shape num_tokens=7,hidden_size=4096
    """
    if address is None:
        from kernelderby.measure.machine.environment import without_gpu
        from kernelderby.measure.wire.early import begin_judging

        on_cpu = device == "cpu" or (device is None and bool(without_gpu()))
        read = [Path(name.partition("::")[0]).parent for name in names if name.partition("::")[0].endswith(".py")]
        written = [dump.absolute().parent] if dump else []
        chosen = (*names, *solutions)
        begin_judging(root, written, read, not on_cpu, on_cpu, sanitize, lambda: _look_up(root, chosen, definitions))
    from kernelderby.api.adhoc import adhoc_set, operator_of_file
    from kernelderby.api.machine import check
    from kernelderby.catalog import Catalog

    catalog = Catalog.open(root)
    options: dict[str, Any] = {
        **{"seeds": seeds, "device": device, "timeout": timeout},
        **{"fresh": fresh, "secret": secret, "quick": quick, "sanitize": sanitize},
    }
    files = [name for name in names if name.partition("::")[0].endswith(".py")]
    if files or shapes:
        if len(names) > 1 or solutions or definitions or workloads or origin or fresh:
            raise click.UsageError("FILE.py and --shape take one file, solution or operator, and no other choice")
        if not names:
            raise click.UsageError("--shape goes with a FILE.py, a solution or an operator")
        if files:
            name, rivals = operator_of_file(catalog, files[0], operator), []
        elif names[0] in catalog.definitions:
            name, rivals = names[0], catalog.solutions_of(names[0])
        else:
            rivals = [catalog.solution(names[0])]
            name = rivals[0].definition
        with adhoc_set(catalog, name, files[0] if files else "", shapes, rivals) as adhoc:
            named = (adhoc.solution.name,) if adhoc.solution else tuple(each.name for each in rivals)
            planned = check(adhoc.catalog, named, (name,), **options)
            _run(adhoc.at_shapes(planned), () if len(named) > 1 else named, details, dump, output)
        return
    if operator:
        raise click.UsageError("--for goes with a FILE.py")
    definitions = (*definitions, *(name for name in names if name in catalog.definitions))
    solutions = tuple(dict.fromkeys((*(name for name in names if name not in catalog.definitions), *solutions)))
    solutions, definitions = check_names(catalog, solutions, definitions)
    if address is not None:
        from kernelderby.cli.cluster import check_on_cluster

        given = {"workloads": workloads, "origins": origin, "seeds": seeds, "timeout": timeout, "fresh": fresh}
        check_on_cluster(catalog, address, kinds, device, solutions, definitions, given, secret, output)
        return
    if kinds:
        raise click.UsageError("--gpu goes with --ray; --device chooses on this machine")
    planned = check(catalog, solutions, definitions, workloads, origin, **options)
    _run(planned, solutions, details, dump, output)


def _look_up(root: Path, names: tuple[str, ...], definitions: tuple[str, ...]) -> None:
    """DerbyError for a name that the set does not have; before torch is imported, which takes seconds."""
    from kernelderby.catalog import Catalog

    places = (*root.glob("definitions/*/*"), *root.glob("solutions/*/*/*/*"))
    known = {place.name.partition(".")[0] for place in places}
    if {*names, *definitions} <= known:
        return
    catalog = Catalog.open(root)
    files = [name for name in names if name.partition("::")[0].endswith(".py")]
    solutions = [name for name in names if name not in files and name not in catalog.definitions]
    check_names(catalog, solutions, definitions)


def _run(planned: Any, named: tuple[str, ...], details: bool, dump: Path | None, output: Output) -> None:
    """Exit code 1 where it has not passed. named: solutions that must not be skipped."""
    from kernelderby.measure.run.progress import bar
    from kernelderby.report.plain import plain

    with bar("checking", planned.steps, quiet=output.is_json) as advance:

        def told(result: Any) -> None:
            advance(plain(f"{result.solution} on {result.case}: {result.status}"))

        answer = planned.run(told, details or None, dump)
    output.emit(answer)
    if not planned.has_passed(answer, named):
        sys.exit(1)
