"""Workloads that a `derby tune --ray` which did not end has tuned: the same command goes on behind them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import astuple
from pathlib import Path

import msgspec
from msgspec import Struct

from kernelderby.catalog import Solution
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.tune import table
from kernelderby.measure.tune.pick import Measured
from kernelderby.measure.tune.turns import TuneSettings
from kernelderby.store.appended import append_line


class Tuned(Struct, frozen=True):
    """key: of the code and the settings that it was tuned with. tuned: None where no candidate ran."""

    key: str
    workload: str
    tuned: Measured | None
    failed: tuple[str, ...]


class Unfinished:
    """A file beside the log, of one solution on one kind of GPU. found: workload -> what came back; of other code or
    settings nothing. It goes once the table stands."""

    def __init__(self, log: Path, solution: Solution, machine: Machine, settings: TuneSettings) -> None:
        self.path = log.with_name(f"{solution.name}.{machine.id}.{machine.protocol}.unfinished.jsonl")
        code = [(name, text) for name, text in solution.sources.items() if Path(name).name != table.NAME]
        self._key = f"{solution.digest_of(sorted(code))} {astuple(settings)}"
        self.found: dict[str, Tuned] = {}
        with suppress(FileNotFoundError):
            for line in self.path.read_bytes().splitlines():
                with suppress(msgspec.MsgspecError, UnicodeDecodeError):  # cut short by a kill
                    one = msgspec.json.decode(line, type=Tuned)
                    if one.key == self._key:
                        self.found[one.workload] = one

    def add(self, workload: str, tuned: Measured | None, failed: tuple[str, ...]) -> None:
        one = Tuned(self._key, workload, tuned, failed)
        append_line(self.path, msgspec.json.encode(one).decode())
        self.found[workload] = one

    def end(self) -> None:
        self.path.unlink(missing_ok=True)
