"""The loss of a solution's choice: the time of the configuration that run() uses over the time of its best candidate.

A table fits the shapes from which it was made. The regret on fresh shapes shows its worth elsewhere.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kernelderby.catalog import Catalog, Solution, Workload
from kernelderby.catalog.selection import workload_label
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.tune.pick import Measured
from kernelderby.measure.tune.run import CONTRACT, each_measured, log_path, tunable_folder
from kernelderby.measure.tune.turns import Bench, TuneSettings

MEAN, WORST = 0.03, 0.10  # more than this regret is too much


@dataclass(frozen=True, slots=True)
class ShapeRegret:
    """One shape. chosen_us: None if the choice failed or was wrong."""

    shape: str
    chosen: dict[str, Any]
    chosen_us: float | None
    best: dict[str, Any]
    best_us: float

    @property
    def share(self) -> float | None:
        """How much longer the choice takes, as a share; 0 if it is the best."""
        return None if self.chosen_us is None else self.chosen_us / self.best_us - 1


@dataclass(slots=True)
class Regrets:
    """One solution. failed: a line for each candidate that failed or was wrong. unmeasured: shapes without a time."""

    solution: str
    log: Path
    shapes: list[ShapeRegret] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    unmeasured: list[str] = field(default_factory=list)

    @property
    def shares(self) -> list[float]:
        return [one.share for one in self.shapes if one.share is not None]

    @property
    def holds(self) -> bool:
        """Whether every shape has a regret, and none is too large."""
        shares = self.shares
        complete = len(shares) == len(self.shapes) and not self.unmeasured
        return bool(shares) and complete and statistics.fmean(shares) <= MEAN and max(shares) <= WORST

    def to_json(self) -> dict[str, Any]:
        shares = self.shares
        return {
            "solution": self.solution,
            "mean": statistics.fmean(shares) if shares else None,
            "worst": max(shares, default=None),
            "holds": self.holds,
            "shapes": [{"shape": one.shape, "regret": one.share, **asdict(one)} for one in self.shapes],
            "failed": self.failed,
            "unmeasured": self.unmeasured,
            "log": str(self.log),
        }


def regrets(
    catalog: Catalog,
    machine: Machine,
    settings: TuneSettings,
    jobs: Sequence[tuple[Solution, Sequence[Workload]]],
    report: Callable[[str], None] = lambda line: None,
) -> list[Regrets]:
    """The regret of each solution on each of its shapes. Writes no table. report: gets one line after each shape."""
    for solution, _ in jobs:  # errors come before the GPU is used
        tunable_folder(solution, (*CONTRACT, "choose"))
    results = [Regrets(solution.name, log_path(catalog.root, solution)) for solution, _ in jobs]
    with closing(Bench(catalog, machine, settings)) as bench:
        for result, (solution, workloads) in zip(results, jobs, strict=True):
            for workload, measured in each_measured(bench, solution, workloads, result, report):
                if measured is None:
                    result.unmeasured.append(workload_label(workload))
                else:
                    result.shapes.append(regret_of(measured))
    return results


def regret_of(measured: Measured) -> ShapeRegret:
    """The regret for a solution that tells its choice."""
    assert measured.chosen is not None
    best = min(measured.times_us, key=lambda text: measured.times_us[text])
    return ShapeRegret(
        measured.workload,
        json.loads(measured.chosen),
        measured.times_us.get(measured.chosen),
        json.loads(best),
        measured.times_us[best],
    )
