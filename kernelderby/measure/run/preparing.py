"""Before the rounds: each solution is checked, set up, tried once and captured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from kernelderby.measure.clock.graphs import NotCapturable
from kernelderby.measure.judge.exchange import PASSED
from kernelderby.measure.judge.table import JudgesTable
from kernelderby.measure.run.racer import Racer
from kernelderby.measure.run.shared import Run
from kernelderby.measure.wire.process import interruptible
from kernelderby.measure.wire.remote import RemoteHands
from kernelderby.measure.wire.replies import Failed, Verdict, Wrong
from kernelderby.rows.measurement import Status
from kernelderby.rows.row import JUDGE_WITHOUT_MEMORY

_ROUND_MICROSECONDS = 200_000  # solutions slower than this / iterations get fewer iterations a round, 2 at least


class Preparing:
    def __init__(self, run: Run, table: JudgesTable) -> None:
        self._run, self._table = run, table

    def check(self, racers: Sequence[Racer]) -> list[Verdict | Failed]:
        """Of all of them side by side, since compilation takes the CPU's time."""
        if not racers:
            return []
        with ThreadPoolExecutor(len(racers)) as pool, interruptible():
            return list(pool.map(self.prepared, racers))

    def prepared(self, racer: Racer) -> Verdict | Failed:
        """Check, set-up and a trial turn of one racer. Runs in a thread of its own."""
        settings, start = self._run.settings, time.monotonic()
        try:
            racer.judged = race = self._table.race(racer.solution, RemoteHands(racer.worker, settings.timeout_seconds))
            verdict = race.check()
            if verdict.status is Status.PASSED:
                racer.correctness = verdict.correctness
                race.start()
                trial = race.turn(0, 2)
                verdict = trial.verdict
                if verdict.status is Status.PASSED:
                    racer.iterations = max(
                        2, min(settings.iterations, int(_ROUND_MICROSECONDS / min(trial.samples_us)))
                    )
            return verdict
        except Failed as failed:
            return failed
        except Wrong as wrong:
            return wrong.verdict
        except (MemoryError, torch.OutOfMemoryError) as error:
            return Failed(Status.OUT_OF_MEMORY, f"{JUDGE_WITHOUT_MEMORY}: {error}")
        finally:
            racer.seconds += time.monotonic() - start

    def capture(self, racer: Racer) -> tuple[Verdict | Failed, bool]:
        """A CUDA graph of its call, replayed after a larger one; the verdict on that, and whether the attempt has
        spoiled its process. Where there is no graph the racer knows why."""
        start, spoiled = time.monotonic(), False
        try:
            racer.race.capture()
        except NotCapturable as error:
            racer.graph_missing, spoiled = str(error), error.spoiled
        except Wrong as wrong:
            racer.graph_missing = f"{wrong.verdict.status}: {wrong.verdict.message}"
        except Failed as failed:
            racer.graph_missing, spoiled = f"{failed.status}: {failed.message}", True
        if racer.judged is not None:
            racer.race.series.planned = self._run.settings.rounds * (2 if racer.race.has_graph else 1)
        end = self._overtaken(racer)
        racer.seconds += time.monotonic() - start
        return end, spoiled

    def _overtaken(self, racer: Racer) -> Verdict | Failed:
        """Of each solution once, on the first workload that has a larger one: its graphs after a larger call."""
        known = self._run.were_overtaken
        if not racer.race.has_graph or racer.solution.name in known:
            return PASSED
        try:
            verdict = self._table.overtaken(racer.race, self._run.catalog)
        except Failed as failed:
            return failed
        if verdict is not None:
            known.add(racer.solution.name)
        return verdict or PASSED
