"""derby check: are the solutions right?"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click

from kernelderby.cli import options
from kernelderby.cli.options import FILE, SECONDS, Cluster, Count, DerbyCommand, Draw, Wanted, expect_python
from kernelderby.cli.output import Output, output_options
from kernelderby.cli.progress import bar


@click.command(cls=DerbyCommand)
@click.argument("names", metavar="[SOLUTION|OPERATOR|FILE.py]...", nargs=-1)
@options.choice_options()
@options.for_option
@options.shape_option
@click.option("--seeds", type=Count(1), default=1, help="Input draws for each case.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), help="Default: the GPU if there is one.")
@click.option("--timeout", type=SECONDS, default=600, help="Seconds for each case of a solution.")
@click.option("--quick", is_flag=True, help="On a CPU: the first case of each operator only.")
@click.option("--dump", type=FILE, help="Inputs, outputs and reference of the first failing case, as .safetensors.")
@click.option(
    "--sanitize", is_flag=True, help="On a GPU: run compute-sanitizer too. Each finding names the kernel's source line."
)
@click.option("--details", is_flag=True, help="Show every case (default: only for three operators or fewer).")
@options.draw_options
@options.cluster_options
@output_options("check", tables=("cases",))
@options.root_option
def command(
    names: tuple[str, ...],
    choice: Wanted,
    operator: str | None,
    shapes: tuple[str, ...],
    device: str | None,
    dump: Path | None,
    sanitize: bool,
    details: bool,
    draw: Draw,
    cluster: Cluster,
    root: Path,
    output: Output,
    **settings: Any,
) -> None:
    """Compare solutions with the reference (default: all solutions; SOLUTION is the same as --solutions). A GPU takes
    the full shapes. A CPU takes small ones, with Triton in its interpreter; --workloads and --origin need a GPU.

    FILE.py (or FILE.py::function) is a kernel of yours outside the set. Its run() takes the operator's inputs, and its
    outputs if it writes into them.

    Exit code 1 if a solution fails, if a named solution is skipped, if an operator's own code fails, or if nothing
    was checked. A failing check prints the secret of its inputs; --secret draws them again.

    \b
    derby check derby_rms_norm
    derby check my_kernel.py --for rms_norm --shape num_tokens=7,hidden_size=4096
    """
    from kernelderby.authoring.scratch import is_file

    expect_python(names)
    files = [*filter(is_file, names)]
    is_adhoc = bool(files or shapes)
    if pieces := [name for name in names if re.fullmatch(r"\w+=\d+", name)]:
        raise click.UsageError(f"{pieces[0]}: is no name; write sizes with commas, such as --shape T=64,D=4096")
    if shapes and not names:
        raise click.UsageError("--shape goes with a FILE.py, a solution or an operator")
    if is_adhoc and (len(names) != 1 or any(choice) or draw.fresh):
        raise click.UsageError("FILE.py and --shape take one file, solution or operator, and no other choice")
    if operator and not files:
        raise click.UsageError(f"--for goes with a FILE.py{f', not with {names[0]!r}' if names else ''}")
    from kernelderby.api.adhoc import adhoc_set, expect_adhoc, operator_of

    if not cluster.address:
        from kernelderby.measure.machine.environment import without_gpu
        from kernelderby.measure.wire.early import begin_judging

        on_cpu = device == "cpu" or (device is None and bool(without_gpu()))
        read = [Path(file.partition("::")[0]).parent for file in files]
        written = [dump.absolute().parent] if dump else []
        chosen = (*names, *choice.solutions)
        begin_judging(
            *(root, written, read, not on_cpu, on_cpu, sanitize),
            lambda: (
                expect_adhoc(root, names[0], operator, shapes)
                if is_adhoc
                else _look_up(root, chosen, choice.definitions)
            ),
        )
    from kernelderby.api.machine import check
    from kernelderby.catalog import Catalog

    catalog = Catalog.open(root)
    settings |= {"device": device, "sanitize": sanitize, **draw._asdict()}
    if is_adhoc:
        name, rivals = operator_of(catalog, names[0], operator), []
        if not files:
            rivals = catalog.solutions_of(name) if names[0] == name else [catalog.solution(names[0])]
        with adhoc_set(catalog, name, files[0] if files else "", shapes, rivals) as adhoc:
            named = (adhoc.solution.name,) if adhoc.solution else tuple(each.name for each in rivals)
            planned = check(adhoc.catalog, named, (name,), **settings)
            _run(adhoc.at_shapes(planned), () if len(named) > 1 else named, details, dump, output)
        return
    operators = [name for name in names if name in catalog.definitions]
    choice = Wanted(
        tuple(dict.fromkeys((*(name for name in names if name not in operators), *choice.solutions))),
        (*choice.definitions, *operators),
        *choice[2:],
    ).resolved(catalog)
    if cluster.address:
        from kernelderby.cli.cluster import check_on_cluster

        given = {name: settings[name] for name in ("seeds", "timeout", "fresh")}
        check_on_cluster(catalog, cluster, device, choice, given, draw.secret, output)
        return
    cluster.expect_kinds("; --device chooses on this machine")
    _run(check(catalog, *choice, **settings), choice.solutions, details, dump, output)


def _look_up(root: Path, names: tuple[str, ...], definitions: tuple[str, ...]) -> None:
    """DerbyError for a name that the set does not have; before torch is imported, which takes seconds."""
    from kernelderby.catalog import Catalog

    places = (*root.glob("definitions/*/*"), *root.glob("solutions/*/*/*/*"))
    known = {place.name.partition(".")[0] for place in places}
    if {*names, *definitions} <= known:
        return
    catalog = Catalog.open(root)
    solutions = [name for name in names if name not in catalog.definitions]
    Wanted(tuple(solutions), definitions).resolved(catalog)


def _run(planned: Any, named: tuple[str, ...], details: bool, dump: Path | None, output: Output) -> None:
    """Exit code 1 where it has not passed. named: solutions that must not be skipped."""
    from kernelderby.report.plain import plain

    with bar("checking", planned.steps, quiet=output.is_json) as advance:

        def told(result: Any) -> None:
            advance(plain(f"{result.solution} on {result.case}: {result.status}"))

        answer = planned.run(told, details or None, dump)
    output.emit(answer)
    if not planned.has_passed(answer, named):
        sys.exit(1)
