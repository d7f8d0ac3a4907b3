"""The measurements of `derby gate`: in each start, processes of the candidate and of the base take turns."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import randbelow

from kernelderby.catalog import Definition, Solution, Workload
from kernelderby.measure.clock.graphs import NotCapturable
from kernelderby.measure.judge import secret
from kernelderby.measure.judge.doubt import Claims, Judged, SessionClock
from kernelderby.measure.judge.exchange import PASSED
from kernelderby.measure.judge.race import Race, Turn
from kernelderby.measure.judge.table import JudgesTable
from kernelderby.measure.machine.environment import GpuSensors
from kernelderby.measure.machine.probe import Machine, exclusive
from kernelderby.measure.run import turns
from kernelderby.measure.run.contest import outcome_of
from kernelderby.measure.run.plan import work_of
from kernelderby.measure.run.workers import ask_to_load
from kernelderby.measure.wire.process import WorkerProcess
from kernelderby.measure.wire.quoted import shown
from kernelderby.measure.wire.remote import RemoteExecutor
from kernelderby.measure.wire.replies import Failed, Verdict
from kernelderby.measure.wire.still import standing_still
from kernelderby.rows.measurement import Status
from kernelderby.rows.row import JUDGE_WITHOUT_MEMORY
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

_COOLING_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Side:
    """One version: its set, its solution there, and the interpreter of its environment (None: this interpreter)."""

    name: str
    root: Path
    solution: Solution
    python: str | None = None


@dataclass(frozen=True, slots=True)
class GateSettings:
    """least: the smallest slowdown that counts, 0.01 for 1 %. most: maximum number of starts. secret: draws the
    inputs."""

    least: float = 0.01
    most: int = MOST_STARTS
    iterations: int = 10
    timeout_seconds: float = 300
    secret: str = field(default_factory=secret.drawn)


@dataclass(frozen=True, slots=True)
class GatedWorkload:
    """kind: the compared kind of time. failure: why there is nothing to compare (then gated is None), or why one side
    has no graph, so that eager times are compared."""

    workload: Workload
    verdict: str
    kind: str
    gated: Gated | None
    failure: str = ""


class GateObserver:
    """Gets the progress of a gate; the command overrides it. number: of a start, from 1 to GateSettings.most."""

    def started(self, number: int, most: int, workloads_left: int) -> None: ...

    def block_begun(self, workload: Workload, number: int, block: int) -> None: ...

    def repeated(self, role: str, why: str) -> None:
        """The turn of a process was disturbed and is taken again."""


class _Out(Exception):
    """One side has no time on this workload."""

    def __init__(self, role: str, end: Verdict | Failed) -> None:
        super().__init__(f"{end.status}: {end.message}")
        self.role = role
        self.is_unjudged = end.status is Status.OUT_OF_MEMORY and end.message.startswith(JUDGE_WITHOUT_MEMORY)


class Gate:
    def __init__(
        self,
        definition: Definition,
        base: Side,
        candidate: Side,
        machine: Machine,
        settings: GateSettings,
        observer: GateObserver | None = None,
    ) -> None:
        self.definition, self.machine, self.settings = definition, machine, settings
        self.observer = observer or GateObserver()
        by_side = {"base": base, "candidate": candidate}
        self.sides = {role: by_side[side_of(role)] for role in ROLES}
        self.root = candidate.root
        self._sensors = GpuSensors(machine.gpu.uuid) if machine.gpu else None
        self._workers: dict[str, WorkerProcess] = {}
        self._without_graph: dict[str, dict[str, str]] = {}  # uuid -> side -> why, where the other side has one

    def run(self, workloads: Sequence[Workload]) -> list[GatedWorkload]:
        """The results in the order of the workloads. Each has as many starts as the decision needs, up to the
        maximum."""
        starts: dict[str, list[list[list[float]]]] = {each.uuid: [] for each in workloads}
        found: dict[str, GatedWorkload] = {}
        with exclusive(self.machine, self.root):
            for number in range(1, self.settings.most + 1):
                left = [each for each in workloads if each.uuid not in found]
                if not left:
                    break
                self.observer.started(number, self.settings.most, len(left))
                try:
                    for workload in left:
                        if not self._workers:
                            self._load()
                        try:
                            kind, blocks = self._measured(workload, number)
                        except _Out as out:
                            found[workload.uuid] = _failed(workload, out)
                            self._end()  # the state of these processes is unknown
                            continue
                        starts[workload.uuid].append(blocks)
                        result = gated(starts[workload.uuid], self.settings.least, len(workloads), self.settings.most)
                        if is_decided(result, self.settings.most):
                            without = self._without_graph.get(workload.uuid, {})
                            told = "; ".join(f"the {side} has no graph ({why})" for side, why in without.items())
                            told = told and f"{told}, so eager times are compared"
                            found[workload.uuid] = GatedWorkload(workload, result.verdict, kind, result, told)
                except _Out as out:  # it does not load
                    found |= {each.uuid: _failed(each, out) for each in left if each.uuid not in found}
                finally:
                    self._end()
        return [found[each.uuid] for each in workloads]

    def _load(self) -> None:
        """Loads both sides in parallel, so the order of their starts does not decide whose memory lies where."""
        for role, side in self.sides.items():
            key = side.solution.text_hash
            if side.python is not None:
                key = hashlib.sha256(f"{key} {side.python}".encode()).hexdigest()[:16]
            self._workers[role] = WorkerProcess(side.root, self.machine.device, solution_hash=key, python=side.python)
        for role, side in self.sides.items():
            ask_to_load(self._workers[role], side.solution, self.machine.protocol, self.settings.timeout_seconds)
        for role, worker in self._workers.items():
            _must_pass(role, worker.receive().failed or PASSED)

    def _measured(self, workload: Workload, start: int) -> tuple[str, list[list[float]]]:
        """The kind of time, and for each block a list with the median of each turn."""
        own = secret.of_workload(self.settings.secret, f"{workload.uuid}/{start}")
        table = JudgesTable.of(self.root, self.definition, workload, self.machine, own)
        races: dict[str, Race] = {}
        missing: dict[str, str] = {}  # role -> why it has no graph
        try:
            for role, side in self.sides.items():
                executor = RemoteExecutor(self._workers[role], self.settings.timeout_seconds)
                races[role], missing[role] = self._prepared(role, table.race(side.solution, executor))
            if any(race.has_graph for race in races.values()):
                for role, why in missing.items():
                    if why:
                        self._without_graph.setdefault(workload.uuid, {}).setdefault(side_of(role), why)
            kind = "graph" if all(race.has_graph for race in races.values()) else "eager"
            blocks: list[list[Claims]] = []
            for block in range(BLOCKS):
                self.observer.block_begun(workload, start, block + 1)
                blocks.append([self._turn(role, races[role], kind, block, place) for place, role in enumerate(ORDER)])
            # One process of each side, and no process knows whether it is the one.
            for role in (f"{side} {1 + randbelow(PAIRS)}" for side in ("base", "candidate")):
                claims = [claim for block in blocks for name, claim in zip(ORDER, block, strict=True) if name == role]
                self._doubt(role, table, races[role], claims)
            return kind, [[claim.medians[kind] for claim in block] for block in blocks]
        finally:
            for worker in self._workers.values():
                worker.send("release", self.settings.timeout_seconds)
                worker.receive()
            for race in races.values():
                race.release()
            table.release()

    def _prepared(self, role: str, race: Race) -> tuple[Race, str]:
        """The race, and why it has no graph, else empty."""
        missing = ""

        def tried() -> Verdict:
            nonlocal missing
            verdict = race.check()
            if verdict.status is Status.PASSED:
                race.start()
                verdict = race.turn(0, 2).verdict
            if verdict.status is Status.PASSED:
                try:
                    race.capture()
                except NotCapturable as error:
                    missing = shown(str(error))
            return verdict

        try:
            with self._alone(role):
                _must_pass(role, outcome_of(tried))
        except BaseException:
            race.release()
            raise
        return race, missing

    def _alone(self, role: str) -> AbstractContextManager[None]:
        """In this context the others stand still."""
        return standing_still(each for name, each in self._workers.items() if name != role)

    def _doubt(self, role: str, table: JudgesTable, race: Race, claims: list[Claims]) -> None:
        """_Out if the judge's clock, or the floor, contradicts the process's claimed times. The gate compares the
        claimed times; the judge's coarser times replace none of them."""
        medians = {kind: statistics.median(each.medians[kind] for each in claims) for kind in claims[0].medians}
        said = Claims(medians, statistics.median(each.host_us for each in claims))
        with self._alone(role):
            judged = outcome_of(table.doubt, race, said, self.sides[role].solution, SessionClock())
        _must_pass(role, judged.verdict if isinstance(judged, Judged) else judged)

    def _turn(self, role: str, race: Race, kind: str, block: int, place: int) -> Claims:
        """One turn alone on the GPU; repeated if the GPU slowed down or another process came, as in a race."""
        number = 1 + block * len(ORDER) + place
        for attempt in range(turns.REPEATS + 1):
            with self._alone(role):
                own = number * (turns.REPEATS + 1) + attempt
                taken = outcome_of(race.turn, own, self.settings.iterations, (kind,))
            if not isinstance(taken, Turn):
                raise _Out(role, taken)
            turn = taken
            _must_pass(role, turn.verdict)
            reading = self._sensors.read() if self._sensors else {}
            if not (why := turns.disturbance(self._sensors, reading, len(self._workers) + 1)):
                break
            self.observer.repeated(role, why)
            time.sleep(_COOLING_SECONDS)
        spans = turn.graph if kind == "graph" and turn.graph else turn.eager
        return Claims({kind: statistics.median(spans.spans_us)}, statistics.median(spans.host_us))

    def _end(self) -> None:
        for worker in self._workers.values():
            worker.kill()
        self._workers.clear()


def _must_pass(role: str, end: Verdict | Failed) -> None:
    if end.status is not Status.PASSED:
        raise _Out(role, end)


def _failed(workload: Workload, out: _Out) -> GatedWorkload:
    """A wrong candidate is a regression. With a wrong base, or without memory for the judge, there is nothing to
    compare."""
    side, message = side_of(out.role), shown(str(out))
    is_wrong = side == "candidate" and not out.is_unjudged
    return GatedWorkload(workload, REGRESSION if is_wrong else CANNOT_TELL, "", None, f"the {side}: {message}")


def spread_workloads(workloads: Sequence[Workload], number: int) -> list[Workload]:
    """Workloads from the least work to the most, in even steps."""
    ordered = sorted(workloads, key=work_of)
    if len(ordered) <= number:
        return ordered
    return [ordered[round(place * (len(ordered) - 1) / max(1, number - 1))] for place in range(number)]
