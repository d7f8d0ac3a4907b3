"""Processes of the candidate and of the base in turn, start after start: what `derby gate` decides from."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import randbelow

from kernelderby.catalog import Definition, Solution, Workload
from kernelderby.catalog.selection import workload_label
from kernelderby.measure.clock.graphs import NotCapturable
from kernelderby.measure.judge import secret
from kernelderby.measure.judge.doubt import Claims, SessionClock
from kernelderby.measure.judge.race import Race
from kernelderby.measure.judge.table import JudgesTable
from kernelderby.measure.machine.environment import GpuSensors
from kernelderby.measure.machine.probe import Machine, exclusive
from kernelderby.measure.run import turns
from kernelderby.measure.run.workers import START_SECONDS
from kernelderby.measure.wire.process import WorkerProcess
from kernelderby.measure.wire.quoted import shown
from kernelderby.measure.wire.remote import RemoteHands
from kernelderby.measure.wire.replies import Failed, Verdict, Wrong
from kernelderby.measure.wire.still import standing_still
from kernelderby.rows.measurement import Status
from kernelderby.statistics.gate import (
    BLOCKS,
    CANNOT_TELL,
    MOST_STARTS,
    ORDER,
    PAIRS,
    REGRESSION,
    ROLES,
    Gated,
    gated,
    is_decided,
    side_of,
)
from kernelderby.store.counts import counted

_COOLING_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Side:
    """One version: its set, its solution there, and the interpreter of its environment (None: this one)."""

    name: str
    root: Path
    solution: Solution
    python: str | None = None


@dataclass(frozen=True, slots=True)
class GateSettings:
    """least: the smallest slowdown that counts, 0.01 of 1 %. most: starts; secret: of the inputs."""

    least: float = 0.01
    most: int = MOST_STARTS
    iterations: int = 10
    timeout_seconds: float = 300
    secret: str = field(default_factory=secret.drawn)


@dataclass(frozen=True, slots=True)
class GatedWorkload:
    """kind: of the time that was compared. failure: why there is nothing to compare, then gated is None."""

    workload: Workload
    verdict: str
    kind: str
    gated: Gated | None
    failure: str = ""


class _Out(Exception):
    """One side has no time on this workload."""

    def __init__(self, role: str, told: str) -> None:
        super().__init__(told)
        self.role = role


class Gate:
    def __init__(
        self,
        definition: Definition,
        base: Side,
        candidate: Side,
        machine: Machine,
        settings: GateSettings,
        told: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.definition, self.machine, self.settings, self.told = definition, machine, settings, told
        by_side = {"base": base, "candidate": candidate}
        self.sides = {role: by_side[side_of(role)] for role in ROLES}
        self.root = candidate.root
        self._sensors = GpuSensors(machine.gpu.uuid) if machine.gpu else None
        self._workers: dict[str, WorkerProcess] = {}

    def run(self, workloads: Sequence[Workload]) -> list[GatedWorkload]:
        """In the order of the workloads; each has as many starts as it takes to decide, and no more than allowed."""
        starts: dict[str, list[list[list[float]]]] = {each.uuid: [] for each in workloads}
        kinds: dict[str, str] = {}
        found: dict[str, GatedWorkload] = {}
        with exclusive(self.machine, self.root):
            for number in range(1, self.settings.most + 1):
                left = [each for each in workloads if each.uuid not in found]
                if not left:
                    break
                self.told(f"start {number} of at most {self.settings.most}, {counted(len(left), 'workload')} left")
                try:
                    for workload in left:
                        if not self._workers:
                            self._load()
                        try:
                            kind, blocks = self._measured(workload, number)
                        except _Out as out:
                            found[workload.uuid] = _failed(workload, out)
                            self._end()  # who knows what is left in these processes
                            continue
                        starts[workload.uuid].append(blocks)
                        kinds[workload.uuid] = kind
                        self._decide(workload, kind, starts[workload.uuid], len(workloads), found)
                except _Out as out:  # it does not load
                    found |= {each.uuid: _failed(each, out) for each in left}
                finally:
                    self._end()
        return [found[each.uuid] for each in workloads]

    def _decide(
        self,
        workload: Workload,
        kind: str,
        starts: list[list[list[float]]],
        comparisons: int,
        found: dict[str, GatedWorkload],
    ) -> None:
        result = gated(starts, self.settings.least, comparisons, self.settings.most)
        if is_decided(result, self.settings.most):
            found[workload.uuid] = GatedWorkload(workload, result.verdict, kind, result)

    def _load(self) -> None:
        """Side by side; the order of their starts says nothing of whose memory lies where."""
        for role, side in self.sides.items():
            key = side.solution.text_hash
            if side.python is not None:
                key = hashlib.sha256(f"{key} {side.python}".encode()).hexdigest()[:16]
            self._workers[role] = WorkerProcess(side.root, self.machine.device, solution_hash=key, python=side.python)
        for role, side in self.sides.items():
            worker = self._workers[role]
            worker.send(
                "load",
                START_SECONDS + self.settings.timeout_seconds,
                definition=self.definition.name,
                solution=side.solution.name,
                protocol=self.machine.protocol,
                guarded=worker.rivals(),
            )
        for role, worker in self._workers.items():
            if failed := worker.receive().failed:
                raise _Out(role, f"{failed.status}: {failed.message}")

    def _measured(self, workload: Workload, start: int) -> tuple[str, list[list[float]]]:
        """The kind of time, and the median of each turn, a block a list."""
        own = secret.of_workload(self.settings.secret, f"{workload.uuid}/{start}")
        table = JudgesTable.of(self.root, self.definition, workload, self.machine, own)
        races: dict[str, Race] = {}
        try:
            for role, side in self.sides.items():
                hands = RemoteHands(self._workers[role], self.settings.timeout_seconds)
                races[role] = self._prepared(role, table.race(side.solution, hands))
            kind = "graph" if all(race.has_graph for race in races.values()) else "eager"
            blocks: list[list[float]] = []
            claims: dict[str, list[Claims]] = {role: [] for role in races}
            for block in range(BLOCKS):
                self.told(f"{workload_label(workload)}: start {start}, block {block + 1} of {BLOCKS}")
                turns_ = [self._turn(role, races[role], kind, block, place) for place, role in enumerate(ORDER)]
                blocks.append([each.medians[kind] for each in turns_])
                for role, claim in zip(ORDER, turns_, strict=True):
                    claims[role].append(claim)
            # One of a side, and no process knows whether it is that one.
            for role in (f"{side} {1 + randbelow(PAIRS)}" for side in ("base", "candidate")):
                self._doubt(role, table, races[role], claims[role])
            return kind, blocks
        finally:
            for worker in self._workers.values():
                with suppress(Failed):
                    worker.send("release", self.settings.timeout_seconds)
                    worker.receive()
            for race in races.values():
                race.release()
            table.release()

    def _prepared(self, role: str, race: Race) -> Race:
        try:
            with standing_still(each for name, each in self._workers.items() if name != role):
                _must_pass(role, race.check())
                race.start()
                _must_pass(role, race.turn(0, 2).verdict)
                with suppress(NotCapturable):
                    race.capture()
        except (Failed, Wrong) as error:
            race.release()
            raise _Out(role, _told(error)) from None
        except BaseException:
            race.release()
            raise
        return race

    def _doubt(self, role: str, table: JudgesTable, race: Race, claims: Sequence[Claims]) -> None:
        """_Out where the judge's own clock, or the floor, contradicts what the process says of its times. The gate
        compares those times: the judge's, which are coarser, replace none of them."""
        kinds = claims[0].medians
        said = Claims(
            {kind: statistics.median(each.medians[kind] for each in claims) for kind in kinds},
            statistics.median(each.host_us for each in claims),
        )
        try:
            with standing_still(each for name, each in self._workers.items() if name != role):
                judged = table.doubt(race, said, self.sides[role].solution, SessionClock())
        except (Failed, Wrong) as error:
            raise _Out(role, _told(error)) from None
        _must_pass(role, judged.verdict)

    def _turn(self, role: str, race: Race, kind: str, block: int, place: int) -> Claims:
        """Alone on the GPU; once more where the GPU slowed down or another process came, as in a race."""
        number = 1 + block * len(ORDER) + place
        for attempt in range(turns.REPEATS + 1):
            try:
                with standing_still(each for name, each in self._workers.items() if name != role):
                    turn = race.turn(number * (turns.REPEATS + 1) + attempt, self.settings.iterations)
            except Failed as failed:
                raise _Out(role, _told(failed)) from None
            _must_pass(role, turn.verdict)
            reading = self._sensors.read() if self._sensors else {}
            if not (why := turns.disturbance(self._sensors, reading, len(self._workers) + 1)):
                break
            self.told(f"{role} again: {why}")
            time.sleep(_COOLING_SECONDS)
        spans = turn.graph if kind == "graph" and turn.graph else turn.eager
        return Claims({kind: statistics.median(spans.spans_us)}, statistics.median(turn.eager.host_us))

    def _end(self) -> None:
        for worker in self._workers.values():
            worker.kill()
        self._workers.clear()


def _must_pass(role: str, verdict: Verdict) -> None:
    if verdict.status is not Status.PASSED:
        raise _Out(role, f"{verdict.status}: {verdict.message}")


def _told(error: Failed | Wrong) -> str:
    end = error if isinstance(error, Failed) else error.verdict
    return f"{end.status}: {end.message}"


def _failed(workload: Workload, out: _Out) -> GatedWorkload:
    """A candidate that is not right is a regression; a base that is not leaves nothing to compare with."""
    is_candidate = side_of(out.role) == "candidate"
    told = f"{'the candidate' if is_candidate else 'the base'}: {shown(str(out))}"
    return GatedWorkload(workload, REGRESSION if is_candidate else CANNOT_TELL, "", None, told)


def spread(workloads: Sequence[Workload], number: int) -> list[Workload]:
    """From the least work to the most, in even steps."""
    work: Mapping[str, float] = {
        each.uuid: 0.0 if each.cost is None else sum(each.cost.flops.values()) / 1e15 + each.cost.needed() / 4e12
        for each in workloads
    }
    ordered = sorted(workloads, key=lambda each: work[each.uuid])
    if len(ordered) <= number:
        return ordered
    return [ordered[round(place * (len(ordered) - 1) / max(1, number - 1))] for place in range(number)]
