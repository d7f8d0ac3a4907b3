"""What the contests of one run share."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelderby.catalog import Catalog
from kernelderby.measure.judge.doubt import SessionClock
from kernelderby.measure.machine.environment import GpuSensors
from kernelderby.measure.machine.health import Health
from kernelderby.measure.run.helpers import Watch
from kernelderby.measure.run.ledger import Ledger
from kernelderby.measure.run.observer import Observer
from kernelderby.measure.run.plan import Settings
from kernelderby.measure.run.workers import Workers


@dataclass(slots=True)
class Run:
    """were_overtaken: solutions whose graphs were replayed after a larger call."""

    catalog: Catalog
    settings: Settings
    session: str
    workers: Workers
    ledger: Ledger
    sensors: GpuSensors | None
    observer: Observer
    health: Health
    clock: SessionClock = field(default_factory=SessionClock)
    watch: Watch = field(default_factory=Watch)
    were_overtaken: set[str] = field(default_factory=set)
