"""A solution judged in the process that runs it: for comparing builds, tuning, profiles and tests, never for a row."""

from __future__ import annotations

from types import ModuleType

from kernelderby.measure.clock.timing import Timer, WallTimer
from kernelderby.measure.judge.inputs import InputMaker
from kernelderby.measure.judge.race import Race
from kernelderby.measure.wire.replies import Verdict
from kernelderby.measure.worker.candidate import Candidate
from kernelderby.measure.worker.hands import Hands


def local_race(candidate: Candidate, module: ModuleType, maker: InputMaker, timer: Timer) -> Race:
    """A race whose solution runs in this very process: for comparing builds and for tests, never for a row."""
    race = _local(candidate, module, maker, timer)
    race.start()
    return race


def local_check(candidate: Candidate, module: ModuleType, maker: InputMaker) -> Verdict:
    """The check in this very process."""
    return _local(candidate, module, maker, WallTimer()).check()


def _local(candidate: Candidate, module: ModuleType, maker: InputMaker, timer: Timer) -> Race:
    return Race(
        candidate.definition, module, maker, Hands(candidate, timer, maker.device), candidate.in_place, shared=False
    )
