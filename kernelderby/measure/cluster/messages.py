"""Messages between a driver and the process on a host that measures for it: a line of JSON each."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.tune.pick import Measured
from kernelderby.rows.checked import CheckResult


class TaskAsked(Struct, frozen=True):
    """One task. verb: bench and tune, solutions of a definition on one workload (its line); check, some solutions.
    settings: of plan.Settings, of TuneSettings, or seeds, timeout and secret of a check. tries: solution -> how often
    it was tried before."""

    verb: str
    definition: str
    solutions: tuple[str, ...]
    workload: dict[str, Any] | None
    settings: dict[str, Any]
    tries: dict[str, int] = {}


class CodeVersion(Struct, frozen=True):
    """What every version says of itself. code: of the package."""

    code: str = ""


class Hello(Struct, frozen=True):
    """skipped: solution -> why this host cannot run it. busy: who else holds its GPU."""

    machine: Machine
    skipped: dict[str, str]
    code: str
    busy: str = ""


class TaskAnswered(Struct, frozen=True):
    """rows: as they go into traces. tuned, log, failed: of a workload's candidates. error: why nothing came of the
    task, which another try may mend."""

    rows: tuple[dict[str, Any], ...] = ()
    results: tuple[CheckResult, ...] = ()
    broken: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    tuned: Measured | None = None
    log: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    error: str = ""
