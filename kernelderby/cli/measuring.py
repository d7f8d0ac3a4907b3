"""The output of a run: its plan, its progress, its rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kernelderby.cli.output import say, say_line, warn
from kernelderby.cli.progress import bar, duration
from kernelderby.store.counts import counted

_NAMED = 3  # solutions that a line about waiting names


def print_plan(machine: Any, plan: Any, hosts: int = 1, budget: float | None = None) -> None:
    """hosts: GPUs of the kind, side by side. budget: seconds."""
    say(
        f"{machine.name}, protocol {machine.protocol}"
        + (f" ({machine.protocol_note})" if machine.protocol_note else "")
    )
    for name, reason in plan.skipped.items():
        say_line(f"skipped {name}: {reason}")
    if plan.settled:
        say(f"{plan.settled} measured before (--again measures them anew)")
    if plan.pairs and plan.measured_like:
        rest = plan.pairs - plan.measured_like
        guess = f", {rest} of them guessed: never measured on such a machine" if rest else ""
        say(f"{plan.pairs} to measure, about {duration(plan.seconds / hosts)}{guess}")
    elif plan.pairs:
        say(f"{plan.pairs} to measure, none measured on such a machine before")
    if plan.pairs and budget is not None:
        say(f"--budget: it begins nothing new after {duration(budget)}")


@contextmanager
def observed(pairs: int, seconds: float, as_json: bool, budget: float | None = None) -> Iterator[Any]:
    """An observer that shows how far a run is. seconds, budget: see progress.bar()."""
    from kernelderby.catalog.selection import workload_label
    from kernelderby.measure.run.progress import Observer
    from kernelderby.report.plain import plain

    with bar("measuring", pairs, quiet=as_json, seconds=seconds, most=budget) as advance:

        class Shown(Observer):
            def waiting(self, solutions: list[str], seconds: float) -> None:
                rest = len(solutions[_NAMED:])
                named = ", ".join(solutions[:_NAMED]) + (f" and {rest} more" if rest else "")
                warn([plain(f"{duration(seconds)} so far, compiling or checked: {named}")])

            def checked(self, solution: str, workload: Any) -> None:
                advance(plain(f"{solution} checked on {workload_label(workload)}"), done=0)

            def round_done(self, solution: str, number: int, workload: Any) -> None:
                advance(plain(f"{solution} round {number} on {workload_label(workload)}"), done=0)

            def repeated(self, solution: str, why: str) -> None:
                advance(plain(f"{solution} again: {why}"), done=0)

            def row(self, row: Any) -> None:
                advance(plain(row.solution))
                if not as_json:
                    say_line(_row_line(row))

            def note(self, line: str) -> None:
                warn([line])

        yield Shown()


def print_rows(rows: list[Any], secret: str) -> None:
    """The end of a run."""
    failed = sum(row.status != "passed" for row in rows)
    say(f"{counted(len(rows), 'row')} written: {len(rows) - failed} measured, {failed} failed")
    say(f"secret of the session: {secret} (--secret draws its inputs again)")


def _row_line(row: Any) -> str:
    axes = " ".join(f"{name}={size}" for name, size in row.workload["axes"].items())
    if row.latency_us is None:
        shown = f"{row.status}: {row.message.splitlines()[0] if row.message else ''}"
    else:
        ratio = min(row.correctness.matched_ratio.values()) if row.correctness else float("nan")
        graph = row.time("graph")
        shown = f"{graph.median_us:10.1f} us graph " if graph else ""
        shown += f"{row.latency_us:10.1f} us eager" + (f"  matched {ratio:.4f}" if ratio < 1 else "")
        shown += f"  {row.message}" if row.message else ""
        if row.graph_missing and row.gpu != "CPU":
            shown += f"  no graph: {row.graph_missing}"
    return f"{axes:16} {row.solution:20} {shown}".rstrip()
