"""One workload: its solutions are checked, timed in turn, looked at by the judge's own clock, and get their rows."""

from __future__ import annotations

import statistics
import time

import torch
from msgspec.structs import asdict

from kernelderby.catalog.selection import workload_label
from kernelderby.measure.clock.timing import TimingFailed
from kernelderby.measure.judge.exchange import PASSED
from kernelderby.measure.judge.race import Turn
from kernelderby.measure.judge.table import JudgesTable
from kernelderby.measure.run import helpers, turns
from kernelderby.measure.run.plan import Job
from kernelderby.measure.run.preparing import Preparing
from kernelderby.measure.run.racer import Racer, first_two
from kernelderby.measure.run.shared import Run
from kernelderby.measure.wire.replies import Failed, Verdict, Wrong
from kernelderby.rows.measurement import Status, Timed
from kernelderby.rows.row import JUDGE_WITHOUT_MEMORY

_REFERENCE_ITERATIONS = 3
_COOLING_SECONDS = 2  # before a disturbed turn is repeated


class Contest:
    def __init__(self, run: Run, job: Job, table: JudgesTable) -> None:
        self._run, self._job, self._table = run, job, table
        self._preparing = Preparing(run, table)
        self._caught: dict[str, Verdict] = {}  # solution -> why it is out before its next turn

    def hold(self) -> None:
        """Writes a row for each solution. DefinitionFailed where the definition's own code fails: nobody can be judged
        by it, and who is not out yet gets no row."""
        workers, ledger, racers = self._run.workers, self._run.ledger, list[Racer]()
        for solution, worker in workers.load(self._job.definition, self._job.solutions):
            racers.append(Racer(solution, worker, secret=self._table.secret))
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
            workers.end()  # they may wait in the middle of something
            raise
        finally:
            workers.release()  # they let go of the judge's memory before it is given back
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
                # Its process's word, like host_us; where the judge's clock is longer, that is the least.
                wall_us=max(round(statistics.median(racer.wall_us), 3), times["eager"].median_us, host_us),
            )

    def _checked(self, racers: list[Racer]) -> list[Racer]:
        """Those that are right."""
        passed = []
        for racer, end in zip(racers, self._preparing.check(racers), strict=True):
            self._run.observer.step(f"{racer.solution.name} checked on {workload_label(self._job.workload)}")
            if self._goes_on(racer, end):
                passed.append(racer)
        return passed

    def _captured(self, racers: list[Racer]) -> list[Racer]:
        """A CUDA graph of each one's call. Where there is none the row says why, and a process that the attempt has
        spoiled is replaced."""
        captured = []
        for racer in racers:
            end, spoiled = self._preparing.capture(racer)
            if self._goes_on(racer, end) and (not spoiled or self._started_anew(racer)):
                captured.append(racer)
        return captured

    def _started_anew(self, racer: Racer) -> bool:
        """Prepares a racer in a fresh process. False when it is out."""
        racer.release()
        racer.worker, failed = self._run.workers.anew(self._job.definition, racer.solution)
        return self._goes_on(racer, failed or self._preparing.prepared(racer))

    def _rounds(self, racers: list[Racer]) -> list[Racer]:
        """All of them in turn, then the first two alone until their ratio has settled. Gives back those that are in."""
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
        """One round of one solution, alone on the GPU; a disturbed one again. False when it is out."""
        run, sensors = self._run, self._run.sensors
        self._catch(run.watch.out_of_turn(run.workers.by_name, self._table.device), helpers.OUT_OF_TURN)
        if caught := self._caught.pop(racer.solution.name, None):
            return self._goes_on(racer, caught)
        start = time.monotonic()
        for attempt in range(turns.REPEATS + 1):
            if sensors and not racer.clocks:
                racer.clocks.append(sensors.read())
            with run.workers.alone(racer.worker):
                turn, end = _taken(racer, number * (turns.REPEATS + 1) + attempt)
            after = sensors.read() if sensors else {}
            disturbed = turns.disturbance(sensors, after, run.workers.on_gpu)
            if not disturbed or turn is None:
                break
            if sensors:
                self._catch(helpers.helper_of(run.workers.by_name, sensors, run.workers.beside), helpers.HELPER)
            if racer.solution.name in self._caught:
                break
            if attempt < turns.REPEATS:
                run.observer.step(f"{racer.solution.name} again: {disturbed}")
                time.sleep(_COOLING_SECONDS)
        run.observer.step(f"{racer.solution.name} round {number} on {workload_label(self._job.workload)}")
        racer.seconds += time.monotonic() - start
        if after:
            racer.clocks.append(after)
        goes_on = self._goes_on(racer, self._caught.pop(racer.solution.name, end))
        if turn is None or not goes_on:
            return False
        if disturbed:
            racer.notes.append(f"round {number}: {disturbed}")
        try:
            racer.add(turn, len(self._job.definition.outputs))
        except Wrong as wrong:
            return self._goes_on(racer, wrong.verdict)
        return True

    def _catch(self, name: str | None, at: str) -> None:
        """Ends the worker of a solution; its row is written when it would have its next turn."""
        if name is not None:
            self._caught[name] = Verdict(Status.REWARD_HACK, at)
            self._run.workers.drop(name)

    def _witnessed(self, racers: list[Racer]) -> list[Racer]:
        """Those whose times the judge's own clock and the floor allow."""
        run, kept = self._run, []
        for racer in racers:
            end: Verdict | Failed
            self._catch(run.watch.out_of_turn(run.workers.by_name, self._table.device), helpers.OUT_OF_TURN)
            try:
                with run.workers.alone(racer.worker):
                    end = self._caught.pop(racer.solution.name, None) or self._doubt(racer)
            except Failed as failed:
                end = failed
            except Wrong as wrong:
                end = wrong.verdict
            if self._goes_on(racer, end):
                kept.append(racer)
        return [racer for racer in kept if self._goes_on(racer, self._caught.pop(racer.solution.name, PASSED))]

    def _doubt(self, racer: Racer) -> Verdict:
        start = time.monotonic()
        judged = self._table.doubt(racer.race, racer.claims, racer.solution, self._run.clock)
        racer.seconds += time.monotonic() - start
        racer.accept(judged)
        return judged.verdict

    def _goes_on(self, racer: Racer, end: Verdict | Failed) -> bool:
        """True for a verdict that passed; otherwise its row is written."""
        if end.status is Status.PASSED:
            return True
        self._table.references.redraw()
        if isinstance(end, Verdict) and end.correctness:
            racer.correctness = end.correctness
        if isinstance(end, Failed):
            self._run.health.expect_sound(end.message)
        self._run.ledger.write(self._job, racer.solution, end.status, end.message, racer)
        if isinstance(end, Failed):  # it raised, hung or died: who knows what is left in that process
            self._run.workers.drop(racer.solution.name)
        return False

    def _reference_latency(self, racers: list[Racer]) -> float | None:
        if not racers:
            return None
        try:
            with self._run.workers.alone():
                return round(racers[0].race.reference_latency_us(self._table.timer(), _REFERENCE_ITERATIONS), 3)
        except (TimingFailed, torch.OutOfMemoryError) as error:
            self._run.observer.note(f"the reference has no time: {error}")
            return None


def _taken(racer: Racer, number: int) -> tuple[Turn | None, Verdict | Failed]:
    try:
        turn = racer.race.turn(number, racer.iterations)
    except Failed as failed:
        return None, failed
    except torch.OutOfMemoryError as error:
        return None, Failed(Status.OUT_OF_MEMORY, f"{JUDGE_WITHOUT_MEMORY}: {error}")
    return (turn if turn.verdict.status is Status.PASSED else None), turn.verdict
