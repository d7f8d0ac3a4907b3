"""One workload: its solutions are checked, set up, tried once, captured, timed in turn, compared with the judge's
clock, and get their rows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from msgspec.structs import asdict

from kernelderby.catalog import Catalog, Solution
from kernelderby.measure.clock.graphs import NotCapturable
from kernelderby.measure.clock.timing import TimingFailed
from kernelderby.measure.judge.doubt import SessionClock, told_of_noise
from kernelderby.measure.judge.exchange import PASSED
from kernelderby.measure.judge.race import Turn
from kernelderby.measure.judge.table import JudgesTable
from kernelderby.measure.machine.environment import GpuSensors
from kernelderby.measure.machine.health import Health
from kernelderby.measure.run import hidden_work, turns
from kernelderby.measure.run.hidden_work import Watch
from kernelderby.measure.run.ledger import Ledger
from kernelderby.measure.run.plan import Job, Settings
from kernelderby.measure.run.progress import Observer
from kernelderby.measure.run.racer import Racer, first_two
from kernelderby.measure.run.workers import Workers, without_memory
from kernelderby.measure.wire.process import interruptible
from kernelderby.measure.wire.remote import RemoteExecutor
from kernelderby.measure.wire.replies import Failed, Verdict, Wrong
from kernelderby.rows.measurement import Status, Timed
from kernelderby.rows.row import JUDGE_WITHOUT_MEMORY

_REFERENCE_ITERATIONS = 3
_ROUND_MICROSECONDS = 200_000  # solutions slower than this / iterations get fewer iterations per round, at least 2
_COOLING_SECONDS = 2  # before a disturbed turn is repeated
_WAITING_SECONDS = 30  # for solutions that compile and are checked, until the observer learns their names

Given = TypeVar("Given")


@dataclass(slots=True)
class Run:
    """State that the contests of one run share. were_overtaken: solutions whose graphs were replayed after a larger
    call."""

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
    was_told_of_noise: bool = False


class Contest:
    def __init__(self, run: Run, job: Job, table: JudgesTable) -> None:
        self._run, self._job, self._table = run, job, table
        self._caught: dict[str, Verdict] = {}  # solution -> why it is out before its next turn
        self.crowded: list[Solution] = []  # without a row yet, because there was no memory beside the others

    def hold(self) -> None:
        """Writes a row for each solution. DefinitionFailed if the definition's own code fails: then it cannot judge,
        and the solutions still in the race get no row."""
        workers, ledger, racers = self._run.workers, self._run.ledger, list[Racer]()
        # How long its contents take to generate is measured here: a worker that runs could make it long, and would then
        # know the few contents that are used again and again.
        with workers.alone(), suppress(MemoryError, RuntimeError, OSError):  # if it cannot be made, its racers say so
            self._table.maker.places()
        for solution, worker in workers.load(self._job.solutions):
            of_author = [each.name for each in self._job.solutions if each.author == solution.author]
            # Each draw has references of its own, which take longer than the calls where a reference is slow.
            draw = of_author.index(solution.name) if self._run.settings.sealed else 0
            racers.append(Racer(solution, worker, secret=self._table.secret, draw=draw))
        for solution in self._job.solutions:
            if failed := workers.unbuildable.get(solution.name):
                self._run.health.expect_sound(failed.message)
                ledger.write(self._job, solution, failed.status, failed.message)
        try:
            ledger.hold()
            try:
                left = self._witnessed(self._rounds(self._captured(self._checked(racers))))
            finally:
                ledger.append_held()
            self._write_passed(left)
        except BaseException:
            workers.end()  # they may be waiting in the middle of a command
            raise
        finally:
            workers.release()  # they release the judge's memory before it is freed
            for racer in racers:
                racer.release()

    def _write_passed(self, racers: list[Racer]) -> None:
        reference = self._reference_latency(racers)
        for racer in racers:
            times = {
                kind: Timed(round(statistics.median([span for spans in rounds for span in spans]), 3), tuple(rounds))
                for kind, rounds in racer.times.items()
            }
            self._run.ledger.write(
                self._job,
                racer.solution,
                Status.PASSED,
                "; ".join(dict.fromkeys(racer.notes)),
                racer,
                times=times,
                latency_us=times["eager"].median_us,
                samples_us=times["eager"].samples_us,
                graph_missing=racer.graph_missing,
                setup=asdict(racer.race.setup) if racer.race.setup else None,
                reference_latency_us=reference,
                host_us=(host_us := round(statistics.median(racer.host_us), 3)),
                # Claimed by its process, like host_us; at least the time of the judge's clock, if that is longer.
                wall_us=max(round(statistics.median(racer.wall_us), 3), times["eager"].median_us, host_us),
            )

    def _checked(self, racers: list[Racer]) -> list[Racer]:
        """The racers that are correct. All are checked in parallel, since compilation takes CPU time."""
        if not racers:
            return []
        start = time.monotonic()
        with ThreadPoolExecutor(len(racers)) as pool, interruptible():
            work = [pool.submit(self._prepared, racer) for racer in racers]
            while wait(work, _WAITING_SECONDS).not_done:
                late = [racer.solution.name for racer, each in zip(racers, work, strict=True) if not each.done()]
                if late:
                    self._run.observer.waiting(late, time.monotonic() - start)
            ends = [each.result() for each in work]
        passed = []
        for racer, end in zip(racers, ends, strict=True):
            self._run.observer.checked(racer.solution.name, self._job.workload)
            if self._goes_on(racer, end):
                passed.append(racer)
        return passed

    def _prepared(self, racer: Racer) -> Verdict | Failed:
        """Check, set-up and a trial turn of one racer. Runs in its own thread."""
        settings, start = self._run.settings, time.monotonic()

        def tried() -> Verdict:
            racer.judged = race = self._table.race(
                racer.solution, RemoteExecutor(racer.worker, settings.timeout_seconds), racer.draw
            )
            verdict = race.check()
            if verdict.status is not Status.PASSED:
                return verdict
            racer.correctness = verdict.correctness
            race.start()
            trial = race.turn(0, 2)
            if trial.verdict.status is Status.PASSED:
                fitting = int(_ROUND_MICROSECONDS / min(trial.eager.spans_us))
                racer.iterations = max(2, min(settings.iterations, fitting))
            return trial.verdict

        try:
            return outcome_of(tried)
        finally:
            racer.seconds += time.monotonic() - start

    def _captured(self, racers: list[Racer]) -> list[Racer]:
        """Captures each racer's call as a CUDA graph. If this fails, the row has the reason, and a process that the
        attempt has spoiled is replaced."""
        captured = []
        for racer in racers:
            end, spoiled = self._capture(racer)
            if self._goes_on(racer, end) and (not spoiled or self._started_anew(racer)):
                captured.append(racer)
        return captured

    def _capture(self, racer: Racer) -> tuple[Verdict | Failed, bool]:
        """Captures its call as a CUDA graph and replays it after a larger call. Gives the verdict, and whether the
        attempt has spoiled its process. Without a graph the racer keeps the reason."""
        start, spoiled = time.monotonic(), False
        try:
            racer.race.capture()
        except NotCapturable as error:
            racer.graph_missing, spoiled = str(error), error.spoiled
        except Wrong as wrong:
            racer.graph_missing = f"{wrong.verdict.status}: {wrong.verdict.message}"
        except Failed as failed:
            racer.graph_missing, spoiled = f"{failed.status}: {failed.message}", True
        racer.race.series.planned = self._run.settings.rounds * (2 if racer.race.has_graph else 1)
        end = outcome_of(self._overtaken, racer)
        racer.seconds += time.monotonic() - start
        return end, spoiled

    def _overtaken(self, racer: Racer) -> Verdict:
        """Tests the graphs after a larger call, once for each solution, on the first workload for which there is a
        larger one."""
        known = self._run.were_overtaken
        if not racer.race.has_graph or racer.solution.name in known:
            return PASSED
        verdict = self._table.overtaken(racer.race, self._run.catalog)
        if verdict is not None:
            known.add(racer.solution.name)
        return verdict or PASSED

    def _started_anew(self, racer: Racer) -> bool:
        """Prepares a racer in a fresh process. False if it is out."""
        racer.release()
        racer.worker, failed = self._run.workers.anew(racer.solution)
        return self._goes_on(racer, failed or self._prepared(racer))

    def _rounds(self, racers: list[Racer]) -> list[Racer]:
        """Runs rounds with all racers, then with the first two alone until their ratio has settled. Returns the racers
        that are still in."""
        settings = self._run.settings
        for number in range(1, settings.rounds + 1):
            racers = self._round(racers, racers, number)
        for number in range(settings.rounds + 1, settings.most_rounds + 1):
            leading, kind = first_two(racers)
            if len(leading) < 2 or turns.interval_width(*(one.compared(kind) for one in leading)) < turns.NARROW:
                break
            racers = self._round(racers, leading, number)
        return racers

    def _round(self, racers: list[Racer], taking_part: list[Racer], number: int) -> list[Racer]:
        order = turns.shuffled(taking_part, self._run.session, self._job.workload.uuid, number)
        out = [racer for racer in order if not self._turn(racer, number)]
        return [racer for racer in racers if racer not in out]

    def _turn(self, racer: Racer, number: int) -> bool:
        """One turn of one solution, alone on the GPU; repeated if it was disturbed. False if the solution is out."""
        run, sensors = self._run, self._run.sensors
        self._catch(run.watch.out_of_turn(run.workers.by_name, self._table.device), hidden_work.OUT_OF_TURN)
        if caught := self._caught.pop(racer.solution.name, None):
            return self._goes_on(racer, caught)
        start = time.monotonic()
        for attempt in range(turns.REPEATS + 1):
            if sensors and not racer.clocks:
                racer.clocks.append(sensors.read())
            with run.workers.alone(racer.worker):
                turn = outcome_of(racer.race.turn, number * (turns.REPEATS + 1) + attempt, racer.iterations)
            end = turn.verdict if isinstance(turn, Turn) else turn
            after = sensors.read() if sensors else {}
            disturbed = turns.disturbance(sensors, after, run.workers.on_gpu)
            if not disturbed or end.status is not Status.PASSED:
                break
            if sensors:
                self._catch(hidden_work.helper_of(run.workers.by_name, sensors, run.workers.beside), hidden_work.HELPER)
            if racer.solution.name in self._caught:
                break
            if attempt < turns.REPEATS:
                run.observer.repeated(racer.solution.name, disturbed)
                time.sleep(_COOLING_SECONDS)
        run.observer.round_done(racer.solution.name, number, self._job.workload)
        racer.seconds += time.monotonic() - start
        if after:
            racer.clocks.append(after)
        if not self._goes_on(racer, self._caught.pop(racer.solution.name, end)) or not isinstance(turn, Turn):
            return False
        if disturbed:
            racer.notes.append(f"round {number}: {disturbed}")
        try:
            racer.add(turn, len(self._job.definition.outputs))
        except Wrong as wrong:
            return self._goes_on(racer, wrong.verdict)
        return True

    def _catch(self, name: str | None, at: str) -> None:
        """Ends the worker of a caught solution. Its row is written when its next turn would begin."""
        if name is not None:
            self._caught[name] = Verdict(Status.REWARD_HACK, at)
            self._run.workers.drop(name)

    def _witnessed(self, racers: list[Racer]) -> list[Racer]:
        """The racers whose times agree with the judge's clock and the floor."""
        run, kept = self._run, []
        for racer in racers:
            self._catch(run.watch.out_of_turn(run.workers.by_name, self._table.device), hidden_work.OUT_OF_TURN)
            caught = self._caught.pop(racer.solution.name, None)
            if self._goes_on(racer, outcome_of(self._doubt, racer) if caught is None else caught):
                kept.append(racer)
        return [racer for racer in kept if self._goes_on(racer, self._caught.pop(racer.solution.name, PASSED))]

    def _doubt(self, racer: Racer) -> Verdict:
        with self._run.workers.alone(racer.worker):
            start = time.monotonic()
            judged = self._table.doubt(racer.race, racer.claims, racer.solution, self._run.clock)
        racer.seconds += time.monotonic() - start
        if not self._run.was_told_of_noise and (told := told_of_noise(racer.claims, judged)):
            self._run.was_told_of_noise = True
            self._run.observer.note(told)
        racer.accept(judged)
        return judged.verdict

    def _goes_on(self, racer: Racer, end: Verdict | Failed) -> bool:
        """True for a verdict that passed; otherwise writes its row."""
        if end.status is Status.PASSED:
            return True
        self._table.references.redraw()
        if isinstance(end, Verdict) and end.correctness:
            racer.correctness = end.correctness
        if isinstance(end, Failed):
            self._run.health.expect_sound(end.message)
        if self._is_crowded_out(racer, end):
            self.crowded.append(racer.solution)
        else:
            self._run.ledger.write(self._job, racer.solution, end.status, end.message, racer)
        if isinstance(end, Failed):  # it raised, hung or died, so the state of its process is unknown
            self._run.workers.drop(racer.solution.name)
        return False

    def _is_crowded_out(self, racer: Racer, end: Verdict | Failed) -> bool:
        """Whether it may lack memory because of the others: on a GPU each worker holds its own inputs, and the judge a
        set for each. A worker's own word counts only before its first times: with them in hand, it could choose to be
        measured once more."""
        if end.status is not Status.OUT_OF_MEMORY or len(self._job.solutions) == 1:
            return False
        by_its_word = self._table.device.type == "cuda" and not racer.times
        return by_its_word or end.message.startswith(JUDGE_WITHOUT_MEMORY)

    def _reference_latency(self, racers: list[Racer]) -> float | None:
        if not racers:
            return None
        try:
            with self._run.workers.alone():
                return round(racers[0].race.reference_latency_us(self._table.timer(), _REFERENCE_ITERATIONS), 3)
        except (TimingFailed, torch.OutOfMemoryError) as error:
            self._run.observer.note(f"the reference has no time: {error}")
            return None


def outcome_of(act: Callable[..., Given], *arguments: Any) -> Given | Verdict | Failed:
    """The result of the judge's work with a worker, or the end of the solution that it raises."""
    try:
        return act(*arguments)
    except Failed as failed:
        return failed
    except Wrong as wrong:
        return wrong.verdict
    except (MemoryError, RuntimeError, OSError) as error:
        return without_memory(error)
