"""bench, check and tune over a Ray cluster, for those verbs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from kernelderby.cli.measuring import observed, print_plan
from kernelderby.cli.output import say, say_json, say_line, warn
from kernelderby.errors import DerbyError
from kernelderby.store.counts import counted


def _expect_ray() -> None:
    """DerbyError where it is not installed."""
    from importlib.util import find_spec

    if find_spec("ray") is None:
        raise DerbyError("--ray: Ray is not installed; pip install 'kernelderby[ray]'")


def bench_on_cluster(
    catalog: Any,
    address: str,
    kinds: Sequence[str],
    settings: Any,
    planned: Callable[..., Any],
    solutions: Sequence[str],
    definitions: Sequence[str],
    only_plan: bool,
    as_json: bool,
) -> None:
    """Exit code 1 when something of the plan is left without a row."""
    _expect_ray()
    from kernelderby.hardware import gpu_id
    from kernelderby.measure.cluster.bench import ClusterBench, one_writer
    from kernelderby.measure.cluster.pool import cluster
    from kernelderby.measure.run.observer import Observer

    class Told(Observer):
        """Whoever shows the run, once its size is known."""

        def __init__(self) -> None:
            self.to: Observer | None = None

        def note(self, line: str) -> None:
            self.to.note(line) if self.to else warn([line])

        def row(self, row: Any) -> None:
            if self.to:
                self.to.row(row)

    names = _chosen(catalog, solutions, definitions)
    told = Told()
    with one_writer(catalog), cluster(address):
        run = ClusterBench(catalog, settings, [gpu_id(kind) for kind in kinds], planned, names, told)
        try:
            if not run.hosts:
                raise DerbyError(f"--ray {address}: no GPU of the cluster can measure; add hosts (--gpu cpu: a trial)")
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
        failed = sum(row.status != "passed" for row in run.rows)
        say(f"{counted(len(run.rows), 'row')} written: {len(run.rows) - failed} measured, {failed} failed")
        say_line(f"secret of the session: {settings.secret} (--secret draws its inputs again)")
    if left:
        warn([f"{left} of the plan have no row; the same command goes on"])
        sys.exit(1)


def tune_on_cluster(
    catalog: Any, address: str, kinds: Sequence[str], settings: Any, jobs: Sequence[Any], only_losses: bool, quiet: bool
) -> tuple[list[tuple[Any, Any]], list[str]]:
    """Results, each with its machine, and what no host has tuned, which is said."""
    _expect_ray()
    from kernelderby.hardware import gpu_id
    from kernelderby.measure.cluster.bench import one_writer
    from kernelderby.measure.cluster.pool import cluster
    from kernelderby.measure.cluster.tune import ClusterTune
    from kernelderby.measure.run.progress import bar

    run = ClusterTune(catalog, settings, jobs, lambda line: warn([line]), only_losses=only_losses)
    workloads = sum(len(some) for _, some in jobs)
    with one_writer(catalog), cluster(address), bar("tuning", workloads * max(1, len(kinds)), quiet) as run.report:
        found = run.run([gpu_id(kind) for kind in kinds])
    if not found:
        raise DerbyError(f"--ray {address}: no GPU of the cluster can tune; add hosts (--gpu cpu: a trial)")
    if run.left:
        warn([f"no host has tuned {', '.join(run.left[:4])}{' ...' if len(run.left) > 4 else ''}"])
    return found, run.left


def check_on_cluster(
    catalog: Any,
    address: str,
    kinds: Sequence[str],
    device: str | None,
    solutions: Sequence[str],
    definitions: Sequence[str],
    given: dict[str, Any],
    secret: str,
    output: Any,
) -> None:
    """device: cpu, or the GPUs of these kinds. given: the command's, see measure/cluster/serve.py."""
    _expect_ray()
    from kernelderby.hardware import gpu_id
    from kernelderby.measure.cluster.check import ClusterCheck
    from kernelderby.measure.cluster.pool import cluster
    from kernelderby.measure.judge.secret import drawn
    from kernelderby.measure.run.progress import bar
    from kernelderby.report.checks import PASSED, checks_answer
    from kernelderby.report.plain import plain

    names = _chosen(catalog, solutions, definitions)
    given = {**given, "secret": secret or drawn()}
    run = ClusterCheck(catalog, names, given, lambda line: warn([line]))
    seen: set[str] = set()
    with cluster(address), bar("checking solutions", len(names), quiet=output.is_json) as advance:

        def told(result: Any) -> None:
            line = f"{result.solution} on {result.case}: {result.status}"
            advance(plain(line), done=result.solution not in seen)
            seen.add(result.solution)

        run.run(["cpu"] if device == "cpu" else [gpu_id(kind) for kind in kinds], told)
    answer = checks_answer(run.machine, run.results, run.skipped, run.broken, given["secret"], given["fresh"])
    output.emit(answer)
    if run.left:
        warn([f"no host has answered for {', '.join(run.left)}"])
    was_skipped = any(name in run.skipped for name in solutions)
    has_failed = any(result.status != PASSED for result in run.results) or run.left or run.broken
    if has_failed or was_skipped or not run.results:
        sys.exit(1)


def _chosen(catalog: Any, solutions: Sequence[str], definitions: Sequence[str]) -> list[str]:
    return list(solutions) or [
        name for name, each in catalog.solutions.items() if not definitions or each.definition in definitions
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
