"""The results of `derby tune`: the fastest configurations, and the cost of a choice on fresh shapes."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from kernelderby.report.model import Column, Report, Table, left, right
from kernelderby.store.counts import counted


def tuned_report(machine: Any, result: Any) -> Report:
    """result: a measure.tune.run.TuneResult."""
    rows = []
    for one in result.choices:
        config = " ".join(filter(None, (_config_text(one.config or {}), f"({one.note})" if one.note else "")))
        time, gain = ("" if value is None else f"{value:.{digits}f}" for value, digits in ((one.us, 2), (one.gain, 3)))
        rows.append((one.key, one.workloads, time, gain, config))
    notes = [f"failed {line}" for line in result.failed]
    if result.left_over:
        names = f"{', '.join(result.left_over[:4])}{' ...' if len(result.left_over) > 4 else ''}"
        notes.append(f"not reached within the time: {counted(len(result.left_over), 'workload')}: {names}")
    where = f"wrote {result.path}; `derby pack` packs it" if result.path else "nothing was written"
    notes.append(f"{where}; every time is in {result.log}")
    if result.files:
        notes.append(f"in the library's own format: {', '.join(map(str, result.files))}")
    columns = (Column("key", "left"), *right("workloads", "us", "gain"), Column("configuration", "left"))
    return _report(machine, result, Table("Fastest configurations", columns, rows, key_columns=5), notes)


def regret_report(machine: Any, result: Any) -> Report:
    """result: of measure.tune.regret.regrets()."""
    rows = []
    for one in sorted(result.shapes, key=lambda one: -(one.share if one.share is not None else 9.0)):
        chosen = "failed" if one.chosen_us is None else f"{one.chosen_us:.2f}"
        share = "" if one.share is None else f"{one.share:.1%}"
        best = "as chosen" if one.best == one.chosen else _config_text(one.best)
        rows.append((one.shape, chosen, f"{one.best_us:.2f}", share, best))
    shares = result.shares
    summary = (
        f"mean {fmean(shares):.1%} (at most 3 %), worst {max(shares):.1%} (at most 10 %)" if shares else "no times"
    )
    notes = [
        f"regret: {summary}",
        *(f"failed {line}" for line in result.failed),
        *(f"no time: {shape}" for shape in result.unmeasured),
        f"every time is in {result.log}",
    ]
    columns = (*left("shape"), *right("chosen us", "best us", "regret"), *left("best"))
    return _report(machine, result, Table("What the choice costs on fresh shapes", columns, rows, key_columns=5), notes)


def _report(machine: Any, result: Any, table: Table, notes: list[str]) -> Report:
    return Report(f"{result.solution} on {machine.name}, {machine.protocol}", (), (table,), tuple(notes))


def _config_text(config: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in config.items())
