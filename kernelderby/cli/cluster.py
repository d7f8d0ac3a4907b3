"""bench, check and tune over a Ray cluster, for those verbs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from kernelderby.cli.measuring import observed, print_plan, print_rows
from kernelderby.cli.options import Cluster, Wanted
from kernelderby.cli.output import say, say_json, warn
from kernelderby.cli.progress import bar
from kernelderby.errors import DerbyError


def _expect_ray() -> None:
    """DerbyError where it is not installed."""
    from importlib.util import find_spec

    if find_spec("ray") is None:
        raise DerbyError("--ray: Ray is not installed; pip install 'kernelderby[ray]'")


def bench_on_cluster(
    catalog: Any,
    on: Cluster,
    settings: Any,
    planned: Callable[..., Any],
    choice: Wanted,
    only_plan: bool,
    as_json: bool,
) -> None:
    """planned: of a machine, with what it skips. Exit code 1 when something of the plan is left without a row."""
    _expect_ray()
    from kernelderby.hardware import gpu_id
    from kernelderby.measure.cluster.bench import ClusterBench, one_writer
    from kernelderby.measure.cluster.pool import cluster
    from kernelderby.measure.run.progress import Observer

    class Told(Observer):
        """Whoever shows the run, once its size is known."""

        def __init__(self) -> None:
            self.to: Observer | None = None

        def note(self, line: str) -> None:
            self.to.note(line) if self.to else warn([line])

        def row(self, row: Any) -> None:
            if self.to:
                self.to.row(row)

    told = Told()
    with one_writer(catalog), cluster(on.address):
        kinds = [gpu_id(kind) for kind in on.kinds]
        run = ClusterBench(catalog, settings, kinds, planned, _chosen(catalog, choice), told)
        try:
            if not run.hosts:
                raise DerbyError(
                    f"--ray {on.address}: no GPU of the cluster can measure; add hosts (--gpu cpu: a trial)"
                )
            for kind, (machine, plan) in run.plans.items():
                if not as_json:
                    say(f"{run.hosts[kind]} x {machine.name}")
                    print_plan(machine, plan, run.hosts[kind])
            if only_plan:
                if as_json:
                    say_json({"kinds": [_plan_data(kind, run) for kind in run.plans]})
                return
            with observed(run.pairs, run.seconds, as_json) as told.to:
                left = run.run()
        finally:
            run.close()
    if as_json:
        rows = [row.to_trace() for row in run.rows]
        say_json({"secret": settings.secret, "left": left, "rows": rows})
    else:
        print_rows(run.rows, settings.secret)
    if left:
        warn([f"{left} of the plan have no row; the same command goes on"])
        sys.exit(1)


def tune_on_cluster(
    catalog: Any, on: Cluster, settings: Any, jobs: Sequence[Any], only_losses: bool, quiet: bool
) -> tuple[list[tuple[Any, Any]], list[str]]:
    """Results, each with its machine, and what no host has tuned, which is said."""
    _expect_ray()
    from kernelderby.hardware import gpu_id
    from kernelderby.measure.cluster.bench import one_writer
    from kernelderby.measure.cluster.pool import cluster
    from kernelderby.measure.cluster.tune import ClusterTune

    run = ClusterTune(catalog, settings, jobs, lambda line: warn([line]), only_losses=only_losses)
    steps = sum(len(some) for _, some in jobs) * max(1, len(on.kinds))
    with one_writer(catalog), cluster(on.address), bar("tuning", steps, quiet) as run.report:
        found = run.run([gpu_id(kind) for kind in on.kinds])
    if not found:
        raise DerbyError(f"--ray {on.address}: no GPU of the cluster can tune; add hosts (--gpu cpu: a trial)")
    if run.left:
        warn([f"no host has tuned {', '.join(run.left[:4])}{' ...' if len(run.left) > 4 else ''}"])
    return found, run.left


def check_on_cluster(
    catalog: Any, on: Cluster, device: str | None, choice: Wanted, given: dict[str, Any], secret: str, output: Any
) -> None:
    """device: cpu, or the GPUs of these kinds. given: the command's, see measure/cluster/serve.py."""
    _expect_ray()
    from kernelderby.hardware import gpu_id
    from kernelderby.measure.cluster.check import ClusterCheck
    from kernelderby.measure.cluster.pool import cluster
    from kernelderby.measure.judge.secret import drawn
    from kernelderby.report.checks import PASSED, checks_answer
    from kernelderby.report.plain import plain

    names = _chosen(catalog, choice)
    given = {**given, "workloads": choice.workloads, "origins": choice.origin, "secret": secret or drawn()}
    run = ClusterCheck(catalog, names, given, lambda line: warn([line]))
    seen: set[str] = set()
    with cluster(on.address), bar("checking solutions", len(names), quiet=output.is_json) as advance:

        def told(result: Any) -> None:
            line = f"{result.solution} on {result.case}: {result.status}"
            advance(plain(line), done=result.solution not in seen)
            seen.add(result.solution)

        run.run(["cpu"] if device == "cpu" else [gpu_id(kind) for kind in on.kinds], told)
    answer = checks_answer(run.machine, run.results, run.skipped, run.broken, given["secret"], given["fresh"], True)
    output.emit(answer)
    if run.left:
        warn([f"no host has answered for {', '.join(run.left)}"])
    was_skipped = any(name in run.skipped for name in choice.solutions)
    has_failed = any(result.status != PASSED for result in run.results) or run.left or run.broken
    if has_failed or was_skipped or not run.results:
        sys.exit(1)


def _chosen(catalog: Any, choice: Wanted) -> list[str]:
    names, operators = choice.solutions, choice.definitions
    return list(names) or [
        name for name, each in catalog.solutions.items() if not operators or each.definition in operators
    ]


def _plan_data(kind: tuple[str, str], run: Any) -> dict[str, Any]:
    machine, plan = run.plans[kind]
    return {
        "gpu": machine.name,
        "hosts": run.hosts[kind],
        "to_measure": plan.pairs,
        "seconds": plan.seconds / run.hosts[kind],
        "skipped": plan.skipped,
    }
