"""What a run shows: its plan, how far it is, its rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kernelderby.cli.output import say, say_line, warn


def print_plan(machine: Any, plan: Any, hosts: int = 1) -> None:
    """hosts: GPUs of the kind, side by side."""
    from kernelderby.measure.run.progress import duration

    say(
        f"{machine.name}, protocol {machine.protocol}"
        + (f" ({machine.protocol_note})" if machine.protocol_note else "")
    )
    for name, reason in plan.skipped.items():
        say_line(f"skipped {name}: {reason}")
    if plan.settled:
        say(f"{plan.settled} measured before (--again measures them anew)")
    if plan.pairs:
        say(
            f"{plan.pairs} to measure, about {duration(plan.seconds / hosts)} "
            f"({plan.measured_like} of them measured on such a GPU before, the others guessed)"
        )


@contextmanager
def observed(pairs: int, seconds: float, as_json: bool) -> Iterator[Any]:
    """An observer that shows how far a run is."""
    from kernelderby.measure.run.observer import Observer
    from kernelderby.measure.run.progress import bar
    from kernelderby.report.plain import plain

    with bar("measuring", pairs, quiet=as_json, seconds=seconds) as advance:

        class Shown(Observer):
            def step(self, what: str) -> None:
                advance(plain(what), done=0)

            def row(self, row: Any) -> None:
                advance(plain(row.solution))
                if not as_json:
                    say_line(_row_line(row))

            def note(self, line: str) -> None:
                warn([line])

        yield Shown()


def _row_line(row: Any) -> str:
    axes = " ".join(f"{name}={size}" for name, size in row.workload["axes"].items())
    if row.latency_us is not None:
        ratio = min(row.correctness.matched_ratio.values()) if row.correctness else float("nan")
        graph = row.time("graph")
        times = f"{graph.median_us:10.1f} us graph " if graph else f"{'no':>10} graph    "
        missing = f"  no graph: {row.graph_missing}" if row.graph_missing else ""
        shown = f"{times} {row.latency_us:10.1f} us eager  matched {ratio:.4f}  {row.message}{missing}"
    else:
        shown = f"{row.status}: {row.message.splitlines()[0] if row.message else ''}"
    return f"{axes:16} {row.solution:20} {shown}".rstrip()
