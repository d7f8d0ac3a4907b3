"""derby bench: measure solutions on this GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from kernelderby.cli import options
from kernelderby.cli.measuring import observed, print_plan, print_rows
from kernelderby.cli.options import FILE, SECONDS, Cluster, Count, DerbyCommand, Draw, Wanted, expect_python
from kernelderby.cli.output import say, say_json, text_width, warn

Words = tuple[str, str | None, tuple[str, ...]]  # FILE.py, its operator, --shape


@click.command(cls=DerbyCommand)
@click.argument("file", metavar="[FILE.py]", required=False, default="")
@options.for_option
@options.shape_option
@click.option("--record", is_flag=True, help="Keep rows of FILE.py and --shape in the set (default: reports/bench/).")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", help="cpu: plain Python solutions only.")
@options.choice_options()
@click.option("--rounds", type=Count(1), default=5, help="Rounds: each solution takes a turn.")
@click.option(
    "--most-rounds",
    type=Count(1),
    default=10,
    help="Maximum rounds for the two fastest. They stop when the interval of their ratio is narrower than 1 %.",
)
@click.option("--iterations", type=Count(2), default=10, help="Timed calls in a turn; slow solutions get fewer.")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=SECONDS,
    default=300,
    help="Seconds for each step of a solution: compilation and check, or one turn.",
)
@click.option("--again", is_flag=True, help="Measure again even where a row exists.")
@click.option("--this-gpu", is_flag=True, help="Measure again where the rows are from another GPU of this kind.")
@click.option("--together", is_flag=True, help="If one solution has no row, measure all, so that times pair.")
@click.option("--plan", "--dry-run", "only_plan", is_flag=True, help="Only show what would run, and for how long.")
@click.option(
    "--budget",
    "budget_seconds",
    type=SECONDS,
    help="Seconds for the whole run: the most important operators first, a sample of shapes each.",
)
@click.option("--sealed", is_flag=True, help="Commit to the secret before the run and chain all rows (`derby verify`).")
@click.option("--sign", type=FILE, metavar="KEY", help="With --sealed: the SSH or minisign secret key that signs.")
@options.draw_options
@options.cluster_options
@options.written_root_option
@options.json_option
def command(
    file: str,
    operator: str | None,
    shapes: tuple[str, ...],
    record: bool,
    device: str,
    choice: Wanted,
    only_plan: bool,
    sign: Path | None,
    draw: Draw,
    cluster: Cluster,
    root: Path,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure solutions on this GPU, or on a Ray cluster (--ray), and record the rows.

    A killed run resumes where it stopped. A solution with a row is measured again only if its code changed.
    `derby rank` pairs the times of solutions that ran together; --together measures the old ones beside a new one.

    FILE.py is a kernel of yours, --shape a shape that no file lists. They race against the set's solutions of that
    operator, and the ranking follows at once.

    \b
    derby bench --definitions rms_norm
    derby bench my_kernel.py --for rms_norm --shape num_tokens=64,hidden_size=4096
    """
    from kernelderby.authoring.scratch import is_file
    from kernelderby.store.names import OPERATOR, names_in

    expect_python([file])
    is_adhoc = bool(file or shapes or operator)
    sealed = settings["sealed"]
    others = choice.workloads or choice.origin or draw.fresh or len(choice.definitions) > 1
    word = "--definitions" if file in names_in(root, OPERATOR) else "--solutions"
    refused = {
        "--sign signs a sealed session; add --sealed": sign is not None and not sealed,
        "--sealed draws a secret that nobody knows before; leave --secret out": sealed and draw.secret,
        f"{file}: is no FILE.py; write {word} {file}. An option takes one value: write several as a,b or repeat it.": (
            file and not is_file(file)
        ),
        "FILE.py, --for and --shape choose one operator; leave the other choices out": is_adhoc and others,
        "--record goes with FILE.py or --shape; other rows are always recorded": record and not is_adhoc,
        "--sealed is for rows of the set; leave FILE.py, --for and --shape out": sealed and is_adhoc,
        "--shape: of which operator? add --for OPERATOR": shapes and not (file or operator or choice.definitions),
    }
    for message, is_so in refused.items():
        if is_so:
            raise click.UsageError(message)
    if sign is not None:
        from kernelderby.measure.run.seal import signature_of

        signature_of(sign, sign)  # a key that cannot be read ends a run before its hours, not after them
    words = (file, operator or next(iter(choice.definitions), None), shapes) if is_adhoc else None
    if not cluster.address:
        _enclose(root, words, record, sign, device)
    from kernelderby.catalog import Catalog
    from kernelderby.measure.judge.secret import drawn
    from kernelderby.measure.run.fresh import fresh_workloads
    from kernelderby.measure.run.plan import Settings, make_plan

    catalog = Catalog.open(root)
    choice = choice.resolved(catalog)
    cluster.expect_kinds(": without it this machine's GPU measures")
    chosen = Settings(**settings, secret=draw.secret or drawn(), is_secret_given=bool(draw.secret))

    def drawn_of(catalog: Any, choice: Wanted) -> Any:
        names = choice.solutions, choice.definitions
        return fresh_workloads(catalog, *names, chosen.secret, draw.fresh) if draw.fresh else None

    def planned(catalog: Any, machine: Any, choice: Wanted) -> Any:
        return make_plan(catalog, machine, chosen, *choice, drawn_of(catalog, choice))

    if not cluster.address:
        _here(catalog, chosen, choice, words, record, device, planned, only_plan, sign, as_json)
        return
    from kernelderby.cli.cluster import bench_on_cluster

    if chosen.budget_seconds or chosen.sealed or is_adhoc:
        raise click.UsageError("--ray: leave --budget, --sealed, FILE.py, --for and --shape out")
    shapes_of = drawn_of(catalog, choice)  # before Ray's own processes and threads are there

    def planned_there(machine: Any, skipped: Any) -> Any:
        return make_plan(catalog, machine, chosen, *choice, shapes_of, skipped)

    bench_on_cluster(catalog, cluster, chosen, planned_there, choice, only_plan, as_json)


def _here(
    catalog: Any,
    settings: Any,
    choice: Wanted,
    adhoc_words: Words | None,
    record: bool,
    device: str,
    planned: Callable[..., Any],
    only_plan: bool,
    sign: Path | None,
    as_json: bool,
) -> None:
    """On this machine. adhoc_words: where any of them is given."""
    from kernelderby.api.adhoc import adhoc_set, expect_timed, operator_of
    from kernelderby.api.machine import plain_solutions
    from kernelderby.api.trace_set import TraceSet
    from kernelderby.catalog import Catalog
    from kernelderby.errors import DerbyError
    from kernelderby.measure.machine.probe import find_machine
    from kernelderby.store.files import expect_writable

    if adhoc_words and not only_plan:
        for place in ("traces", "workloads", "solutions") if record else ("reports/bench/traces",):
            expect_writable(catalog.root / place)  # before hours of measuring, not after them
    machine = find_machine(catalog.root, device)
    if machine.gpu is None and device == "cuda":
        raise DerbyError(f"{machine.gpu_missing}, so nothing can be measured; use `derby check`, which runs on the CPU")
    if not as_json:
        say(f"{machine.name}: trying the libraries that solutions need")

    def measured(catalog: Any, choice: Wanted) -> None:
        if device == "cpu" and not choice.solutions:
            choice = choice._replace(solutions=tuple(plain_solutions(catalog, choice.definitions)))
        for each in catalog.solutions_named(choice.solutions):
            expect_timed(each, device)
        plan = planned(catalog, machine, choice)
        if not as_json:
            print_plan(machine, plan, budget=settings.budget_seconds)
        if not only_plan:
            _tell(machine, settings, plan, _run(catalog, machine, settings, plan, as_json, sign), as_json)
        elif as_json:
            say_json({"to_measure": plan.pairs, "seconds": plan.seconds, "skipped": plan.skipped})

    if adhoc_words is None:
        measured(catalog, choice)
        return
    file, operator, shapes = adhoc_words
    name = operator_of(catalog, file, operator)
    rivals = [each for each in catalog.solutions_of(name) if not choice.solutions or each.name in choice.solutions]
    with adhoc_set(catalog, name, file, shapes, rivals) as adhoc:
        measured(adhoc.catalog, Wanted(definitions=(name,)))
        if only_plan:
            return
        kept = adhoc.keep_rows(record)
        if not as_json and kept:
            say(TraceSet(Catalog.open(adhoc.catalog.root)).rank(name).to_text(text_width(), False))
            warn([f"{path}: rows added" for path in kept] + ([] if record else ["--record puts them into the set"]))


def _enclose(root: Path, adhoc: Words | None, record: bool, key: Path | None, device: str) -> None:
    """The fence around what definitions do here. --record adds to the set."""
    from kernelderby.api.adhoc import expect_adhoc
    from kernelderby.measure.machine.environment import without_gpu
    from kernelderby.measure.wire.early import begin_judging

    if adhoc:
        expect_adhoc(root, *adhoc, device)
    if device != "cpu" and without_gpu():  # it ends before any of them runs
        return
    written = [root if record else root / ("reports" if adhoc else "traces")]
    read = [Path(adhoc[0].partition("::")[0]).parent] if adhoc and adhoc[0] else []
    begin_judging(root, written, [*read, key] if key else read, device != "cpu")


def _tell(machine: Any, settings: Any, plan: Any, rows: list[Any], as_json: bool) -> None:
    if not as_json:
        print_rows(rows, settings.secret)
        return
    about = {"gpu": machine.name, "protocol": machine.protocol, "secret": settings.secret, "skipped": plan.skipped}
    say_json(about | {"already_measured": plan.settled, "rows": [row.to_trace() for row in rows]})


def _run(catalog: Any, machine: Any, settings: Any, plan: Any, as_json: bool, key: Path | None) -> list[Any]:
    from kernelderby.measure.run.runner import Runner

    with observed(plan.pairs, plan.known_seconds, as_json, settings.budget_seconds) as observer:
        runner = Runner(catalog, machine, settings, observer)
        rows: list[Any] = runner.run(plan)
    if runner.seal is not None:
        from kernelderby.measure.run.seal import sign

        signed = f", signed: {sign(runner.seal, key).name}" if key else ""
        warn([f"sealed: {runner.seal}{signed} (derby verify looks at it)"])
    return rows
