"""Messages between a driver and the measuring process on a host, one line of JSON each."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.tune.pick import Measured
from kernelderby.rows.checked import CheckResult


class TaskAsked(Struct, frozen=True):
    """One task. verb: bench or tune (solutions of a definition on one workload, given by its line), or check (some
    solutions). settings: of plan.Settings, of TuneSettings, or seeds, timeout and secret of a check. tries: solution ->
    number of former tries."""

    verb: str
    definition: str
    solutions: tuple[str, ...]
    workload: dict[str, Any] | None
    settings: dict[str, Any]
    tries: dict[str, int] = {}


class CodeVersion(Struct, frozen=True):
    """The part of the greeting that every version has. code: digest of the package."""

    code: str = ""


class Hello(Struct, frozen=True):
    """skipped: solution -> why this host cannot run it. busy: who holds its GPU."""

    machine: Machine
    skipped: dict[str, str]
    code: str
    busy: str = ""


class TaskAnswered(Struct, frozen=True):
    """rows: in the form of traces. tuned, log, failed: results of a workload's candidates. error: why the task has no
    result; another try may help."""

    rows: tuple[dict[str, Any], ...] = ()
    results: tuple[CheckResult, ...] = ()
    broken: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    tuned: Measured | None = None
    log: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    error: str = ""
