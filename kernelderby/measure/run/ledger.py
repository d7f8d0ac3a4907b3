"""Writes a run's rows at the right time and with their environment, and checks that nobody else has written into their
files."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernelderby.catalog import Catalog, Definition, Solution
from kernelderby.catalog.workloads import FRESH
from kernelderby.errors import DerbyError
from kernelderby.measure.machine.commit import git_commit
from kernelderby.measure.machine.environment import GpuSensors, host_cpu
from kernelderby.measure.machine.probe import Machine
from kernelderby.measure.run.neighbours import Neighbours
from kernelderby.measure.run.plan import Job
from kernelderby.measure.run.progress import Observer
from kernelderby.measure.run.racer import Racer
from kernelderby.measure.run.rows import (
    TRIED_AGAIN,
    TRIES,
    RowKey,
    append_row,
    expect_readable,
    make_ready,
    set_aside_foreign,
)
from kernelderby.measure.run.seal import Seal
from kernelderby.measure.wire.quoted import hash_of, kept, quoted
from kernelderby.measure.wire.replies import nonsense
from kernelderby.measure.wire.sources import cache_folder
from kernelderby.rows.measurement import Measurement, Status


class Logs:
    """Keeps the output of solutions on this machine, since rows hold only its class and hash. folder: has a file for
    each hash in a row of the session. Workers cannot write there."""

    def __init__(self, session: str) -> None:
        self.folder = cache_folder() / "logs" / session.replace(":", "")

    def kept(self, about: str, message: str) -> str:
        """The message in the form for a row."""

        def keep(words: str) -> None:
            with suppress(OSError):  # a full disk must not lose the row
                self.folder.mkdir(parents=True, exist_ok=True)
                path = self.folder / f"{hash_of(words)}.txt"
                with path.open("a", encoding="utf-8", errors="replace") as file:
                    file.write(f"{about}\n{words}\n")

        return kept(message, keep)

    def place(self) -> Path | None:
        """None without output."""
        return self.folder if self.folder.is_dir() else None


class Ledger:
    """rows: the rows written so far. environment: the fields that are equal in every row of the run."""

    def __init__(
        self, catalog: Catalog, machine: Machine, session: str, environment: dict[str, Any], observer: Observer
    ) -> None:
        self.rows: list[Measurement] = []
        self.neighbours = Neighbours(catalog.root)
        self.environment = environment
        self.logs = Logs(session)
        self.seal: Seal | None = None
        self.make_room: Callable[[], bool] = lambda: False  # whether there may be more on the disk now
        self.tries: dict[RowKey, int] = {}  # tries in the plan and in this run
        self._catalog, self._machine, self._session, self._observer = catalog, machine, session, observer
        self._sizes: dict[Path, int] = {}  # states of the files of rows, as this run left them
        self._looked_at: dict[Path, float] = {}  # time.monotonic() of that
        self._is_racing, self._held = False, list[tuple[Job, Measurement]]()

    def path(self, definition: Definition) -> Path:
        return self._catalog.traces_path(self._machine.id, definition.name)

    def open(self, path: Path) -> None:
        """Call it before any measurement: DerbyError if no row could be written there."""
        make_ready(path, self._observer.note)
        self._remember(path)

    def close(self) -> None:
        for path in self._sizes:
            self._only_ours(path)

    def write(
        self, job: Job, solution: Solution, status: Status, message: str, racer: Racer | None = None, **numbers: Any
    ) -> None:
        """Writes a row: at once, or at the end of the race for a racer that is out earlier. racer: None if it did not
        load. numbers: the fields of Measurement that only passed rows have."""
        environment = dict(self.environment)
        about = f"{solution.name} on {job.definition.name} {job.workload.uuid}: {status}"
        if numbers.get("graph_missing"):
            numbers["graph_missing"] = self.logs.kept(f"{about}, no graph", numbers["graph_missing"])
        if racer:
            environment |= {"secret": racer.secret, "seconds": round(racer.seconds, 3)}
            if racer.draw:
                environment["draw"] = racer.draw
            if racer.judge_us:
                environment["judge_us"] = racer.judge_us
            if racer.judge_unsure_us:
                environment["judge_unsure_us"] = racer.judge_unsure_us
            if racer.clocks:
                environment |= {"clocks_before": racer.clocks[0], "clocks": racer.clocks[1:]}
        if job.apart:  # its rounds pair with no other solution's
            environment["apart"] = solution.name
            message = "; ".join(filter(None, (message, job.apart)))
        message = self.logs.kept(about, message)
        if status in TRIED_AGAIN:
            key = solution.name, job.workload.uuid, self._machine.name, self._machine.protocol
            # Also where the judge had no memory: a solution may have taken it to get rid of its times.
            self.tries[key] = environment["tries"] = self.tries.get(key, 0) + 1
            then = "it counts" if self.tries[key] >= TRIES else "the next run tries again"
            message = f"{message} (try {self.tries[key]} of {TRIES}: {then})"
        row = Measurement(
            definition=job.definition.name,
            workload=job.workload.raw["workload"],
            solution=solution.name,
            status=status,
            gpu=self._machine.name,
            protocol=self._machine.protocol,
            timestamp=now(),
            correctness=racer.correctness if racer else None,
            solution_hash=solution.hash,
            session=self._session,
            message=message,
            environment=environment,
            shape=_unlisted(job.workload.raw),
            **numbers,
        )
        try:
            expect_readable(row)
        except DerbyError as error:
            if status is not Status.PASSED:
                raise
            ended = nonsense(f"its process's numbers contradict each other: {quoted(str(error))}")
            return self.write(job, solution, ended.status, ended.message, racer)
        if racer and self._is_racing:
            self._held.append((job, row))
        else:
            self._append(job, row)

    def hold(self) -> None:
        """In this context rows of racers that are out stay in memory until the race ends: they hold its secret, and
        everybody may read the file."""
        self._is_racing = True

    def append_held(self) -> None:
        self._is_racing = False
        while self._held:
            self._append(*self._held.pop(0))

    def _append(self, job: Job, row: Measurement) -> None:
        path = self.path(job.definition)
        self._only_ours(path)
        try:
            line = append_row(path, row)
        except DerbyError:
            if not self.make_room():
                raise
            line = append_row(path, row)
        if self.seal is not None:
            self.seal.row(path, line)
        self._remember(path)
        self.rows.append(row)
        self._observer.row(row)

    def _only_ours(self, path: Path) -> None:
        """Removes lines that no run wrote, such as a worker's. Not while another run writes there too."""
        if not self.neighbours.lived_since(self._looked_at.get(path, 0.0)):
            note = set_aside_foreign(path, self._sizes.get(path, 0))
            if note:
                self._observer.note(note)
        self._remember(path)

    def _remember(self, path: Path) -> None:
        self._looked_at[path] = time.monotonic()
        self._sizes[path] = path.stat().st_size if path.is_file() else 0


def described(root: Path, machine: Machine, sensors: GpuSensors | None, is_secret_given: bool) -> dict[str, Any]:
    """The fields that are equal in every row of a run."""
    found = {
        "libs": machine.libs,
        "python": machine.python,
        "host_cpu": host_cpu(),
        "flush_bytes": machine.flush_bytes,
        **git_commit(root),
    }
    if machine.gpu and sensors:
        found |= {"gpu_uuid": machine.gpu.uuid, "driver": sensors.driver()}
    if is_secret_given:
        found["secret_given"] = True  # anybody who read the command line could know the inputs
    if machine.protocol_note:
        found["protocol_note"] = machine.protocol_note
    return found


def _unlisted(line: dict[str, Any]) -> dict[str, Any]:
    """The description of a fresh shape for its row, since no file has it."""
    is_fresh = line.get("origin") == FRESH
    return {name: line[name] for name in ("origin", "cost", "generator") if name in line} if is_fresh else {}


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
