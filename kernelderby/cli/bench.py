"""derby bench: measure solutions on this GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kernelderby.cli.measuring import observed, print_plan
from kernelderby.cli.options import (
    FILE,
    SECONDS,
    Count,
    DerbyCommand,
    check_names,
    definitions_option,
    for_option,
    fresh_option,
    json_option,
    kinds_option,
    origin_option,
    ray_option,
    secret_option,
    shape_option,
    solutions_option,
    workloads_option,
    written_root_option,
)
from kernelderby.cli.output import say, say_json, text_width, warn
from kernelderby.store.counts import counted


@click.command(cls=DerbyCommand)
@click.argument("file", metavar="[FILE.py]", required=False, default="")
@for_option
@shape_option
@click.option("--record", is_flag=True, help="FILE.py and --shape: into the set (default: under reports/bench/).")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", help="cpu: plain Python solutions alone.")
@solutions_option
@definitions_option
@workloads_option
@origin_option
@click.option("--rounds", type=Count(1), default=5, show_default=True, help="Turns of each solution.")
@click.option(
    "--most-rounds",
    type=Count(1),
    default=10,
    show_default=True,
    help="Maximum rounds for the two fastest; they stop when the interval of their ratio is below 1 %.",
)
@click.option(
    "--iterations",
    type=Count(2),
    default=10,
    show_default=True,
    help="Timed calls in a turn; slow solutions get fewer.",
)
@click.option(
    "--timeout",
    type=SECONDS,
    default=300,
    show_default=True,
    help="Seconds for each step of a solution: check with compilation, one turn.",
)
@click.option("--again", is_flag=True, help="Measure again where a row exists.")
@click.option("--this-gpu", is_flag=True, help="Measure again where only another GPU of this kind has rows.")
@click.option("--together", is_flag=True, help="If a solution has no row, measure all again, so that rows pair.")
@click.option("--plan", "--dry-run", "only_plan", is_flag=True, help="Measure nothing; show the plan and its time.")
@click.option(
    "--budget",
    type=SECONDS,
    help="Seconds for the whole run: operators by importance, a sample of shapes each; the last may end later.",
)
@click.option("--sealed", is_flag=True, help="Commit to the secret before, chain all rows; see `derby verify`.")
@click.option("--sign", type=FILE, metavar="KEY", help="With --sealed: sign it with this SSH or minisign secret key.")
@fresh_option
@secret_option
@ray_option
@kinds_option
@written_root_option
@json_option
def command(
    file: str,
    operator: str | None,
    shapes: tuple[str, ...],
    record: bool,
    device: str,
    solutions: tuple[str, ...],
    definitions: tuple[str, ...],
    workloads: tuple[str, ...],
    origin: tuple[str, ...],
    rounds: int,
    most_rounds: int,
    iterations: int,
    timeout: float,
    again: bool,
    this_gpu: bool,
    together: bool,
    only_plan: bool,
    budget: float | None,
    sealed: bool,
    sign: Path | None,
    fresh: int,
    secret: str,
    address: str | None,
    kinds: tuple[str, ...],
    root: Path,
    as_json: bool,
) -> None:
    """Measure solutions on this GPU, or on a Ray cluster (--ray), and record the traces.

    A killed run resumes where it stopped: a solution with a row is measured again only if its code changed.
    Solutions measured in one run pair in `derby rank`; --together measures the others again beside a new one.
    With FILE.py, --for or --shape: a kernel of yours or shapes that no file lists, beside the set's solutions of
    that operator; the ranking follows at once.

    \b
    derby bench --definitions rms_norm
    derby bench my_kernel.py --for rms_norm --shape num_tokens=64,hidden_size=4096
    """
    if address is None:
        _enclose(root, file, bool(file or shapes or operator), record, sign, device)
    from kernelderby.api.adhoc import adhoc_set, operator_of_file
    from kernelderby.api.machine import plain_solutions
    from kernelderby.api.trace_set import TraceSet
    from kernelderby.catalog import Catalog
    from kernelderby.errors import DerbyError
    from kernelderby.measure.judge.secret import drawn
    from kernelderby.measure.machine.probe import find_machine
    from kernelderby.measure.run.fresh import fresh_workloads
    from kernelderby.measure.run.plan import Settings, make_plan
    from kernelderby.measure.run.runner import Runner

    if sign is not None and not sealed:
        raise click.UsageError("--sign signs a sealed session; add --sealed")
    if sealed and secret:
        raise click.UsageError("--sealed draws a secret that nobody knows before; leave --secret out")
    if file and not file.partition("::")[0].endswith(".py"):
        raise click.UsageError(
            f"{file}: is no FILE.py. An option takes one value: write several as a,b or repeat the option."
        )
    catalog = Catalog.open(root)
    solutions, definitions = check_names(catalog, solutions, definitions)
    is_adhoc = bool(file or shapes or operator)
    if is_adhoc and (workloads or origin or fresh or len(definitions) > 1):
        raise click.UsageError("FILE.py, --for and --shape are of one operator; leave the other choices out")
    if record and not is_adhoc:
        raise click.UsageError("--record goes with FILE.py or --shape; other rows are always recorded")
    if sealed and is_adhoc:
        raise click.UsageError("--sealed is for rows of the set; leave FILE.py, --for and --shape out")
    if shapes and not (file or operator or definitions):
        raise click.UsageError("--shape: of which operator? add --for OPERATOR")
    if kinds and address is None:
        raise click.UsageError("--gpu goes with --ray: without it this machine's GPU measures")
    if address is not None:
        from kernelderby.cli.cluster import bench_on_cluster

        if budget or sealed or is_adhoc:
            raise click.UsageError("--ray: leave --budget, --sealed, FILE.py, --for and --shape out")
        of_cluster = Settings(
            *(rounds, iterations, timeout, again, together, most_rounds, this_gpu, secret or drawn(), bool(secret))
        )
        shapes_of = fresh_workloads(catalog, solutions, definitions, of_cluster.secret, fresh) if fresh else None

        def planned(machine: Any, skipped: Any) -> Any:
            return make_plan(
                *(catalog, machine, of_cluster, solutions, definitions, workloads, origin, shapes_of), skipped=skipped
            )

        bench_on_cluster(catalog, address, kinds, of_cluster, planned, solutions, definitions, only_plan, as_json)
        return
    machine = find_machine(root, device)
    if machine.gpu is None and device == "cuda":
        raise DerbyError(f"{machine.gpu_missing}, so nothing can be measured; use `derby check`, which runs on the CPU")
    if not as_json:
        say(f"{machine.name}: trying the libraries that solutions need")
    settings = Settings(
        rounds,
        iterations,
        timeout,
        again,
        together,
        most_rounds,
        this_gpu,
        secret or drawn(),
        bool(secret),
        budget,
        sealed,
    )

    def measured(catalog: Catalog, solutions: tuple[str, ...], definitions: tuple[str, ...]) -> None:
        drawn_shapes = fresh_workloads(catalog, solutions, definitions, settings.secret, fresh) if fresh else None
        if device == "cpu":
            solutions = solutions or tuple(plain_solutions(catalog, definitions))
        plan = make_plan(catalog, machine, settings, solutions, definitions, workloads, origin, drawn_shapes)
        if not as_json:
            print_plan(machine, plan)
        if only_plan:
            if as_json:
                say_json({"to_measure": plan.pairs, "seconds": plan.seconds, "skipped": plan.skipped})
            return
        _tell(machine, settings, plan, _run(Runner, catalog, machine, settings, plan, as_json, sign), as_json)

    if not is_adhoc:
        measured(catalog, solutions, definitions)
        return
    name = operator or next(iter(definitions), None) or operator_of_file(catalog, file, operator)
    rivals = [each for each in catalog.solutions_of(name) if not solutions or each.name in solutions]
    with adhoc_set(catalog, name, file, shapes, rivals) as adhoc:
        measured(adhoc.catalog, (), (name,))
        if only_plan:
            return
        kept = adhoc.keep_rows(record)
        if not as_json and kept:
            say(TraceSet(Catalog.open(adhoc.catalog.root)).rank(name).to_text(text_width(), False))
            warn([f"{path}: rows added" for path in kept] + ([] if record else ["--record puts them into the set"]))


def _enclose(root: Path, file: str, is_adhoc: bool, record: bool, key: Path | None, device: str) -> None:
    """The fence around what definitions do here. --record adds to the set."""
    from kernelderby.measure.machine.environment import without_gpu
    from kernelderby.measure.wire.early import begin_judging

    if device != "cpu" and without_gpu():  # it ends before any of them runs
        return
    written = [root if record else root / ("reports" if is_adhoc else "traces")]
    read = [Path(file.partition("::")[0]).parent] if file else []
    begin_judging(root, written, [*read, key] if key else read, device != "cpu")


def _tell(machine: Any, settings: Any, plan: Any, rows: list[Any], as_json: bool) -> None:
    if as_json:
        say_json(
            {
                "gpu": machine.name,
                "protocol": machine.protocol,
                "secret": settings.secret,
                "skipped": plan.skipped,
                "already_measured": plan.settled,
                "rows": [row.to_trace() for row in rows],
            }
        )
    else:
        failed = sum(row.status != "passed" for row in rows)
        say(f"{counted(len(rows), 'row')} written: {len(rows) - failed} measured, {failed} failed")
        say(f"secret of the session: {settings.secret} (--secret draws its inputs again)")


def _run(
    runner_class: Any, catalog: Any, machine: Any, settings: Any, plan: Any, as_json: bool, key: Path | None
) -> list[Any]:
    with observed(plan.pairs, plan.seconds, as_json) as observer:
        runner = runner_class(catalog, machine, settings, observer)
        rows: list[Any] = runner.run(plan)
    if runner.seal is not None:
        from kernelderby.measure.run.seal import sign

        signed = f", signed: {sign(runner.seal, key).name}" if key else ""
        warn([f"sealed: {runner.seal}{signed} (derby verify looks at it)"])
    return rows
